"""Grid worlds: walls, and objects that pay, end the episode and come back, each by its own odds."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import with_neighbours
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

MAX_KINDS = 4
STAY, UP, DOWN, LEFT, RIGHT = range(5)
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Rows and columns that each action moves by."""
MIN_CELLS = 5 * MAX_KINDS + 1
"""Cells that can be reached in every level: wherever the objects lie, one of them is not beside any."""


@tree_dataclass
class GridLevel:
    """Rules of a level, for `C = size * size` cells and `K = MAX_KINDS` objects.

    Attributes:
      walls: [B, C] bool.
      exists: [B, K] bool, which kinds of objects the level has.
      values: [B, K], what each pays when it is collected.
      ends: [B, K], probability that collecting it ends the episode.
      returns: [B, K], probability in each step that it comes back after it was collected.
      places: [B, K], cells of the objects where they are `fixed`.
      fixed: [B] bool, whether objects lie in the same cells in every episode.
      slip: [B], probability that a step goes in a random direction.
      limit: [B], steps after which an episode ends.
    """

    walls: Tensor
    exists: Tensor
    values: Tensor
    ends: Tensor
    returns: Tensor
    places: Tensor
    fixed: Tensor
    slip: Tensor
    limit: Tensor


@tree_dataclass
class GridEpisode:
    """Cell of the agent [B], cells of the objects [B, K], which of them lie there now [B, K], and steps so far [B]."""

    agent: Tensor
    places: Tensor
    present: Tensor
    time: Tensor


