"""Crossing: walk over a road through lanes of cars. In the spirit of MinAtar's Freeway (Young and Tian, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import Canvas, any_cell, check_canvas, choose, paint
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

UP, STAY, DOWN = range(3)
TIME_LIMIT = 50
LONGEST_PERIOD = 3


@tree_dataclass
class CrossingLevels:
    """What varies between levels. Every row of the canvas has the entries of a lane; rows off the road have no cars."""

    start: Tensor  # [B] row that a walk begins in
    column: Tensor  # [B] of the walker
    cars: Tensor  # [B, rows, columns] bool, where the cars of each lane are before any has moved
    heading: Tensor  # [B, rows] 1 for lanes to the right, -1 for lanes to the left
    period: Tensor  # [B, rows] steps that a car takes for a cell
    hit_ends: Tensor  # [B] bool


@tree_dataclass
class CrossingEpisode:
    """The time, the walker's row, [B] each, and how far each lane is ahead of the clock, [B, rows]."""

    clock: Tensor
    row: Tensor
    lead: Tensor


class Crossing(LevelEnvironment):
    """A walker goes up, stays or goes down in one column; cars drive around in the lanes above.

    Reaching row 0 pays 1 and the next walk begins. Besides, every row gained pays 0.1 and every row lost costs 0.1. Being
    hit throws the walker back to the start, which loses all rows gained, and in some levels ends the episode. It ends after
    50 steps. A walk begins one free row away from the road.

    Levels: the number of lanes (rows 1, 2, ...) and the walker's column; each lane's direction, its cars, and whether they
    take 1, 2 or 3 steps for a cell; whether a hit ends the episode. Held-out levels, and no others, have `rows - 4` lanes
    (train: `rows - 3` or `rows - 5`) and one car of two cells in each lane (train: one of one cell, two of one cell half the
    road apart, or one of three cells).

    Observations are planes [3, rows, columns]: the walker, the cars, and where the cars will be after the next step.
    """

    name = "crossing"
    num_actions = 3
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
        check_canvas(rows, columns, least_rows=6, least_columns=5)
        self.rows, self.columns = rows, columns
        self.level_draws, self.episode_draws = 3 + 3 * rows, rows
        self.canvas = Canvas(rows, columns, self.device)
        self.observation_example = torch.zeros(3, rows, columns, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        lanes = [rows - 3, rows - 5] if split == "train" else [rows - 4]
        traffic = [[0], [0, columns // 2], [0, 1, 2]] if split == "train" else [[0, 1]]
        self._lanes = torch.tensor(lanes, device=self.device)
        cars = [[float(column in cells) for column in range(columns)] for cells in traffic]
        self._traffic = torch.tensor(cars, device=self.device) > 0  # [patterns, columns]

    def draw_levels(self, uniforms: Tensor) -> CrossingLevels:
        of_level, of_lanes = uniforms[:, :3], uniforms[:, 3:].unflatten(1, (3, self.rows))  # [B, 3], [B, 3, rows]
        lanes = choose(of_level[:, 0], self._lanes)
        row_of = self.canvas.row_of
        on_road = (row_of >= 1) & (row_of <= lanes[:, None, None])  # [B, rows, 1]
        return CrossingLevels(
            start=lanes + 2,
            column=draw_integers(of_level[:, 1], 0, self.columns - 1),
            cars=choose(of_lanes[:, 0], self._traffic) & on_road,
            heading=2 * draw_integers(of_lanes[:, 1], 0, 1) - 1,
            period=draw_integers(of_lanes[:, 2], 1, LONGEST_PERIOD),
            hit_ends=of_level[:, 2] < 0.5,
        )

    def begin(self, levels: CrossingLevels, uniforms: Tensor) -> CrossingEpisode:
        lead = draw_integers(uniforms, 0, self.columns * levels.period - 1)
        return CrossingEpisode(clock=torch.zeros_like(levels.start), row=levels.start, lead=lead)

    def advance(
        self, levels: CrossingLevels, episode: CrossingEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[CrossingEpisode, Tensor, Tensor]:
        clock = episode.clock + 1
        row = torch.minimum((episode.row + actions - STAY).clamp(min=0), levels.start)
        hit = any_cell(self._cars(levels, episode.lead, clock) & self.canvas.cell(row, levels.column))
        crossed = row == 0
        row = torch.where(hit, levels.start, row)
        rewards = 0.1 * (episode.row - row).float() + crossed.float()
        following = CrossingEpisode(clock, torch.where(crossed, levels.start, row), episode.lead)
        return following, rewards, (hit & levels.hit_ends) | (clock >= TIME_LIMIT)

    def observe(self, levels: CrossingLevels, episode: CrossingEpisode) -> Tensor:
        walker = self.canvas.cell(episode.row, levels.column)
        now, then = (self._cars(levels, episode.lead, clock) for clock in (episode.clock, episode.clock + 1))
        return paint(walker, now, then)

    def _cars(self, levels: CrossingLevels, lead: Tensor, clock: Tensor) -> Tensor:
        """[B, rows, columns] bool, where the cars are at a time; a car that leaves on one side comes in on the other."""
        driven = (clock[:, None] + lead) // levels.period * levels.heading  # [B, rows] cells to the right
        came_from = (self.canvas.column_of - driven[:, :, None]) % self.columns  # [B, rows, columns]
        return levels.cars.gather(2, came_from)
