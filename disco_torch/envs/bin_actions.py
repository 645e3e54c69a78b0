"""Continuous actions as a few values of each number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs


class BinActions(gymnasium.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Offers evenly spaced values of a bounded Box of actions, its bounds among them.

    The action space becomes Discrete for a single number, else MultiDiscrete with a digit for each number.

    Args:
      env: an environment with a bounded Box of actions.
      bins: number of values of each number, at least 2; one for all, or one for each.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], bins: int | Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, bins=bins)
        super().__init__(env)
        box = env.action_space
        if not isinstance(box, spaces.Box) or not box.is_bounded():
            raise ValueError(f"`env` must have a bounded Box of actions, got {box}; there is nothing else to bin.")
        self._low, self._high, self._box = box.low.flatten(), box.high.flatten(), box  # [numbers] each
        counts = [bins] * len(self._low) if isinstance(bins, int) else list(bins)
        if len(counts) != len(self._low) or any(count < 2 for count in counts):
            raise ValueError(
                f"`bins` must be at least 2, one for all or one for each of {len(self._low)} numbers, got {bins}."
            )
        self._last = np.array(counts) - 1
        self.action_space = spaces.Discrete(counts[0]) if len(counts) == 1 else spaces.MultiDiscrete(counts)

    def action(self, action: Any) -> np.ndarray:
        """The action of the wrapped environment that a bin, or one bin for each number, stands for."""
        share = np.reshape(action, -1) / self._last
        values = self._low + share * (self._high - self._low)
        return values.reshape(self._box.shape).astype(self._box.dtype)
