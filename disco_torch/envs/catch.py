"""Catch: a ball falls, a paddle on the last row moves below it. Every game is a row of tensors, on any device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from disco_torch.checks import check_positive
from disco_torch.envs.base import EnvStep
from disco_torch.envs.pure import PureEnvironment, draw_integers, row_of, select_envs
from disco_torch.types import tree_dataclass

LEFT, STAY, RIGHT = range(3)


@tree_dataclass
class CatchState:
    """Where ball and paddle are, [B] integers each. The paddle is always on the last row."""

    ball_row: Tensor
    ball_column: Tensor
    paddle_column: Tensor


class Catch(PureEnvironment):
    """`num_envs` games of Catch.

    The ball starts on row 0 in a uniformly drawn column, the paddle in column `columns // 2`. Each step the paddle moves
    left, stays or moves right (actions 0, 1, 2; the walls hold it), and the ball falls by one row. After `rows - 1` steps
    the reward is 1 if the paddle is below the ball, else -1; all other rewards are 0. The next episode begins at once.

    Observations are boards, [B, rows, columns] float32, 1 at ball and paddle.

    State lies in `CatchState` alone and a step reads nothing back from the device.
    """

    name = "catch"
    num_actions = 3
    episode_draws = 1

    def __init__(self, num_envs: int, rows: int = 8, columns: int = 8, device: str | torch.device = "cpu") -> None:
        check_positive("num_envs", num_envs, "it is the number of games that are played together")
        check_board(rows, columns)
        self.num_envs, self.rows, self.columns = num_envs, rows, columns
        self.device = torch.device(device)
        self.observation_example = torch.zeros(rows, columns, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._cells = torch.arange(rows * columns, device=self.device)

    def start(self, level_uniforms: Tensor, episode_uniforms: Tensor) -> tuple[CatchState, EnvStep]:
        state = self._new_games(episode_uniforms)
        no = torch.zeros(episode_uniforms.shape[0], dtype=torch.bool, device=episode_uniforms.device)
        return state, row_of(self._boards(state), no.float(), no, is_first=~no)

    def step_with(self, state: CatchState, actions: Tensor, uniforms: Tensor) -> tuple[CatchState, EnvStep]:
        ball_row = state.ball_row + 1
        paddle_column = (state.paddle_column + actions - STAY).clamp(0, self.columns - 1)
        ends = ball_row == self.rows - 1  # [B]
        caught = paddle_column == state.ball_column
        rewards = (2.0 * caught.float() - 1.0).masked_fill(~ends, 0.0)
        state = CatchState(ball_row, state.ball_column, paddle_column)
        if self.autoreset:
            state = select_envs(ends, self._new_games(uniforms), state)
        return state, row_of(self._boards(state), rewards, ends, is_first=ends)

    def render(self, state: CatchState | None = None) -> np.ndarray | None:
        """The board of game 0 as an image; None without a state."""
        return None if state is None else draw_board(self._boards(state)[0].cpu().numpy())

    def _new_games(self, uniforms: Tensor) -> CatchState:
        ball_column = draw_integers(uniforms[:, 0], 0, self.columns - 1)
        zeros = torch.zeros_like(ball_column)
        return CatchState(ball_row=zeros, ball_column=ball_column, paddle_column=zeros + self.columns // 2)

    def _boards(self, state: CatchState) -> Tensor:
        """[B, rows, columns] float32."""
        ball = state.ball_row * self.columns + state.ball_column
        paddle = (self.rows - 1) * self.columns + state.paddle_column
        marked = (self._cells == ball[:, None]) | (self._cells == paddle[:, None])  # [B, rows * columns]
        return marked.float().unflatten(1, (self.rows, self.columns))  # [B, rows, columns]


def check_board(rows: int, columns: int) -> None:
    """Raises unless a ball can fall on a board of this size."""
    if rows < 2:
        raise ValueError(f"`rows` must be at least 2, so that the ball can fall, got {rows}.")
    check_positive("columns", columns, "the ball and the paddle need a column")


def draw_board(board: np.ndarray, cell: int = 16) -> np.ndarray:
    """An image of a board [rows, columns] of 0 and 1: [rows * cell, columns * cell, 3] uint8, white on dark grey."""
    shades = np.where(board > 0, 255, 32).astype(np.uint8)
    shades = shades.repeat(cell, axis=0).repeat(cell, axis=1)
    return np.repeat(shades[:, :, None], 3, axis=2)
