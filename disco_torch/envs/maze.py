"""Mazes: a way to one goal through corridors, with slips, pits, costs and time limits; success is rare by chance."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from disco_torch.envs.boards import draw_between, with_neighbours
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
MIN_LIMIT, MAX_LIMIT = 30, 499
SIGHT = 2
"""Cells that a local view reaches in every direction."""

View = Literal["position", "local", "coordinates"]


@tree_dataclass
class MazeLevel:
    """Rules of a level, for `C = side * side` cells; [B] each unless it says more."""

    walls: Tensor  # [B, C] bool
    pits: Tensor  # [B, C] bool
    starts: Tensor  # [B, C] bool, cells that episodes begin in
    goal: Tensor  # its cell
    prize: Tensor  # that the goal pays
    cost: Tensor  # of every step
    fine: Tensor  # for a pit
    slip: Tensor  # probability that a step goes in a random direction
    limit: Tensor  # steps after which a time limit cuts the episode


@tree_dataclass
class MazeEpisode:
    """Cell of the agent and steps so far, [B] each."""

    agent: Tensor
    time: Tensor


class Maze(LevelEnvironment):
    """Mazes of `rooms` by `rooms` cells that are joined by passages, `side = 2 rooms - 1` cells on a side.

    Actions 0 to 3: up, down, left, right; walls hold the agent. The goal and pits end the episode. A time limit cuts it and
    is no end. An episode begins at least two steps away from the goal and from any pit.

    What varies: the maze, which has 1 to `rooms` rows of rooms, more often many, and is turned at random; passages besides
    (none in half of the levels, else up to all); the goal; where episodes begin: anywhere, or in half of the levels always
    in one cell that is far away; pits (none in half of the levels, else up to a quarter of the cells; left out where they
    would block the way); the probability to slip (0 in half of the levels, else up to 1/3); and the limit, 30 to 499 steps
    and at least about 3 times the longest way. The goal pays 1. In two thirds of the levels every step has a cost, 0.1 to 2
    over the whole limit, and in a third of those the goal pays nothing but ends it. A pit is fined by what the whole limit
    costs and up to 1 besides.

    Levels are held out if `(number of walls + limit)` is a multiple of 5 and for validation if one more than that; no
    training level is either.

    Observations, float32, are chosen by `view`: "position", the agent's cell one-hot, [B, side * side]; "local", planes
    [B, 3, 5, 5] of walls, pits and the goal around the agent; or "coordinates", [B, 2], its row and column.
    """

    name = "maze"
    num_actions = 4
    splits = ("train", "validation", "held-out")
    truncates = True
    step_draws = 2

    def __init__(
        self,
        num_envs: int,
        *,
        rooms: int = 5,
        view: View = "position",
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if rooms < 3:
            raise ValueError(f"`rooms` must be at least 3, so that every level has a way to go, got {rooms}.")
        if view not in get_args(View):
            raise ValueError(f"`view` must be one of {', '.join(map(repr, get_args(View)))}, got {view!r}.")
        self.rooms, self.side, self.view = rooms, 2 * rooms - 1, view
        cells = self.side**2
        self.level_draws, self.episode_draws = 3 * rooms**2 + 3 * cells + 15, cells
        shape = {"position": (cells,), "local": (3, 2 * SIGHT + 1, 2 * SIGHT + 1), "coordinates": (2,)}[view]
        self.observation_example = torch.zeros(shape, dtype=torch.float32, device=self.device)
        self.observation_kinds = "numbers" if view == "coordinates" else "unit"
        self._cells = torch.arange(cells, device=self.device)
        self._moves = torch.tensor(MOVES, device=self.device)
        self._rooms = torch.arange(rooms, device=self.device)
        sight = torch.arange(2 * SIGHT + 1, device=self.device)
        self._sight = (sight[:, None] * (self.side + 2 * SIGHT) + sight).flatten()

    def draw_levels(self, uniforms: Tensor) -> MazeLevel:
        cells = self.side**2
        for_maze, for_pits, for_goal, for_start, of_level = uniforms.float().split(
            [3 * self.rooms**2, cells, cells, cells, 15], dim=1
        )
        u = of_level.unbind(1)
        walls = ~self._turned(self._passages(for_maze, *u[:2]), *u[2:5]).flatten(1)  # [B, C]
        goal = for_goal.masked_fill(walls, -1.0).argmax(1)
        share = torch.where(u[5] < 0.5, 0.0, 0.5 * (u[5] - 0.5))
        pits = (for_pits < share[:, None]) & ~walls & (self._cells != goal[:, None])
        steps = self.distances(walls | pits, goal)
        # Pits are left out where they would leave no cell to start from that is some way off.
        away = (steps >= 2) & (steps < cells) & ~self._near(pits)
        kept = ((steps * away).amax(1) >= self.rooms)[:, None]
        pits = pits & kept
        steps = torch.where(kept, steps, self.distances(walls, goal))
        away = torch.where(kept, away, (steps >= 2) & (steps < cells))
        longest = (steps * away).amax(1)
        far = away & (steps >= 0.6 * longest[:, None])
        one = self._cells == for_start.masked_fill(~far, -1.0).argmax(1)[:, None]
        limit = (MIN_LIMIT * (MAX_LIMIT / MIN_LIMIT) ** u[7]).long().clamp(max=MAX_LIMIT - 4)
        limit = torch.maximum(limit, 3 * longest) // 5 * 5 + (self.draw_remainder(u[8]) - walls.sum(1)) % 5
        total = torch.where(u[9] < 1 / 3, 0.0, draw_between(u[10], 0.1, 2.0))  # cost of the whole limit
        return MazeLevel(
            walls=walls,
            pits=pits,
            starts=torch.where(u[6][:, None] < 0.5, one, away),
            goal=goal,
            prize=((total == 0) | (u[11] < 2 / 3)).float(),
            cost=total / limit,
            fine=total + u[12],
            slip=torch.where(u[13] < 0.5, 0.0, u[14] / 3),
            limit=limit,
        )

    def begin(self, levels: MazeLevel, uniforms: Tensor) -> MazeEpisode:
        agent = uniforms.masked_fill(~levels.starts, -1.0).argmax(1)
        return MazeEpisode(agent, torch.zeros_like(agent))

    def advance(
        self, levels: MazeLevel, episode: MazeEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[MazeEpisode, Tensor, Tensor]:
        slips = uniforms[:, 0] < levels.slip
        moves = self._moves[torch.where(slips, draw_integers(uniforms[:, 1], UP, RIGHT), actions)]  # [B, 2]
        row = (episode.agent // self.side + moves[:, 0]).clamp(0, self.side - 1)
        column = (episode.agent % self.side + moves[:, 1]).clamp(0, self.side - 1)
        target = row * self.side + column
        agent = torch.where(levels.walls.gather(1, target[:, None])[:, 0], episode.agent, target)
        fell = levels.pits.gather(1, agent[:, None])[:, 0]
        arrived = agent == levels.goal
        rewards = arrived * levels.prize - fell * levels.fine - levels.cost
        return MazeEpisode(agent, episode.time + 1), rewards, arrived | fell

    def observe(self, levels: MazeLevel, episode: MazeEpisode) -> Tensor:
        row, column = episode.agent // self.side, episode.agent % self.side
        if self.view == "coordinates":
            return torch.stack([row, column], dim=1).float()
        if self.view == "position":
            return (self._cells == episode.agent[:, None]).float()
        here = torch.stack([~levels.walls, levels.pits, self._cells == levels.goal[:, None]], dim=1)  # [B, 3, C]
        wide = torch.nn.functional.pad(here.unflatten(2, (self.side, self.side)), [SIGHT] * 4).flatten(2)
        first = row * (self.side + 2 * SIGHT) + column  # upper left cell of what is seen
        seen = wide.gather(2, (first[:, None] + self._sight)[:, None].expand(-1, 3, -1))  # [B, 3, 25]
        planes = torch.cat([~seen[:, :1], seen[:, 1:]], dim=1)  # what is outside is wall
        return planes.float().unflatten(2, self.observation_example.shape[1:])

    def picture(self, levels: MazeLevel, episode: MazeEpisode) -> Tensor:
        """Planes [B, 4, side, side]: the agent, walls, the goal and pits."""
        agent, goal = (self._cells == cell[:, None] for cell in (episode.agent, levels.goal))
        return torch.stack([agent, levels.walls, goal, levels.pits], 1).float().unflatten(2, (self.side, self.side))

    def distances(self, blocked: Tensor, goal: Tensor) -> Tensor:
        """Steps from each cell to the goal, [B, C]; `C` or more where it cannot be reached in `2 rooms * rooms` steps."""
        reached = self._cells == goal[:, None]
        steps = torch.zeros_like(reached, dtype=torch.long)
        for _ in range(2 * self.rooms**2):  # no way through a maze without loops is longer
            steps = steps + ~reached
            reached = (reached | self._near(reached)) & ~blocked
        return torch.where(reached, steps, self.side**2)

    def _near(self, mask: Tensor) -> Tensor:
        """[B, C] bool, the cells of a mask and those beside them."""
        return with_neighbours(mask.unflatten(1, (self.side, self.side))).flatten(1)

    def _passages(self, uniforms: Tensor, height: Tensor, more: Tensor) -> Tensor:
        """Free cells of a maze, [B, side, side] bool.

        Each room has a passage up or to the left, by a coin; so all rooms are joined, without a loop. Then more are opened.
        """
        coin, for_up, for_left = uniforms.unflatten(1, (3, self.rooms, self.rooms)).unbind(1)
        top, leftmost = self._rooms[:, None] == 0, self._rooms == 0
        up = ((coin < 0.5) | leftmost) & ~top
        left = ~up & ~leftmost
        share = torch.where(more < 0.5, 0.0, 2.0 * more - 1.0)[:, None, None]
        up, left = up | ((for_up < share) & ~top), left | ((for_left < share) & ~leftmost)
        rows = draw_integers(height.sqrt(), 1, self.rooms)[:, None, None]
        inside = self._rooms[:, None] < rows  # [B, rooms, 1]
        room = inside.expand_as(up)
        blocks = torch.stack([torch.zeros_like(up), up & inside, left & inside, room], dim=3)  # [B, rooms, rooms, 4]
        free = blocks.unflatten(3, (2, 2)).transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [B, 2 rooms, 2 rooms]
        return free[:, 1:, 1:]

    def _turned(self, board: Tensor, *uniforms: Tensor) -> Tensor:
        """A board [B, side, side], each with its rows and columns turned around and exchanged or not."""
        board = torch.where(uniforms[0][:, None, None] < 0.5, board, board.flip(1))
        board = torch.where(uniforms[1][:, None, None] < 0.5, board, board.flip(2))
        return torch.where(uniforms[2][:, None, None] < 0.5, board, board.transpose(1, 2))
