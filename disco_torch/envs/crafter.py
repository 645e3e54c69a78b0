"""Crafter (Hafner, 2021) as a Gymnasium environment; the package itself speaks an older interface."""

from __future__ import annotations

import importlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CRAFTER_GAMES = ("reward", "no-reward")
NUM_ACTIONS = 17


class CrafterEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One world of Crafter, seen as an image of [64, 64, 3] bytes, with 17 actions.

    Death ends an episode; the limit of 10,000 steps cuts it and is no end. Worlds are drawn from the seed of the last seeded
    reset and the number of the episode.

    Args:
      reward: whether rewards are paid: 1 for each achievement that is unlocked for the first time in an episode, and 0.1
        for each point of health.
      length: number of steps of the time limit.
      stats: folder to write how often each achievement was unlocked to, a line for each episode, as `crafter.Recorder` does;
        `disco_torch.analysis.crafter_success_rates` reads it. Empty for none.
      render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - the name and form are Gymnasium's

    def __init__(self, reward: bool = True, length: int = 10_000, stats: str = "", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._settings = {"reward": reward, "length": length}
        self._env: Any = None
        self._steps, self._return = 0, 0.0
        self._last = np.zeros((64, 64, 3), np.uint8)
        self._stats: Path | None = None
        if stats:
            Path(stats).mkdir(parents=True, exist_ok=True)
            self._stats = Path(stats) / f"stats-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(NUM_ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._env is None:
            self._env = importlib.import_module("crafter").Env(**self._settings, seed=seed)
        self._steps, self._return = 0, 0.0
        self._last = self._env.reset()
        return self._last, {}

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._last, reward, done, info = self._env.step(int(action))
        self._steps, self._return = self._steps + 1, self._return + float(info["reward"])
        if done and self._stats is not None:
            line = {"length": self._steps, "reward": round(self._return, 1)}
            line |= {f"achievement_{name}": int(count) for name, count in info["achievements"].items()}
            with self._stats.open("a") as file:
                file.write(json.dumps(line) + "\n")
        terminated = info["discount"] == 0
        return self._last, float(reward), terminated, bool(done) and not terminated, {}

    def render(self) -> np.ndarray | None:
        """The last observation, enlarged: Crafter's own would draw from the world's random numbers at night."""
        return None if self.render_mode is None else self._last.repeat(4, axis=0).repeat(4, axis=1)
