"""Environments such as a user would bring to a discovery, by the name `own_habitats:...`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CLOSED: list[str] = []


class Counting(gymnasium.Env):
    """Shows how far it is; the second of two actions pays. A time limit cuts its episodes."""

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, limit: int = 3, fails_at: int = -1) -> None:
        self.limit, self.fails_at, self.steps = limit, fails_at, 0

    def observe(self) -> Any:
        return np.array([self.start, self.time, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.start = 0, float(self.np_random.integers(100))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.time, self.steps = self.time + 1, self.steps + 1
        if self.steps == self.fails_at:
            raise RuntimeError("the cable is loose")
        return self.observe(), float(action), False, self.time == self.limit, {}

    def close(self) -> None:
        CLOSED.append(type(self).__name__)


class Parts(Counting):
    """The same as a Dict of an image, a board of codes and a vector."""

    observation_space = spaces.Dict(
        {
            "view": spaces.Box(0, 255, (32, 32), np.uint8),
            "cells": spaces.Box(0, 9, (2, 2), np.uint8),
            "place": spaces.Box(-9, 9, (2,), np.float32),
        }
    )

    def observe(self) -> Any:
        place = np.full(2, self.time, np.float32)
        return {
            "view": np.full((32, 32), 51 * self.time, np.uint8),
            "cells": np.full((2, 2), self.time, np.uint8),
            "place": place,
        }


class Image(Counting):
    """The same as an image."""

    observation_space = spaces.Box(0, 255, (32, 32, 1), np.uint8)

    def observe(self) -> Any:
        return np.full((32, 32, 1), 51 * self.time, np.uint8)


class Board(Counting):
    """The same as a board of bits with 3 channels."""

    observation_space = spaces.Box(0, 1, (4, 4, 3), np.int8)

    def observe(self) -> Any:
        board = np.zeros((4, 4, 3), np.int8)
        board[self.time % 4, int(self.start) % 4] = 1
        return board


def make_cartpole(limit: int = 4) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=limit)


class Doubled(gymnasium.Wrapper):
    """Pays twice."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, 2 * float(reward), *rest
