"""Snapshots: a rule as a rule file, and beside it its optimiser's state, which is enough to go on with new agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.files import replacing
from disco_torch.optim import AdamState
from disco_torch.rules import DiscoUpdateRule
from disco_torch.types import Params
from disco_torch.weights import load_rule, save_rule


def moments_path(path: Path) -> Path:
    """Where the optimiser's state lies beside a rule file."""
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
    """The rule that a discovery begins with, and its optimiser's state if there is one."""
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
    stored = torch.load(path, map_location="cpu", weights_only=True)
    dtype = getattr(torch, config.dtype)  # the snapshot may be of a discovery in another one
    mu, nu = ({name: x.to(dtype) for name, x in stored[part].items()} for part in ("mu", "nu"))
    return rule, AdamState(mu, nu, stored["count"])
