"""Make reference cases with the JAX reference, for `disco-torch verify` to compare this project with.

It runs where google-deepmind/disco_rl can be imported, and needs nothing of this project:

    python scripts/validate_against_jax.py --out cases --T 9 --B 4 --A 6 --dense 48 40 --value-cost 0.5
    python scripts/validate_against_jax.py --check cases --weights disco_103.npz

Every entry of `config.json` has an option under its dotted name (`--meta.weights.target_kl`), and the entries of the agent,
of the tiny rule and of its hyper-parameters a short one as well (`--lstm-size`, `--num-bins`, `--value-cost`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from reference_cases import COMPUTE
from reference_inputs import Inputs, default_config
from reference_model import Arrays, Config, group, prefixed

SHORT_NAMES = {"agent.": "", "hyper_params.": "", "rules.tiny.meta_rnn_kwargs.": "meta-rnn-", "rules.tiny.": ""}
"""Sections whose entries have a short option, and what stands there instead of the section's name."""

CHECK_TOLERANCE = 1e-9
"""Far above what rounding does to outputs (1e-11) and meta-gradients (1e-10), far below what a different formula does."""


def case_files(only: list[str], with_disco103: bool) -> Iterator[tuple[str, str, str]]:
    """The files of a folder as (file stem, kind, rule)."""
    for kind in only:
        if kind == "values":
            yield kind, kind, ""
        elif kind == "actor_critic":
            yield kind, kind, kind
        else:
            for rule in ("tiny", "disco103") if with_disco103 else ("tiny",):
                yield f"{kind}_{rule}", kind, rule


def rule_params(rule: str, weights: Arrays, tiny: Arrays) -> Arrays:
    """The rule's parameters: the released ones, those of the tiny rule, or none for a rule that was not learned."""
    return {"disco103": weights, "tiny": tiny}.get(rule, {})


def make(out: Path, config: Config, only: list[str], weights: Arrays) -> None:
    """Write a case folder."""
    written = out / "config.json"
    if written.is_file() and json.loads(written.read_text()) != config:
        raise SystemExit(f"--out must be a new folder or one with the same settings, {out} holds cases with others.")
    out.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps(config, indent=1))
    inputs_of, tiny = Inputs(config), {}
    if set(only) & {"rule", "learner", "meta_gradient"}:
        tiny = inputs_of.eta()
    for stem, kind, rule in case_files(only, bool(weights)):
        inputs = inputs_of.values() if kind == "values" else inputs_of.of(kind, rule)
        outputs = COMPUTE[kind](config, rule, inputs, rule_params(rule, weights, tiny))
        saved = inputs | outputs | (prefixed("eta", tiny) if rule == "tiny" else {})
        wrong = [name for name, x in saved.items() if not np.isfinite(x).all()]
        if wrong:
            raise SystemExit(
                f"{stem}: the reference gave numbers that are not finite in {wrong}; choose other sizes or settings."
            )
        np.savez_compressed(out / f"{stem}.npz", **saved)
        zero = [name for name, x in outputs.items() if name.startswith("grads/") and not x.any()]
        print(f"{stem}: {len(saved)} arrays" + (f", no gradient reaches {zero}: try another --salt" if zero else ""))


def check(folder: Path, only: list[str], weights: Arrays) -> bool:
    """Compute every output of a folder again with the reference, and print how far the folder is from it.

    Returns whether something was compared and all of it agrees.
    """
    config = json.loads((folder / "config.json").read_text())
    largest: list[float] = []
    for stem, kind, rule in case_files(only, with_disco103=True):
        path = folder / f"{stem}.npz"
        if not path.is_file() or (rule == "disco103" and not weights):
            print(f"{stem}: skipped, {'it needs --weights' if path.is_file() else 'not in the folder'}")
            continue
        with np.load(path) as file:
            saved = dict(file)
        outputs = COMPUTE[kind](config, rule, saved, rule_params(rule, weights, group(saved, "eta")))
        errors = {name: relative_error(x, saved.get(name)) for name, x in outputs.items()}
        worst = max(errors, key=errors.__getitem__)
        largest.append(errors[worst])
        print(f"{stem}: {len(outputs)} of {len(saved)} arrays computed again, largest error {errors[worst]:.1e} in {worst}")
    return bool(largest) and max(largest) <= CHECK_TOLERANCE


def relative_error(x: np.ndarray, reference: np.ndarray | None) -> float:
    """The largest difference between two arrays over the largest number of the second; infinite if not comparable."""
    if reference is None or x.shape != reference.shape or not np.isfinite(x - reference).all():
        return float("inf")
    scale = np.abs(reference).max()
    difference = np.abs(x - reference).max()
    return float(difference / scale) if scale > 0 else float(difference)


def leaves(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of a nested configuration as (dotted name, value)."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def option_names(path: str) -> list[str]:
    """The options of the entry `path`: its dotted name and, in the sections of `SHORT_NAMES`, a short one."""
    names = [f"--{path}"]
    for section, short in SHORT_NAMES.items():
        leaf = path.removeprefix(section)
        if leaf != path and "." not in leaf:
            names.insert(0, f"--{short}{leaf}".replace("_", "-"))
    return names


def build_parser(config: Config) -> argparse.ArgumentParser:
    """The command line: what to do, and one option for every entry of the configuration."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style, allow_abbrev=False)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="make a case folder here")
    action.add_argument("--check", type=Path, metavar="DIR", help="compute the outputs of this folder again and compare")
    parser.add_argument("--weights", type=Path, help="the released rule (disco_103.npz), for the disco103 files")
    parser.add_argument("--only", nargs="+", choices=list(COMPUTE), default=list(COMPUTE), help="only these files")
    for path, value in leaves(config):
        if path == "dtype":
            continue
        several = isinstance(value, list)
        kind = type(value[0]) if several else type(value)
        shown = " ".join(map(str, value)) if several else value
        nargs = "+" if several else None
        parser.add_argument(*option_names(path), dest=path, type=kind, nargs=nargs, help=f"default {shown}", metavar="N")
    return parser


def main() -> None:
    """Make or check a case folder."""
    config = default_config()
    parser = build_parser(config)
    arguments = vars(parser.parse_args())
    weights: Arrays = {}
    if arguments["weights"]:
        with np.load(arguments["weights"]) as file:
            weights = dict(file)
    changes = {path: arguments[path] for path, _ in leaves(config) if arguments.get(path) is not None}
    if arguments["check"]:
        if changes:
            parser.error(f"--check reads its settings from config.json; leave out {', '.join(changes)}.")
        raise SystemExit(0 if check(arguments["check"], arguments["only"], weights) else 1)
    for path, value in changes.items():
        *sections, leaf = path.split(".")
        section = config
        for name in sections:
            section = section[name]
        section[leaf] = value
    make(arguments["out"], config, arguments["only"], weights)


if __name__ == "__main__":
    main()
