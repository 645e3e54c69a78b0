"""Invaders: shoot aliens that march down in formation. In the spirit of MinAtar's Space Invaders (Young and Tian, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import Canvas, any_cell, check_canvas, choose, draw_between, paint
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

LEFT, STAY, RIGHT, SHOOT = range(4)
TIME_LIMIT = 60

FORMATIONS: dict[Split, list[tuple[str, str]]] = {
    "train": [("xxxx", "...."), ("xxx.", "xxx."), ("x..x", "x..x"), ("x.x.", ".x.x"), (".xx.", "x..x")],
    "held-out": [("x..x", ".xx."), ("xx..", "..xx"), ("xxxx", ".xx.")],
}


@tree_dataclass
class InvadersLevels:
    """What varies between levels, [B] each but the wave."""

    wave: Tensor  # [B, rows, columns] bool, the aliens as they come
    heading: Tensor  # 1 if they first march to the right, -1 to the left
    period: Tensor  # steps between two moves of the aliens
    bombing: Tensor  # probability that an alien tries to drop a bomb with a step
    value: Tensor  # of an alien


@tree_dataclass
class InvadersEpisode:
    """Time, player, its one shot (in row -1 where there is none) and the way of the aliens, [B] each; aliens and bombs."""

    clock: Tensor
    column: Tensor
    shot_row: Tensor
    shot_column: Tensor
    heading: Tensor
    aliens: Tensor  # [B, rows, columns] bool
    bombs: Tensor  # [B, rows, columns] bool


class Invaders(LevelEnvironment):
    """A player on the last row moves left, stays, moves right, or shoots.

    The shot flies up one cell a step, and there is one at a time; the alien that it meets is gone and pays its value. The
    aliens march to the side, all together; where one has reached the side they go down a row instead and turn. When all are
    gone the next wave comes. At random columns the lowest alien drops a bomb, which falls one cell a step. A bomb that hits
    the player ends the episode, as does an alien on the last row; it ends after 60 steps. It begins without bombs, the
    player in the middle.

    Levels: the formation and where it begins, which way it marches first, how many steps between two moves, how often bombs
    fall, with a probability of 0.1 to 0.4 a step, and what an alien is worth, 0.5 or 1. Held-out levels, and no
    others, have the formations that `FORMATIONS` names for them and aliens that move every 3 steps (train: 2 or 4).

    Observations are planes [4, rows, columns]: the player and its shot, the aliens, where they will be after the next step
    unless shot, and the bombs.
    """

    name = "invaders"
    num_actions = 4
    level_draws = 6
    episode_draws = 0
    step_draws = 2

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
        self.canvas = Canvas(rows, columns, self.device)
        self.observation_example = torch.zeros(4, rows, columns, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        starts = [[self._wave(formation, start) for start in range(columns - 3)] for formation in FORMATIONS[split]]
        self._waves = torch.tensor(starts, device=self.device) > 0  # [formations, starts, rows, columns]
        self._periods = torch.tensor([2, 4] if split == "train" else [3], device=self.device)
        self._values = torch.tensor([0.5, 1.0], dtype=torch.float32, device=self.device)
        self._moves = torch.tensor([-1, 0, 1, 0], device=self.device)

    def draw_levels(self, uniforms: Tensor) -> InvadersLevels:
        formations, starts = self._waves.shape[:2]
        return InvadersLevels(
            wave=self._waves[draw_integers(uniforms[:, 0], 0, formations - 1), draw_integers(uniforms[:, 1], 0, starts - 1)],
            heading=2 * draw_integers(uniforms[:, 2], 0, 1) - 1,
            period=choose(uniforms[:, 3], self._periods),
            bombing=draw_between(uniforms[:, 4], 0.1, 0.4),
            value=choose(uniforms[:, 5], self._values),
        )

    def begin(self, levels: InvadersLevels, uniforms: Tensor) -> InvadersEpisode:
        clock = torch.zeros_like(levels.period)
        middle, no_bombs = clock + self.columns // 2, torch.zeros_like(levels.wave)
        return InvadersEpisode(clock, middle, clock - 1, middle, levels.heading, levels.wave, no_bombs)

    def advance(
        self, levels: InvadersLevels, episode: InvadersEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[InvadersEpisode, Tensor, Tensor]:
        column = (episode.column + self._moves[actions]).clamp(0, self.columns - 1)
        fires = (actions == SHOOT) & (episode.shot_row < 0)
        shot_row = (episode.shot_row.masked_fill(fires, self.rows - 1) - 1).clamp(min=-1)
        shot_column = torch.where(fires, column, episode.shot_column)
        shot = self.canvas.cell(shot_row, shot_column)
        # The shot flies, then the aliens march; it may meet one either time.
        hits_first = any_cell(episode.aliens & shot)
        aliens, heading = self._march(levels, episode.clock, episode.aliens & ~shot, episode.heading)
        shot = shot & ~hits_first[:, None, None]
        hits = hits_first | any_cell(aliens & shot)
        aliens = aliens & ~shot
        landed = aliens[:, -1].any(1)
        bombs = shifted_down(episode.bombs)
        bombed = any_cell(bombs & self.canvas.cell(torch.full_like(column, self.rows - 1), column))
        bombs = bombs | self._drops(levels, aliens, uniforms)
        gone = ~any_cell(aliens)
        aliens = torch.where(gone[:, None, None], levels.wave, aliens)
        heading = torch.where(gone, levels.heading, heading)
        clock = episode.clock + 1
        following = InvadersEpisode(clock, column, shot_row.masked_fill(hits, -1), shot_column, heading, aliens, bombs)
        return following, hits.float() * levels.value, bombed | landed | (clock >= TIME_LIMIT)

    def observe(self, levels: InvadersLevels, episode: InvadersEpisode) -> Tensor:
        player = self.canvas.cell(torch.full_like(episode.column, self.rows - 1), episode.column)
        shot = self.canvas.cell(episode.shot_row, episode.shot_column)
        ahead, _ = self._march(levels, episode.clock, episode.aliens, episode.heading)
        return paint(player | shot, episode.aliens, ahead, episode.bombs)

    def _march(self, levels: InvadersLevels, clock: Tensor, aliens: Tensor, heading: Tensor) -> tuple[Tensor, Tensor]:
        """Aliens and their way after the step that begins at `clock`."""
        moves = (clock + 1) % levels.period == 0  # [B]
        to_right = heading > 0
        turns = torch.where(to_right, aliens[:, :, -1].any(1), aliens[:, :, 0].any(1))
        sideways = torch.where(to_right[:, None, None], aliens.roll(1, 2), aliens.roll(-1, 2))
        marched = torch.where(turns[:, None, None], shifted_down(aliens), sideways)
        return torch.where(moves[:, None, None], marched, aliens), torch.where(moves & turns, -heading, heading)

    def _drops(self, levels: InvadersLevels, aliens: Tensor, uniforms: Tensor) -> Tensor:
        """[B, rows, columns] bool: the new bomb, if any, still at the alien that drops it."""
        column = draw_integers(uniforms[:, 1], 0, self.columns - 1)
        aliens_from_here_down = aliens.flip(1).cumsum(1).flip(1)
        lowest = aliens & (aliens_from_here_down == 1)
        drops = (uniforms[:, 0] < levels.bombing)[:, None, None]
        return lowest & drops & (self.canvas.column_of == column[:, None, None])

    def _wave(self, formation: tuple[str, str], start: int) -> list[list[float]]:
        """A formation on the canvas, its left end in column `start`."""
        lines = [("." * start + line).ljust(self.columns, ".") for line in formation]
        lines += ["." * self.columns] * (self.rows - len(lines))
        return [[float(mark == "x") for mark in line] for line in lines]


def shifted_down(mask: Tensor) -> Tensor:
    """A mask [B, rows, columns] one row further down; what was on the last row is gone."""
    return torch.cat([torch.zeros_like(mask[:, :1]), mask[:, :-1]], dim=1)