class GridWorld(LevelEnvironment):
    """`num_envs` grid worlds, in the spirit of Oh et al., "Discovering Reinforcement Learning Algorithms" (2020).

    Actions 0 to 4: stay, up, down, left, right; walls and the border hold the agent. It collects an object by being in its
    cell. The agent begins in a random cell that is not beside an object, so that the first action collects nothing.

    What varies: walls (up to a fifth of the cells before those that cannot be reached are filled), 2 to 4 objects and
    whether they lie in the same cells in every episode, and for each object its value, the probability that it ends the
    episode (0 in half of the cases) and that it comes back (0 in half of the cases, else up to 0.2 in each step), the
    probability to slip (0 in half of the levels, else up to 0.2), and the limit of 16 to 39 steps, which is an end like any
    other. The first object is worth 0.5 to 1, the second -0.5 to -1, the others -1 to 1.

    Levels are held out if `(number of walls + number of objects + limit)` is a multiple of 4; no training level is one.

    Observations are planes, [B, 2 + MAX_KINDS, size, size] float32: the agent, the walls, and one for each object.
    """

    name = "grid"
    num_actions = 5
    step_draws = 3 + MAX_KINDS

    def __init__(
        self,
        num_envs: int,
        *,
        size: int = 6,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if size < 5:
            raise ValueError(f"`size` must be at least 5, so that the agent finds a place beside no object, got {size}.")
        self.size = size
        cells = size * size
        self.level_draws = 2 * cells + 5 * MAX_KINDS + 6
        self.episode_draws = cells
        self.observation_example = torch.zeros(2 + MAX_KINDS, size, size, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._cells = torch.arange(cells, device=self.device)
        self._moves = torch.tensor(MOVES, device=self.device)
        self._kinds = torch.arange(MAX_KINDS, device=self.device)
        rows, columns = self._cells // size, self._cells % size
        apart = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
        self._near = apart <= 1  # [C, C], a cell is near itself
        sign = torch.tensor([[0.5, 0.5], [-0.5, -0.5]] + [[-1.0, 2.0]] * (MAX_KINDS - 2), device=self.device)
        self._value_low, self._value_span = sign.unbind(1)

    def draw_levels(self, uniforms: Tensor) -> GridLevel:
        cells = self.size**2
        for_walls, for_places, kinds, u = uniforms.split([cells, cells, 5 * MAX_KINDS, 6], dim=1)
        value, has_end, end, has_return, comes_back = kinds.unflatten(1, (5, MAX_KINDS)).unbind(1)
        density, number, limit, remainder, fixed, slip = u.unbind(1)

        walls = self._fill_unreachable(for_walls < 0.2 * density[:, None])
        number = draw_integers(number, 2, MAX_KINDS)
        # The remainder that the split asks for picks one of four limits in a row.
        split = 0 if self.split == "held-out" else draw_integers(remainder, 1, 3)
        limit = (split - walls.sum(1) - number) % 4 + 4 * draw_integers(limit, 4, 9)
        return GridLevel(
            walls=walls,
            exists=self._kinds < number[:, None],
            values=(self._value_low + self._value_span * value).float(),
            ends=torch.where(has_end < 0.5, 0.0, end).float(),
            returns=torch.where(has_return < 0.5, 0.0, 0.2 * comes_back).float(),
            places=self._scatter(walls, for_places),
            fixed=fixed < 0.5,
            slip=torch.where(slip < 0.5, 0.0, 0.4 * (slip - 0.5)).float(),
            limit=limit,
        )

    def begin(self, levels: GridLevel, uniforms: Tensor) -> GridEpisode:
        places = torch.where(levels.fixed[:, None], levels.places, self._scatter(levels.walls, uniforms))
        # The objects took the cells of the lowest numbers: the highest one elsewhere is as random as ever.
        taken = self._near[places].any(1) | levels.walls  # [B, C]
        agent = uniforms.masked_fill(taken, -1.0).argmax(1)
        return GridEpisode(agent, places, levels.exists, torch.zeros_like(agent))

    def advance(
        self, levels: GridLevel, episode: GridEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[GridEpisode, Tensor, Tensor]:
        slips = uniforms[:, 0] < levels.slip
        moves = self._moves[torch.where(slips, draw_integers(uniforms[:, 1], UP, RIGHT), actions)]  # [B, 2]
        row = (episode.agent // self.size + moves[:, 0]).clamp(0, self.size - 1)
        column = (episode.agent % self.size + moves[:, 1]).clamp(0, self.size - 1)
        target = row * self.size + column
        blocked = levels.walls.gather(1, target[:, None])[:, 0]
        agent = torch.where(blocked, episode.agent, target)

        collected = episode.present & (episode.places == agent[:, None])  # [B, K], at most one
        rewards = (collected * levels.values).sum(1)
        time = episode.time + 1
        ends = (uniforms[:, 2] < (collected * levels.ends).sum(1)) | (time >= levels.limit)
        back = levels.exists & ~episode.present & (uniforms[:, 3:] < levels.returns)
        present = (episode.present & ~collected) | back
        return GridEpisode(agent, episode.places, present, time), rewards, ends

    def observe(self, levels: GridLevel, episode: GridEpisode) -> Tensor:
        agent = self._cells == episode.agent[:, None]  # [B, C]
        objects = (self._cells == episode.places[..., None]) & episode.present[..., None]  # [B, K, C]
        planes = torch.cat([agent[:, None], levels.walls[:, None], objects], dim=1)
        return planes.float().unflatten(2, (self.size, self.size))  # [B, 2 + K, size, size]

    def _scatter(self, walls: Tensor, uniforms: Tensor) -> Tensor:
        """Different free cells for the objects, [B, K], from a number for each cell [B, C]: those of the lowest."""
        return uniforms.masked_fill(walls, 2.0).topk(MAX_KINDS, dim=1, largest=False).indices

    def _fill_unreachable(self, walls: Tensor) -> Tensor:
        """Walls [B, C] where the cell in the middle can be reached from every free cell.

        The middle is freed, and cells that cannot be reached from it become walls. Where too few are left there are no
        walls at all.
        """
        middle = self._cells == self.size // 2 * self.size + self.size // 2
        free = (~walls | middle).unflatten(1, (self.size, self.size))
        reached = middle.unflatten(0, (self.size, self.size)) & free  # [B, size, size]
        for _ in range(self.size**2):  # no way is longer
            reached = with_neighbours(reached) & free
        reached = reached.flatten(1)
        return ~reached & (reached.sum(1) >= MIN_CELLS)[:, None]
