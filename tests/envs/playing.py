"""A player's mean return, for the tests of families."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from disco_torch.envs import LevelEnvironment, LevelState


def mean_returns(env: LevelEnvironment, policy: Callable[[LevelState], Tensor], steps: int) -> Tensor:
    """Mean return of each copy's whole episodes within `steps`, [B]."""
    generator = torch.Generator().manual_seed(0)
    state, _ = env.reset(generator)
    total, running, ends = torch.zeros(3, env.num_envs)
    for _ in range(steps):
        state, row = env.step(state, policy(state), generator)
        running = running + row.rewards
        total = total + running * row.episode_ends
        running = running * ~row.episode_ends
        ends = ends + row.episode_ends
    return total / ends
