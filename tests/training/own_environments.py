"""Environments such as a user would write, registered in Gymnasium too."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Bandit(gymnasium.Env):
    """A contextual bandit: 3 contexts, 4 arms, one step an episode; arm c + 1 pays 1 in context c."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(4, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.context = int(self.np_random.integers(3))
        return self.context, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self.context, float(action == self.context + 1), True, False, {}


class Rooms(gymnasium.Env):
    """A Dict with an image, a vector, a digit and a text; episodes of 5 steps, the last one cut by a time limit."""

    observation_space = spaces.Dict(
        {
            "view": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "place": spaces.Box(-1, 1, (2,), np.float32),
            "key": spaces.Discrete(3),
            "mission": spaces.Text(8),
        }
    )
    action_space = spaces.MultiBinary(2)

    def observe(self) -> dict[str, Any]:
        place = np.full(2, self.time / 5, np.float32)
        return {"view": np.full((4, 4, 3), self.time, np.uint8), "place": place, "key": self.time % 3, "mission": "go"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.time += 1
        return self.observe(), float(action.sum()), False, self.time == 5, {}


class Levers(gymnasium.Env):
    """Two levers of 2 and 3 positions, from 0 and from 5; a Tuple to see; episodes of 4 steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-9, 9, (1,))])
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 5])

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def observe(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([self.time % 2, self.time % 3]), np.array([self.time], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.time += 1
        return self.observe(), float(action[1] - 5), self.time == 4, False, {}

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), self.time, np.uint8)


for kind in (Bandit, Rooms, Levers):
    gymnasium.register(f"own/{kind.__name__}-v0", entry_point=kind)


def make_levers() -> gymnasium.Env:
    return gymnasium.make("own/Levers-v0")
