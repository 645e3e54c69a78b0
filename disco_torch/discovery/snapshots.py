"""Snapshots: a rule file, and beside it the optimiser's state, so that the rule can be fine-tuned with new agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.files import replacing
from disco_torch.optim import AdamState, adam_init
from disco_torch.rules import DiscoUpdateRule
from disco_torch.runs.checkpoint import first_not_finite, pack, read_tensor_file, unpack
from disco_torch.types import Params
from disco_torch.weights import load_rule, save_rule


def moments_path(path: Path) -> Path:
    """The file of the optimiser's state beside a rule file."""
    return path.with_suffix(".moments.pt")


def save_snapshot(
    path: Path, rule: DiscoUpdateRule, params: Params, moments: AdamState, provenance: Mapping[str, Any]
) -> None:
    """Writes the moments first: a rule file that is there has its moments beside it."""
    mu, nu = ({name: x.detach().cpu() for name, x in part.items()} for part in (moments.mu, moments.nu))
    with replacing(moments_path(path)) as file:
        torch.save({"mu": mu, "nu": nu, "count": moments.count.cpu()}, file)
    save_rule(path, rule, params=params, provenance=provenance, dtype=torch.float32)


def load_start(config: DiscoverConfig) -> tuple[DiscoUpdateRule, AdamState | None]:
    """The rule that a discovery starts from, and its optimiser's state if there is one."""
    if not config.start:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return DiscoUpdateRule(config.rule), None
    rule = load_rule(config.start)
    if not isinstance(rule, DiscoUpdateRule):
        raise ValueError(f"`start` must be a discovered rule, got {config.start!r}, which has no weights.")
    if rule.config != config.rule:
        raise ValueError(
            f"`start` must be a rule of the configured sizes, got {config.start!r} of others; set `rule` to its own."
        )
    path = moments_path(Path(config.start))
    if not path.is_file():
        return rule, None
    return rule, load_moments(path, dict(rule.named_parameters()), getattr(torch, config.dtype))


def load_moments(path: Path, params: Params, dtype: torch.dtype) -> AdamState:
    """The optimiser's state beside a rule file, checked against the rule's parameters, whatever its own precision."""
    try:
        stored = read_tensor_file(path)
        double = any(x.dtype == torch.float64 for x in stored["mu"].values())
        like = adam_init({name: param.detach().double() if double else param.detach() for name, param in params.items()})
        moments = unpack(pack(stored), like)
        if (problem := first_not_finite(moments)) is not None:
            raise ValueError(problem)
        if moments.count < 0 or any(bool((x < 0).any()) for x in moments.nu.values()):
            raise ValueError("second moments and their count must not be negative")
    except Exception as error:  # a damaged file raises whatever its damage leads to
        raise ValueError(
            f"{path} is not the optimiser's state of the rule beside it ({error}); remove it to start with a new optimiser."
        ) from error
    mu, nu = ({name: x.to(dtype) for name, x in part.items()} for part in (moments.mu, moments.nu))
    return AdamState(mu, nu, moments.count)
