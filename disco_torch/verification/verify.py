"""Compares this implementation with a folder of reference outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.verification import cases
from disco_torch.verification.cases import Case, Comparison, MissingWeights
from disco_torch.verification.content import Settings, check_all_read, check_numbers
from disco_torch.weights import load_npz
from disco_torch.weights.haiku import Arrays

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-2}

KINDS: dict[str, Callable[[Case], Iterator[Comparison]]] = {
    "values": cases.values,
    "rule": cases.rule,
    "learner": cases.learner,
    "actor_critic": cases.actor_critic,
    "meta_gradient": cases.meta_gradient,
}

TITLES = {
    "theta": "parameters",
    "target": "target parameters",
    "mu": "first moments",
    "nu": "second moments",
    "gradients": "meta-gradient",
    "mixed-mode": "meta-gradient, mixed mode",
    "value_params": "value function's parameters",
}


@dataclass(frozen=True)
class Verdict:
    """One line of the table. `error` is max |difference| / max |reference|, the worst over the quantity's arrays."""

    file: str
    quantity: str
    error: float | None
    worst: str
    verdict: str

    @property
    def failed(self) -> bool:
        return self.verdict == "FAIL"


def relative_error(ours: Any, reference: np.ndarray) -> float:
    """max |ours - reference| / max |reference|; infinite where ours is missing, of another shape, or not finite."""
    if ours is None:
        return float("inf")
    array = ours.detach().cpu().numpy() if isinstance(ours, Tensor) else np.asarray(ours)
    if array.shape != reference.shape or not (np.isfinite(array).all() and np.isfinite(reference).all()):
        return float("inf")
    scale = np.abs(reference).max(initial=0.0)
    return float(np.abs(array - reference).max(initial=0.0) / (scale if scale > 0 else 1.0))


def quantity_of(name: str) -> str:
    """The line a compared array belongs to: calls and steps together, all logs together, all parameters together."""
    parts = [part for part in name.split("/") if part != "aux" and part.rstrip("0123456789") not in ("call", "step")]
    if "log" in parts:
        return "logs"
    return TITLES.get(parts[0], " ".join(parts))


def verdicts_of(file: str, comparisons: Iterator[Comparison], tolerance: float, dtype: torch.dtype) -> list[Verdict]:
    """One verdict for each quantity. The meta-gradient, ill-conditioned through Adam, has no tolerance in float32."""
    worst: dict[str, tuple[float, str]] = {}
    for name, ours, reference in comparisons:
        quantity, error = quantity_of(name), relative_error(ours, reference)
        if quantity not in worst or error > worst[quantity][0]:
            worst[quantity] = (error, name)
    verdicts = []
    for quantity, (error, name) in worst.items():
        verdict = "ok" if error <= tolerance else "FAIL"
        ill_conditioned = quantity in (TITLES["gradients"], TITLES["mixed-mode"]) and dtype != torch.float64
        if ill_conditioned and error < float("inf"):  # infinite where ours is missing or not finite
            verdict = "no tolerance in float32"
        verdicts.append(Verdict(file, quantity, error, name, verdict))
    return verdicts


def read_config(folder: Path) -> Settings:
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"`folder` must hold reference files and their config.json, got {folder} without one.")
    try:
        config = json.loads(path.read_text(), object_hook=Settings)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: must be JSON ({error}).") from error
    if not isinstance(config, Settings):
        raise ValueError(f"{path}: must hold settings by name, got {type(config).__name__}.")
    return config


def verify_file(
    path: Path, config: Settings, released: Arrays | None, dtype: torch.dtype, tolerance: float
) -> list[Verdict]:
    """The verdicts of one reference file. A file that does not hold what it must fails as a whole, and says why."""
    kind, rule_name = split_name(path.stem)
    if kind not in KINDS:
        return [Verdict(path.name, "-", None, "", "unknown file, left out")]
    try:
        case = Case(load_npz(path), config, rule_name, released, dtype)
        check_numbers(case.arrays)
        verdicts = verdicts_of(path.name, KINDS[kind](case), tolerance, dtype)
        check_all_read(case.arrays, case.read)
    except MissingWeights as missing:
        return [Verdict(path.name, "-", None, "", f"skipped: {missing}")]
    except Exception as error:  # arrays of other sizes than config.json says fail wherever they are used
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return [Verdict(path.name, "content", float("inf"), f"{name}{error}", "FAIL")]
    return verdicts


def split_name(stem: str) -> tuple[str, str]:
    """`rule_tiny` -> ("rule", "tiny"); `actor_critic` -> ("actor_critic", "")."""
    if stem in KINDS:
        return stem, ""
    kind, _, rule_name = stem.rpartition("_")
    return kind, rule_name


def verify(
    folder: Path | str,
    weights: Path | str | None = None,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
) -> list[Verdict]:
    """Recomputes every reference file of a folder.

    Args:
      folder: with `config.json` and `.npz` files, in the format that docs/verification.md describes.
      weights: the released Disco103 weights, for the cases that use them.
      dtype: to compute in.
      tolerance: of the relative error; defaults to 1e-9 in float64 and 2e-2 in float32.

    Returns:
      One verdict for each quantity, in the order of the files.
    """
    folder = Path(folder)
    config = read_config(folder)
    released: Arrays | None = None if weights is None else load_npz(weights)
    tolerance = TOLERANCES[dtype] if tolerance is None else tolerance
    if not 0.0 <= tolerance < float("inf"):
        raise ValueError(f"`tolerance` must be a finite number of at least 0, got {tolerance}.")
    files = sorted(folder.glob("*.npz"))
    verdicts = [verdict for path in files for verdict in verify_file(path, config, released, dtype, tolerance)]
    if not any(verdict.error is not None for verdict in verdicts):
        raise ValueError(f"`folder` must hold reference files to compare with, got none that could be in {folder}.")
    return verdicts
