"""Catch variants: boards, paddles, winds, actions and rewards that vary from level to level."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

MAX_BALLS = 3
ORDERS = tuple(itertools.permutations((-1, 0, 1)))
"""What the three actions may do to the paddle, one row for each order; the first is left, stay, right."""


@tree_dataclass
class CatchLevel:
    """Rules of a level, [B] each but `moves` [B, 3].

    `order` is the row of `ORDERS` that `moves` is. `gust` is the probability of wind in a step, `lean` that a gust blows to
    the right. `gap` are the steps between two balls. `catch` and `miss` are rewards.
    """

    width: Tensor
    height: Tensor
    paddle: Tensor
    balls: Tensor
    gap: Tensor
    order: Tensor
    moves: Tensor
    gust: Tensor
    lean: Tensor
    catch: Tensor
    miss: Tensor
    random_start: Tensor


@tree_dataclass
class CatchEpisode:
    """Left end of the paddle [B]; row and column of each ball [B, MAX_BALLS], counted on the level's own board.

    A ball with a negative row is still to come. One that lies at the paddle's row or below has been scored.
    """

    paddle: Tensor
    rows: Tensor
    columns: Tensor


class CatchVariants(LevelEnvironment):
    """`num_envs` games of Catch by the rules of their levels.

    1 to 3 balls fall, `gap` steps apart, one row a step. Each that reaches the paddle's row pays `catch` or `miss`; the
    last one ends the episode. Wind moves all flying balls by one column, except in the step in which a ball lands, so that
    a paddle that stays below the ball catches it. A ball starts where the paddle can be in time, even if its first move goes
    the wrong way.

    What varies: the board, 4 to `columns` wide and 5 to `rows` high (at most 3 less than the canvas), the paddle's width
    (1 to 3), the number of balls and their gap (2 or 3), wind (none in half of the levels, else with a probability of 0.1
    to 0.3, from one side or from both), what each action does (6 orders), whether the paddle starts in the middle or
    anywhere, and the rewards: 0.5 to 1 and 0 to -1. In a quarter of the levels balls are to be dodged: the two rewards
    change places, and the paddle is at most 2 wide.

    Levels are held out if `(width + height + paddle + balls + order)` is a multiple of 3; no training level is one. Both
    splits have every value of every parameter.

    Observations are canvases, [B, rows, columns] float32, 1 at balls and paddle. The board is at the bottom left, so that
    the paddle is always on the last row.
    """

    name = "catch-variants"
    num_actions = 3
    level_draws = 13
    episode_draws = 1 + MAX_BALLS
    step_draws = 2

    def __init__(
        self,
        num_envs: int,
        *,
        rows: int = 7,
        columns: int = 7,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if rows < 5:
            raise ValueError(f"`rows` must be at least 5, so that there is time to move, got {rows}.")
        if columns < 4:
            raise ValueError(f"`columns` must be at least 4, so that there is somewhere to move, got {columns}.")
        self.rows, self.columns = rows, columns
        self.observation_example = torch.zeros(rows, columns, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._orders = torch.tensor(ORDERS, device=self.device)
        self._ball_numbers = torch.arange(MAX_BALLS, device=self.device)
        self._row_numbers = torch.arange(rows, device=self.device)
        self._column_numbers = torch.arange(columns, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> CatchLevel:
        u = uniforms.unbind(1)
        width = draw_integers(u[0], max(4, self.columns - 3), self.columns)
        height = draw_integers(u[1], max(5, self.rows - 3), self.rows)
        dodge = u[2] < 0.25
        paddle = draw_integers(u[3], 1, torch.where(dodge, 2, 3))
        balls = draw_integers(u[4], 1, MAX_BALLS)
        # The remainder that the split asks for picks one of three pairs of orders.
        remainder = 0 if self.split == "held-out" else draw_integers(u[5], 1, 2)
        order = (remainder - width - height - paddle - balls) % 3 + 3 * draw_integers(u[6], 0, 1)
        good, bad = (0.5 + 0.5 * u[7]).float(), -u[8].float()
        return CatchLevel(
            width=width,
            height=height,
            paddle=paddle,
            balls=balls,
            gap=draw_integers(u[9], 2, 3),
            order=order,
            moves=self._orders[order],  # [B, 3]
            gust=torch.where(u[10] < 0.5, 0.0, 0.1 + 0.4 * (u[10] - 0.5)).float(),
            lean=0.5 * draw_integers(u[11], 0, 2).float(),
            catch=torch.where(dodge, bad, good),
            miss=torch.where(dodge, good, bad),
            random_start=u[12] < 0.5,
        )

    def begin(self, levels: CatchLevel, uniforms: Tensor) -> CatchEpisode:
        places = levels.width - levels.paddle
        anywhere = draw_integers(uniforms[:, 0], 0, places)
        paddle = torch.where(levels.random_start, anywhere, places // 2)
        columns, low, high = [], paddle, paddle + levels.paddle - 1
        reach = levels.height - 3
        for i in range(MAX_BALLS):
            column = draw_integers(
                uniforms[:, 1 + i], (low - reach).clamp(min=0), torch.minimum(high + reach, levels.width - 1)
            )
            columns.append(column)
            low = high = column
            reach = levels.gap
        # Balls beyond the level's number lie below the board from the start.
        rows = torch.where(
            self._ball_numbers < levels.balls[:, None], -self._ball_numbers * levels.gap[:, None], levels.height[:, None]
        )
        return CatchEpisode(paddle, rows, torch.stack(columns, dim=1))

    def advance(
        self, levels: CatchLevel, episode: CatchEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[CatchEpisode, Tensor, Tensor]:
        last_row = levels.height[:, None] - 1
        move = levels.moves.gather(1, actions[:, None])[:, 0]
        paddle = torch.minimum((episode.paddle + move).clamp(min=0), levels.width - levels.paddle)
        rows = episode.rows + 1
        side = torch.where(uniforms[:, 1] < levels.lean, 1, -1)
        wind = torch.where(uniforms[:, 0] < levels.gust, side, 0)[:, None]
        flies = (episode.rows >= 0) & (rows < last_row)  # [B, MAX_BALLS]
        columns = torch.minimum((episode.columns + wind * flies).clamp(min=0), levels.width[:, None] - 1)

        landed = rows == last_row
        offset = columns - paddle[:, None]
        caught = (offset >= 0) & (offset < levels.paddle[:, None])
        paid = torch.where(caught, levels.catch[:, None], levels.miss[:, None])
        rewards = (paid * landed).sum(1)
        ends = (rows >= last_row).all(1)
        return CatchEpisode(paddle, rows, columns), rewards, ends

    def observe(self, levels: CatchLevel, episode: CatchEpisode) -> Tensor:
        top = self.rows - levels.height  # the board's first row on the canvas
        # A ball that is still to come has no row, also where the canvas has rows above the board.
        visible = (episode.rows >= 0) & (episode.rows < levels.height[:, None] - 1)
        in_row = (self._row_numbers == (episode.rows + top[:, None])[..., None]) & visible[..., None]  # [B, MAX_BALLS, rows]
        in_column = self._column_numbers == episode.columns[..., None]  # [B, MAX_BALLS, columns]
        balls = (in_row[..., None] & in_column[:, :, None]).any(1)  # [B, rows, columns]
        offset = self._column_numbers - episode.paddle[:, None]
        paddle = (offset >= 0) & (offset < levels.paddle[:, None])  # [B, columns]
        on_last_row = (self._row_numbers == self.rows - 1)[:, None]  # [rows, 1]
        return (balls | (paddle[:, None] & on_last_row)).float()
