"""How the tests of the small games play them: whole runs under a policy, and boards drawn as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from playing import mean_returns
from torch import Tensor

from disco_torch.envs.levels import LevelEnvironment, LevelState

Policy = Callable[[LevelState], Tensor]


def mean_return(env: LevelEnvironment, policy: Policy | None, steps: int = 240) -> float:
    """Mean over copies of the return of a policy or, with None, of uniformly random actions."""
    generator = torch.Generator().manual_seed(1)

    def random(state: LevelState) -> Tensor:
        return torch.randint(env.num_actions, (env.num_envs,), generator=generator)

    return mean_returns(env, policy or random, steps).mean().item()


def levels_of(env: LevelEnvironment) -> Any:
    """The levels that each copy drew."""
    assert env.level_seed is None
    return env.reset(torch.Generator().manual_seed(0))[0].levels


def mask_of(*lines: str) -> Tensor:
    """A mask of one copy, [1, rows, columns] bool, from lines with an x at each cell that is set."""
    return torch.tensor([[[mark == "x" for mark in line] for line in lines]])


def text_of(mask: Tensor) -> list[str]:
    """The lines of a mask [rows, columns]."""
    return ["".join("x" if cell else "." for cell in row) for row in mask.tolist()]
