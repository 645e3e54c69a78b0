"""Catch as a single-stream Gymnasium environment, "disco_torch/Catch-v0", for tools that speak that interface."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from disco_torch.envs.catch import STAY, check_board, draw_board

CATCH_ID = "disco_torch/Catch-v0"
"""Id of Catch in Gymnasium."""


class CatchEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One game of Catch by the rules of `disco_torch.envs.Catch`; it shows the ended game's last board, as Gymnasium asks.

    `reset(options={"ball_column": 3})` lets the ball fall in a given column.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 - the name and form are Gymnasium's

    def __init__(self, rows: int = 8, columns: int = 8, render_mode: str | None = None) -> None:
        check_board(rows, columns)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"`render_mode` must be None or 'rgb_array', got {render_mode!r}; Catch opens no window.")
        self.rows, self.columns, self.render_mode = rows, columns, render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (rows, columns), np.float32)
        self.action_space = spaces.Discrete(3)
        self._ball_row = self._ball_column = self._paddle_column = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self.columns))
        self._ball_row = 0
        self._ball_column = (options or {}).get("ball_column", drawn)
        if not 0 <= self._ball_column < self.columns:
            raise ValueError(f"`ball_column` must lie in 0 .. {self.columns - 1}, got {self._ball_column}.")
        self._paddle_column = self.columns // 2
        return self._board(), {}

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._ball_row += 1
        self._paddle_column = min(max(self._paddle_column + int(action) - STAY, 0), self.columns - 1)
        terminated = self._ball_row == self.rows - 1
        caught = self._paddle_column == self._ball_column
        reward = (1.0 if caught else -1.0) if terminated else 0.0
        return self._board(), reward, terminated, False, {}

    def render(self) -> np.ndarray | None:
        return draw_board(self._board()) if self.render_mode == "rgb_array" else None

    def _board(self) -> np.ndarray:
        board = np.zeros((self.rows, self.columns), np.float32)
        board[self._ball_row, self._ball_column] = 1.0
        board[-1, self._paddle_column] = 1.0
        return board


def register_catch() -> None:
    """Makes the id known to `gymnasium.make`, once."""
    if CATCH_ID not in gymnasium.registry:
        gymnasium.register(id=CATCH_ID, entry_point="disco_torch.envs.catch_gym:CatchEnv")
