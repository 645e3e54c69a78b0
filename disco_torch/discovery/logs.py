"""What a group's meta-update adds to the logs of a discovery."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.discovery.group_state import GroupGradient
from disco_torch.discovery.local_group import LocalGroup
from disco_torch.types import Logs


def log_sums(group: LocalGroup, gradient: GroupGradient | None, finite: Tensor | None) -> Logs:
    """Sums over agents, and over episodes by environment.

    Args:
      group: the agents.
      gradient: of a meta-update, or None for a process that has no agents of the group: the names alone, with zeros.
      finite: [P], whose gradient is finite; the logs of the others are left out.
    """
    config = group.config
    zero = torch.zeros((), dtype=group.rates.dtype, device=group.device)
    sums: Logs = {}
    for name in {habitat.env for habitat in group.own.habitats}:
        sums |= {f"episodes/{name}": zero, f"returns/{name}": zero}
    if gradient is None or finite is None:
        return sums
    episodes, first = gradient.episodes, 0
    for habitat in group.habitats.habitats:
        mine, name = slice(first, first + habitat.num_agents), habitat.config.env
        sums[f"episodes/{name}"] = sums[f"episodes/{name}"] + episodes.count[mine].sum()
        sums[f"returns/{name}"] = sums[f"returns/{name}"] + episodes.returns[mine].sum()
        first += habitat.num_agents
    kept = {name: torch.where(finite, value, torch.zeros_like(value)).sum() for name, value in gradient.logs.items()}
    number = finite.sum().to(zero.dtype)
    rows = config.updates_per_meta_update * config.rollout_length + config.valid_length
    counts = {"agents": number, "nonfinite": finite.numel() - number}
    counts["taken_steps"] = zero + float(rows * config.num_parallel_envs * finite.numel())
    counts |= {"rewards": episodes.rewards.sum(), "pos_rewards": episodes.positive.sum().to(zero.dtype)}
    return sums | kept | counts | {"neg_rewards": episodes.negative.sum().to(zero.dtype)}
