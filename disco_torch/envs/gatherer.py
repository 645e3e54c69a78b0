"""Gatherer: catch treasures, dodge enemies. In the spirit of MinAtar's Asterix (Young and Tian, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import Canvas, check_canvas, choose, draw_between, paint
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

STAY, UP, DOWN, LEFT, RIGHT = range(5)
TIME_LIMIT = 50
COST = 0.5


@tree_dataclass
class GathererLevels:
    """What varies between levels, [B] each."""

    arrivals: Tensor  # probability that a runner tries to come in with a step
    share: Tensor  # of the runners that are treasures
    period: Tensor  # steps that a runner takes for a cell
    value: Tensor  # of a treasure
    enemy_ends: Tensor  # bool


@tree_dataclass
class GathererEpisode:
    """Time and player, [B] each, and the one runner that each row may have, [B, rows] each."""

    clock: Tensor
    row: Tensor
    column: Tensor
    present: Tensor  # bool
    treasure: Tensor  # bool, else an enemy
    at: Tensor  # its column
    heading: Tensor  # 1 to the right, -1 to the left


class Gatherer(LevelEnvironment):
    """A player stays or goes up, down, left or right; runners cross the board in all rows but the first and the last.

    A runner comes in at random, at the left or the right end of a row that has none, and runs to the other side; all run at
    the same time. Each step the player moves, then the runners move; whom the player meets either time disappears. A
    treasure pays its value; an enemy ends the episode in some levels and costs 0.5 in the others. The episode ends after 50
    steps. It begins on an empty board, the player in the middle.

    Levels: how often runners come, with a probability of 0.6 to 1 a step; what share of them are treasures; how fast they
    run; what a treasure is worth, 0.5 or 1; what an enemy does. Held-out levels, and no others, have a share of 0.4 to 0.5
    (train: 0.25 to 0.4 or 0.5 to 0.75) and runners that take 2 steps for a cell (train: 1 or 3).

    Observations are planes [4, rows, columns]: the player, the enemies, the treasures, and where all runners will be after
    the next step.
    """

    name = "gatherer"
    num_actions = 5
    level_draws = 6
    episode_draws = 0
    step_draws = 4

    def __init__(
        self,
        num_envs: int,
        *,
        rows: int = 6,
        columns: int = 6,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        check_canvas(rows, columns, least_rows=4, least_columns=4)
        self.rows, self.columns = rows, columns
        self.canvas = Canvas(rows, columns, self.device)
        self.observation_example = torch.zeros(4, rows, columns, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        train = split == "train"
        shares = [[0.25, 0.4], [0.5, 0.75]] if train else [[0.4, 0.5]]
        self._shares = torch.tensor(shares, dtype=torch.float32, device=self.device)
        self._periods = torch.tensor([1, 3] if train else [2], device=self.device)
        self._values = torch.tensor([0.5, 1.0], dtype=torch.float32, device=self.device)
        self._downs = torch.tensor([0, -1, 1, 0, 0], device=self.device)
        self._rights = torch.tensor([0, 0, 0, -1, 1], device=self.device)

    def draw_levels(self, uniforms: Tensor) -> GathererLevels:
        low, high = choose(uniforms[:, 1], self._shares).unbind(1)
        return GathererLevels(
            arrivals=draw_between(uniforms[:, 0], 0.6, 1.0),
            share=draw_between(uniforms[:, 2], low, high),
            period=choose(uniforms[:, 3], self._periods),
            value=choose(uniforms[:, 4], self._values),
            enemy_ends=uniforms[:, 5] < 0.5,
        )

    def begin(self, levels: GathererLevels, uniforms: Tensor) -> GathererEpisode:
        clock = torch.zeros_like(levels.period)
        nowhere = torch.zeros_like(clock)[:, None].expand(-1, self.rows)  # [B, rows]
        none = nowhere > 0
        return GathererEpisode(clock, clock + self.rows // 2, clock + self.columns // 2, none, none, nowhere, nowhere + 1)

    def advance(
        self, levels: GathererLevels, episode: GathererEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[GathererEpisode, Tensor, Tensor]:
        row = (episode.row + self._downs[actions]).clamp(0, self.rows - 1)
        column = (episode.column + self._rights[actions]).clamp(0, self.columns - 1)
        here = self.canvas.row_of[:, 0] == row[:, None]  # [B, rows]
        # Before and after the runners move: two that pass through each other meet.
        met_first = episode.present & here & (episode.at == column[:, None])
        at = self._next_columns(levels, episode)
        present = episode.present & ~met_first & (at >= 0) & (at < self.columns)
        met_then = present & here & (at == column[:, None])
        met = met_first | met_then
        gained = (met & episode.treasure).any(1)
        struck = (met & ~episode.treasure).any(1)
        rewards = gained.float() * levels.value - COST * (struck & ~levels.enemy_ends).float()
        clock = episode.clock + 1
        moved = GathererEpisode(clock, row, column, present & ~met_then, episode.treasure, at, episode.heading)
        ends = (struck & levels.enemy_ends) | (clock >= TIME_LIMIT)
        return self._with_arrivals(levels, moved, uniforms), rewards, ends

    def observe(self, levels: GathererLevels, episode: GathererEpisode) -> Tensor:
        runners = self.canvas.in_each_row(episode.at) & episode.present[:, :, None]  # [B, rows, columns]
        ahead = self.canvas.in_each_row(self._next_columns(levels, episode)) & episode.present[:, :, None]
        treasure = episode.treasure[:, :, None]
        player = self.canvas.cell(episode.row, episode.column)
        return paint(player, runners & ~treasure, runners & treasure, ahead)

    def _next_columns(self, levels: GathererLevels, episode: GathererEpisode) -> Tensor:
        """[B, rows]: where each row's runner will be after the next step, maybe outside of the board."""
        run = (episode.clock + 1) % levels.period == 0  # [B]
        return episode.at + episode.heading * run[:, None]

    def _with_arrivals(self, levels: GathererLevels, episode: GathererEpisode, uniforms: Tensor) -> GathererEpisode:
        """After a runner may have come in; uniform numbers [B, 4] say whether, in which row, what and from where."""
        comes = uniforms[:, 0] < levels.arrivals
        row = draw_integers(uniforms[:, 1], 1, self.rows - 2)
        new = comes[:, None] & (self.canvas.row_of[:, 0] == row[:, None]) & ~episode.present  # [B, rows]
        treasure = (uniforms[:, 2] < levels.share)[:, None]
        from_right = draw_integers(uniforms[:, 3], 0, 1)[:, None]
        return GathererEpisode(
            episode.clock,
            episode.row,
            episode.column,
            present=episode.present | new,
            treasure=torch.where(new, treasure, episode.treasure),
            at=torch.where(new, from_right * (self.columns - 1), episode.at),
            heading=torch.where(new, 1 - 2 * from_right, episode.heading),
        )
