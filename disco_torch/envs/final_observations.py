"""Last observations of ended episodes, kept before the reset that may overwrite them.

In the autoreset mode `same_step` Gymnasium keeps the last observation by reference while it resets the environment. An
environment that writes every observation into one array thereby replaces it by the first of the next episode, and a
truncated episode would bootstrap from the wrong state.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from torch import Tensor

from disco_torch.types import Observations, flatten_tree

SUSPICIOUS_ROWS = 16
"""So many truncated episodes in a row whose last observation equals the next first one are reported."""


class CopyFinalObservation(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copies the observation that ends an episode; every other one is passed on as it is."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def copy_final_observations(env: VectorEnv[Any, Any, Any]) -> None:
    """Wraps each environment of a `SyncVectorEnv` in `CopyFinalObservation`, in place; others cannot be reached."""
    vector = env.unwrapped
    if isinstance(vector, SyncVectorEnv):
        vector.envs = [x if isinstance(x, CopyFinalObservation) else CopyFinalObservation(x) for x in vector.envs]


def shares_memory(batch: Any, finals: Any) -> bool:
    """Whether any array of `finals` lies in memory that an array of `batch` lies in too."""
    arrays = [x for x in flatten_tree(batch)[0] if isinstance(x, np.ndarray)]
    others = [x for x in flatten_tree(finals)[0] if isinstance(x, np.ndarray)]
    return any(np.may_share_memory(x, y) for x in arrays for y in others)


class FinalObservationCheck:
    """Warns once if final observations look overwritten: where workers reset, this process cannot tell otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._equal_rows = 0
        self._done = False

    def __call__(self, observations: Observations, finals: Observations, cut: np.ndarray) -> None:
        """Looks at the rows `cut`, [K], of trees of [B, ...]: first observations and the last ones before them."""
        if self._done:
            return
        pairs = zip(flatten_tree(observations)[0], flatten_tree(finals)[0], strict=True)
        if all(_equal(x[cut], y[cut]) for x, y in pairs):
            self._equal_rows += len(cut)
        else:
            self._done = True  # the environment keeps them apart
        if self._equal_rows >= SUSPICIOUS_ROWS:
            self._done = True
            warnings.warn(
                f"environment {self.name!r}: in each of the first {self._equal_rows} truncated episodes the last "
                "observation equals the first of the next episode. If the environment reuses its array, this is wrong: "
                "make it with `make_gymnasium`, in autoreset mode DISABLED, or wrap each environment in "
                "`disco_torch.envs.final_observations.CopyFinalObservation`.",
                stacklevel=4,
            )


def _equal(x: Tensor, y: Tensor) -> bool:
    return bool((x == y).all())
