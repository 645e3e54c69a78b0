"""Validation tasks: environments of our own, to choose rules and settings by; the suite is for claims.

`python benchmarks/suite.py --subset validation ...` runs rules on them. Each has something that users' tasks have and that
rules are weak at: boards of bytes, large numbers, a cost at each step, rare success, one-step episodes, large rewards.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from suite_tasks import SuiteTask

HERE = "validation_tasks"


class TwoRooms(gymnasium.Env):
    """Two rooms of 4x4 with a wall between: the key in the first opens the door to the goal in the second.

    Four ways to go, one step in ten goes astray. Reward 0.2 for the key, 1 at the goal, -0.01 a step; 60 steps at most.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (5, 4, 9), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)
    moves = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.key = self._cell(0), self._cell(0)
        self.goal, self.has_key, self.time = self._cell(5), False, 0
        return self._see(), {}

    def _cell(self, left: int) -> tuple[int, int]:
        return int(self.np_random.integers(4)), left + int(self.np_random.integers(4))

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        if self.np_random.random() < 0.1:
            action = int(self.np_random.integers(4))
        row, column = self.at[0] + self.moves[action][0], self.at[1] + self.moves[action][1]
        door = (row, column) == (2, 4) and self.has_key
        if 0 <= row < 4 and 0 <= column < 9 and (column != 4 or door):
            self.at = row, column
        reward = -0.01
        if not self.has_key and self.at == self.key:
            self.has_key, reward = True, 0.2
        done = self.at == self.goal
        return self._see(), reward + float(done), done, self.time >= 60, {}

    def _see(self) -> np.ndarray:
        board = np.zeros((5, 4, 9), np.uint8)
        board[0][self.at], board[1][self.goal] = 1, 1
        board[2, :, 4] = 1
        board[2, 2, 4] = not self.has_key
        if self.has_key:
            board[4] = 1
        else:
            board[3][self.key] = 1
        return board


class Field(gymnasium.Env):
    """A point that moves in a field of 1000 x 1000, 40 a step, to within 60 of a goal; -1 a step, 150 steps at most."""

    observation_space = gymnasium.spaces.Box(0.0, 1000.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(0, 1000, (2, 2))
        self.time = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        way = np.zeros(2)
        way[action // 2] = 40 * (2 * (action % 2) - 1)
        self.at = np.clip(self.at + way, 0, 1000)
        return self._see(), -1.0, bool(np.linalg.norm(self.at - self.goal) < 60), self.time >= 150, {}

    def _see(self) -> np.ndarray:
        return np.concatenate([self.at, self.goal]).astype(np.float32)


class SwingUp(gymnasium.Env):
    """A pendulum to swing up with a torque too weak to lift it: -1 a step, 300 steps; chance succeeds once in 200 times."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    torque = 2.5

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.angle, self.speed = self.np_random.uniform(-0.1, 0.1, 2)  # from the lowest point
        self.time = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        for _ in range(2):
            self.speed += 0.05 * (-9.8 * math.sin(self.angle) + self.torque * (action - 1) - 0.05 * self.speed)
            self.angle += 0.05 * self.speed
        return self._see(), -1.0, math.cos(self.angle) < -0.6, self.time >= 300, {}

    def _see(self) -> np.ndarray:
        return np.array([math.cos(self.angle), math.sin(self.angle), self.speed], np.float32)


class WeakSwing(SwingUp):
    """The same pendulum with half of the torque, with which chance never succeeds."""

    torque = 1.2


class Marsh(gymnasium.Env):
    """A marsh of 6x6 to cross from the upper edge to the lower one, where reward 1 is: three steps in ten go astray.

    Seven wet fields end the episode without a reward; 80 steps at most. The observation is the number of the field.
    """

    observation_space = gymnasium.spaces.Discrete(36)
    action_space = gymnasium.spaces.Discrete(5)
    moves = ((-1, 0), (0, 1), (1, 0), (0, -1), (1, 1))
    wet = frozenset({(1, 1), (1, 4), (2, 3), (3, 0), (3, 5), (4, 2), (4, 4)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict]:
        super().reset(seed=seed)
        self.at, self.time = (0, 2), 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.int64, float, bool, bool, dict]:
        self.time += 1
        if self.np_random.random() < 0.3:
            action = int(self.np_random.integers(5))
        row, column = self.at[0] + self.moves[action][0], self.at[1] + self.moves[action][1]
        if row >= 0 and 0 <= column < 6:
            self.at = row, column
        across = row == 6
        return self._see(), float(across), across or self.at in self.wet, self.time >= 80, {}

    def _see(self) -> np.int64:
        return np.int64(6 * min(self.at[0], 5) + self.at[1])


class Stock(gymnasium.Env):
    """A store that orders 0 to 40 pieces a day: sales bring in, stock and orders cost; 30 days, rewards of hundreds."""

    observation_space = gymnasium.spaces.Box(0.0, 500.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.stock, self.coming, self.day = 20.0, 0.0, 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.stock, self.coming = self.stock + self.coming, 10.0 * action
        demand = float(self.np_random.poisson(15 + 10 * math.sin(2 * math.pi * self.day / 15)))
        sold = min(self.stock, demand)
        self.stock -= sold
        self.day += 1
        reward = 20.0 * sold - 10.0 * self.coming - 2.0 * self.stock - 30.0 * (demand - sold)
        return self._see(), reward, False, self.day >= 30, {}

    def _see(self) -> np.ndarray:
        return np.array([self.stock, self.coming, self.day], np.float32)


class NoisyBandit(gymnasium.Env):
    """8 contexts in 8 numbers, 6 arms, episodes of one step: the reward is the arm's worth in the context, with noise."""

    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(6)
    worths = np.random.default_rng(0).uniform(-1.0, 1.0, (8, 6))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.context = int(self.np_random.integers(8))
        return np.eye(8, dtype=np.float32)[self.context], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = float(self.worths[self.context, action] + 0.5 * self.np_random.standard_normal())
        return np.eye(8, dtype=np.float32)[self.context], reward, True, False, {}


ENVS = {
    "TwoRooms": TwoRooms,
    "Field": Field,
    "SwingUp": SwingUp,
    "WeakSwing": WeakSwing,
    "Marsh": Marsh,
    "Stock": Stock,
    "NoisyBandit": NoisyBandit,
}
STEPS = {
    "TwoRooms": 100_000,
    "Field": 100_000,
    "SwingUp": 150_000,
    "WeakSwing": 150_000,
    "Marsh": 100_000,
    "Stock": 100_000,
    "NoisyBandit": 20_000,
}
VALIDATION = [SuiteTask(name, f"{HERE}:validation/{name}-v0", steps) for name, steps in STEPS.items()]
for name, entry_point in ENVS.items():
    if f"validation/{name}-v0" not in gymnasium.registry:
        gymnasium.register(f"validation/{name}-v0", entry_point=entry_point)
