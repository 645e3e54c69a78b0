"""Bricks: keep a ball in play with a paddle and break the wall above. In the spirit of MinAtar (Young and Tian, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import Canvas, any_cell, check_canvas, choose, paint
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

LEFT, STAY, RIGHT = range(3)
TIME_LIMIT = 60
LOWEST_BRICKS = 3
GAPS = 0.25


@tree_dataclass
class BricksLevels:
    """What varies between levels, [B] each but the wall."""

    width: Tensor  # columns of the board
    wall: Tensor  # [B, rows, columns] bool, the whole wall
    paddle_width: Tensor
    stride: Tensor  # cells that the paddle moves in a step
    value: Tensor  # of a brick


@tree_dataclass
class BricksEpisode:
    """Where ball, paddle and bricks are, [B] each but the bricks.

    The ball always moves on a diagonal: `down` and `right` are 1 or -1. The paddle is on the last row, its left
    end in column `paddle`.
    """

    clock: Tensor
    row: Tensor
    column: Tensor
    down: Tensor
    right: Tensor
    paddle: Tensor
    bricks: Tensor  # [B, rows, columns] bool


class Bricks(LevelEnvironment):
    """A ball bounces off the sides, the top, the bricks and the paddle; actions move the paddle left, not, or right.

    A brick that the ball runs into is broken, pays its value, and throws the ball back; when all are broken the wall comes
    back. A paddle that moves as it hits the ball sends it the way it moves. The episode ends when the paddle misses the
    ball, or after 60 steps. It begins with the ball just above the paddle's row, on its way up.

    Levels: the board is the left `width` columns of the canvas; 1 to 3 rows of bricks, the lowest in row 3, with a gap in
    about every fourth place; a paddle of 1 or 2 cells, which moves 1 or 2 cells a step, at most its width; a brick is worth
    0.5 or 1. Held-out levels, and no others, have a board of `columns - 1` columns (train: `columns` or `columns - 2`) and 2
    rows of bricks (train: 1 or 3).

    Observations are planes [4, rows, columns]: what the ball bounces off (the paddle, and all columns outside of the board),
    the ball, the cell ahead of it, and the bricks.
    """

    name = "bricks"
    num_actions = 3
    episode_draws = 2
    step_draws = 0

    def __init__(
        self,
        num_envs: int,
        *,
        rows: int = 8,
        columns: int = 6,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        check_canvas(rows, columns, least_rows=7, least_columns=4)
        self.rows, self.columns = rows, columns
        self.level_draws = 5 + rows * columns
        self.canvas = Canvas(rows, columns, self.device)
        self.observation_example = torch.zeros(4, rows, columns, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        widths, brick_rows = ([columns, columns - 2], [1, 3]) if split == "train" else ([columns - 1], [2])
        self._widths = torch.tensor(widths, device=self.device)
        self._brick_rows = torch.tensor(brick_rows, device=self.device)
        self._values = torch.tensor([0.5, 1.0], dtype=torch.float32, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> BricksLevels:
        width = choose(uniforms[:, 0], self._widths)
        brick_rows = choose(uniforms[:, 1], self._brick_rows)
        paddle_width = draw_integers(uniforms[:, 2], 1, 2)
        stride = torch.minimum(draw_integers(uniforms[:, 3], 1, 2), paddle_width)
        row_of, column_of = self.canvas.row_of, self.canvas.column_of
        in_wall = (row_of <= LOWEST_BRICKS) & (row_of > LOWEST_BRICKS - brick_rows[:, None, None])  # [B, rows, 1]
        kept = uniforms[:, 5:].unflatten(1, (self.rows, self.columns)) >= GAPS  # [B, rows, columns]
        kept = kept | ((row_of == LOWEST_BRICKS) & (column_of == 0))  # no wall is empty
        wall = in_wall & kept & (column_of < width[:, None, None])
        return BricksLevels(width, wall, paddle_width, stride, value=choose(uniforms[:, 4], self._values))

    def begin(self, levels: BricksLevels, uniforms: Tensor) -> BricksEpisode:
        column = draw_integers(uniforms[:, 0], 0, levels.width - 1)
        ones = torch.ones_like(column)
        return BricksEpisode(
            clock=0 * ones,
            row=(self.rows - 2) * ones,
            column=column,
            down=-ones,
            right=turned_at_sides(2 * draw_integers(uniforms[:, 1], 0, 1) - 1, column, levels.width),
            paddle=(levels.width - levels.paddle_width) // 2,
            bricks=levels.wall,
        )

    def advance(
        self, levels: BricksLevels, episode: BricksEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[BricksEpisode, Tensor, Tensor]:
        paddle = (episode.paddle + (actions - STAY) * levels.stride).clamp(min=0)
        paddle = torch.minimum(paddle, levels.width - levels.paddle_width)
        # The cell ahead is always on the board: the ball turns as soon as it is at a side.
        ahead_row, ahead_column = episode.row + episode.down, episode.column + episode.right
        ahead = self.canvas.cell(ahead_row, ahead_column)
        breaks = any_cell(episode.bricks & ahead)
        at_bottom = ahead_row == self.rows - 1
        on_paddle = (ahead_column >= paddle) & (ahead_column < paddle + levels.paddle_width)
        caught, lost = at_bottom & on_paddle, at_bottom & ~on_paddle
        thrown_back = breaks | caught
        row = torch.where(thrown_back, episode.row, ahead_row)
        # Off the paddle the ball keeps moving sideways: on diagonals alone it would only ever reach every other cell.
        column = torch.where(breaks, episode.column, ahead_column)
        down = torch.where(thrown_back, -episode.down, episode.down).masked_fill(row == 0, 1)
        right = torch.where(caught & (actions != STAY), actions - STAY, episode.right)
        bricks = episode.bricks & ~ahead
        bricks = torch.where(any_cell(bricks)[:, None, None], bricks, levels.wall)
        clock = episode.clock + 1
        following = BricksEpisode(clock, row, column, down, turned_at_sides(right, column, levels.width), paddle, bricks)
        return following, breaks.float() * levels.value, lost | (clock >= TIME_LIMIT)

    def observe(self, levels: BricksLevels, episode: BricksEpisode) -> Tensor:
        canvas = self.canvas
        left, right = episode.paddle[:, None, None], (episode.paddle + levels.paddle_width)[:, None, None]
        paddle = (canvas.row_of == self.rows - 1) & (canvas.column_of >= left) & (canvas.column_of < right)
        outside = canvas.column_of >= levels.width[:, None, None]
        ball = canvas.cell(episode.row, episode.column)
        ahead = canvas.cell(episode.row + episode.down, episode.column + episode.right)
        return paint(paddle | outside, ball, ahead, episode.bricks)


def turned_at_sides(right: Tensor, column: Tensor, width: Tensor) -> Tensor:
    """The ball's next way, 1 or -1, [B]: into the board where it is at a side."""
    return right.masked_fill(column == 0, 1).masked_fill(column == width - 1, -1)
