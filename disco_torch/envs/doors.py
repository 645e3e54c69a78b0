"""Doors: fetch a key, open a door with it, and reach the goal behind; rewards on the way, or none."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import draw_between
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

UP, DOWN, LEFT, RIGHT = range(4)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
MIN_LIMIT, MAX_LIMIT = 60, 299


@tree_dataclass
class DoorsLevel:
    """Rules of a level, for `C = size * size` cells; [B] each unless it says more."""

    walls: Tensor  # [B, C] bool
    near: Tensor  # [B, C] bool, the room that episodes begin in
    door: Tensor  # its cell
    layout: Tensor  # [B, C] numbers by which key and goal lie where they are fixed
    fixed: Tensor  # bool, whether key and goal lie in the same cells in every episode
    for_key: Tensor  # reward for taking the key
    for_door: Tensor  # reward for opening the door
    cost: Tensor  # of every step
    slip: Tensor  # probability that a step goes in a random direction
    limit: Tensor  # steps after which a time limit cuts the episode


@tree_dataclass
class DoorsEpisode:
    """Cells of agent, key and goal, whether the agent has the key, whether the door is open, and steps so far, [B] each."""

    agent: Tensor
    key: Tensor
    goal: Tensor
    has_key: Tensor
    is_open: Tensor
    time: Tensor


class Doors(LevelEnvironment):
    """A wall with a locked door divides a board of `size` by `size` cells; the key lies on this side, the goal beyond.

    Actions 0 to 3: up, down, left, right. The agent takes the key by walking over it; with the key it walks through the
    door, which is open from then on, without it the door is a wall. The goal pays 1 and ends the episode. A time limit cuts
    it and is no end.

    What varies: where the wall and the door are, and which way round; whether key and goal lie in the same cells in every
    episode; rewards for the key and the door, up to 0.5 each (none in half of the levels); a cost of every step, 0.1 to 1
    over the whole limit (none in half of the levels); the probability to slip (0 in half of the levels, else up to 0.2);
    the limit, 60 to 299 steps. The agent begins anywhere on its side but on the key.

    Levels are held out if `(number of cells on this side + cell of the door + limit)` is a multiple of 5 and for validation
    if one more than that; no training level is either.

    Observations are planes, [B, 5, size, size] float32: the agent, the walls, the door while it is closed, the key while it
    lies there, and the goal.
    """

    name = "doors"
    num_actions = 4
    splits = ("train", "validation", "held-out")
    truncates = True
    step_draws = 2

    def __init__(
        self,
        num_envs: int,
        *,
        size: int = 7,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if size < 5:
            raise ValueError(f"`size` must be at least 5, so that a wall divides every board, got {size}.")
        self.size = size
        self.level_draws, self.episode_draws = size**2 + 14, 2 * size**2
        self.observation_example = torch.zeros(5, size, size, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._cells = torch.arange(size**2, device=self.device)
        self._moves = torch.tensor(MOVES, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> DoorsLevel:
        layout, of_level = uniforms.float().split([self.size**2, 14], dim=1)
        u = of_level.unbind(1)
        rows, columns = self._cells // self.size, self._cells % self.size
        is_turned = u[0][:, None] < 0.5
        across, along = torch.where(is_turned, rows, columns), torch.where(is_turned, columns, rows)  # [B, C]
        across = torch.where(u[1][:, None] < 0.5, across, self.size - 1 - across)
        wall, gap = draw_integers(u[2], 2, self.size - 2)[:, None], draw_integers(u[3], 0, self.size - 1)[:, None]
        near, in_wall = across < wall, across == wall
        door = (in_wall & (along == gap)).int().argmax(1)
        remainder = self.draw_remainder(u[4]) - near.sum(1) - door
        limit = draw_integers(u[5], MIN_LIMIT // 5, MAX_LIMIT // 5) * 5 + remainder % 5
        total = torch.where(u[6] < 0.5, 0.0, draw_between(u[7], 0.1, 1.0))  # cost of the whole limit
        helps = u[8] < 0.5
        return DoorsLevel(
            walls=in_wall & (along != gap),
            near=near,
            door=door,
            layout=layout,
            fixed=u[9] < 0.5,
            for_key=torch.where(helps, 0.5 * u[10], 0.0),
            for_door=torch.where(helps, 0.5 * u[11], 0.0),
            cost=total / limit,
            slip=torch.where(u[12] < 0.5, 0.0, 0.2 * u[13]),
            limit=limit,
        )

    def begin(self, levels: DoorsLevel, uniforms: Tensor) -> DoorsEpisode:
        for_things, for_agent = uniforms.float().chunk(2, dim=1)
        layout = torch.where(levels.fixed[:, None], levels.layout, for_things)
        beyond = ~levels.near & ~levels.walls & (self._cells != levels.door[:, None])
        key, goal = (layout.masked_fill(~side, -1.0).argmax(1) for side in (levels.near, beyond))
        agent = for_agent.masked_fill(~levels.near | (self._cells == key[:, None]), -1.0).argmax(1)
        no = torch.zeros_like(levels.fixed)
        return DoorsEpisode(agent, key, goal, has_key=no, is_open=no, time=torch.zeros_like(agent))

    def advance(
        self, levels: DoorsLevel, episode: DoorsEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[DoorsEpisode, Tensor, Tensor]:
        slips = uniforms[:, 0] < levels.slip
        moves = self._moves[torch.where(slips, draw_integers(uniforms[:, 1], UP, RIGHT), actions)]  # [B, 2]
        row = (episode.agent // self.size + moves[:, 0]).clamp(0, self.size - 1)
        column = (episode.agent % self.size + moves[:, 1]).clamp(0, self.size - 1)
        target = row * self.size + column
        at_door = target == levels.door
        held = levels.walls.gather(1, target[:, None])[:, 0] | (at_door & ~episode.has_key)
        agent = torch.where(held, episode.agent, target)
        opens = at_door & episode.has_key & ~episode.is_open
        takes = (agent == episode.key) & ~episode.has_key
        arrived = agent == episode.goal
        following = DoorsEpisode(
            agent, episode.key, episode.goal, episode.has_key | takes, episode.is_open | opens, episode.time + 1
        )
        rewards = arrived.float() + takes * levels.for_key + opens * levels.for_door - levels.cost
        return following, rewards, arrived

    def observe(self, levels: DoorsLevel, episode: DoorsEpisode) -> Tensor:
        agent, door, key, goal = (
            self._cells == cell[:, None] for cell in (episode.agent, levels.door, episode.key, episode.goal)
        )
        planes = [agent, levels.walls, door & ~episode.is_open[:, None], key & ~episode.has_key[:, None], goal]
        return torch.stack(planes, dim=1).float().unflatten(2, (self.size, self.size))
