"""Action spaces as one number of actions, 0 .. A - 1, and back.

Discrete       its values, from `start` on
MultiDiscrete  all combinations of its digits as one joint action, the last digit running fastest
MultiBinary    all combinations of its bits, likewise
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

MAX_JOINT_ACTIONS = 4096
"""Largest number of joint actions of a MultiDiscrete or MultiBinary space: an agent has a logit for each."""


@dataclass(frozen=True)
class ActionCoding:
    """The actions of one environment, numbered.

    Attributes:
      space: the environment's own action space.
      sizes: number of values of each digit; one digit for Discrete.
      starts: smallest value of each digit.
    """

    space: spaces.Space[Any]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def num_actions(self) -> int:
        return math.prod(self.sizes)

    def decode(self, actions: np.ndarray) -> np.ndarray:
        """Numbers [B] as a batch of the environment's own actions, [B, *space.shape] in its dtype."""
        digits = np.stack(np.unravel_index(actions.astype(np.int64), self.sizes), axis=-1)  # [B, digits]
        return (digits + self.starts).reshape(len(actions), *(self.space.shape or ())).astype(self.space.dtype)


def number_actions(space: spaces.Space[Any]) -> ActionCoding:
    """Numbers the actions of one environment; raises where they cannot be numbered, or are too many."""
    if isinstance(space, spaces.Discrete):
        return ActionCoding(space, (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.flatten())
        return _joint(ActionCoding(space, sizes, tuple(int(start) for start in space.start.flatten())))
    if isinstance(space, spaces.MultiBinary):
        bits = math.prod(space.shape)
        return _joint(ActionCoding(space, (2,) * bits, (0,) * bits))
    hint = (
        "continuous actions are not supported; wrap the environment with disco_torch.BinActions(env, bins), which offers a "
        "few values of each"
        if isinstance(space, spaces.Box)
        else "number the actions with gymnasium.wrappers.TransformAction"
    )
    raise ValueError(f"`single_action_space` must be Discrete, MultiDiscrete or MultiBinary, got {space}; {hint}.")


def _joint(coding: ActionCoding) -> ActionCoding:
    if not 1 <= coding.num_actions <= MAX_JOINT_ACTIONS:
        raise ValueError(
            f"`single_action_space` must have at most {MAX_JOINT_ACTIONS} joint actions, got {coding.space}, which has "
            f"{coding.num_actions}; leave out combinations with gymnasium.wrappers.TransformAction."
        )
    return coding
