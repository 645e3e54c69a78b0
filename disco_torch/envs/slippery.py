"""Slippery: random decision processes in which every position has its own rules, and steps often go astray."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import draw_between
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

FARTHEST = 2
"""Positions that a step moves at most."""
MIN_POSITIONS = 8
MIN_LIMIT, MAX_LIMIT = 30, 200


@tree_dataclass
class SlipperyLevel:
    """Rules of a level, for `P` positions, [B] each unless it says more."""

    moves: Tensor  # [B, P, actions] how far each action moves from each position, forwards or backwards
    holes: Tensor  # [B, P] bool
    goal: Tensor  # the last position
    slip: Tensor  # probability that a step is that of a random action
    penalty: Tensor  # for falling into a hole
    cost: Tensor  # of every step
    limit: Tensor  # steps after which a time limit cuts the episode


@tree_dataclass
class SlipperyEpisode:
    """Position and steps so far, [B] each."""

    position: Tensor
    time: Tensor


class Slippery(LevelEnvironment):
    """Positions in a row, from the start to a goal that pays 1 and ends the episode; so does a hole, at a penalty.

    What an action does differs from position to position: it moves up to two positions forwards or backwards, or stays. In
    each position one action, drawn at random, surely leads forwards and not into a hole. A step may slip: then it is that
    of an action drawn at random, so near a hole another one may be best. A time limit cuts the episode and is no end.

    What varies: the number of positions (8 to `positions`), all moves, holes (up to a third of the positions, none next to
    each other, none within reach of the start), the probability to slip (0 in a quarter of the levels, else up to 0.6), the
    penalty (0 in half of the levels, else up to 1), a cost of every step, 0.1 to 1 over the whole limit (0 in half of the
    levels), and the limit, 30 to 200 steps.

    Levels are held out if `(number of positions + limit)` is a multiple of 5 and for validation if one more than that; no
    training level is either.

    Observations are [B, positions] float32: the position one-hot.
    """

    name = "slippery"
    splits = ("train", "validation", "held-out")
    truncates = True
    episode_draws = 0
    step_draws = 2

    def __init__(
        self,
        num_envs: int,
        *,
        positions: int = 24,
        actions: int = 4,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if positions < (least := MIN_POSITIONS + 4):
            raise ValueError(f"`positions` must be at least {least}, so that each split has levels, got {positions}.")
        if not 2 <= actions <= 18:
            raise ValueError(f"`actions` must be 2 to 18, got {actions}.")
        self.num_actions, self.positions = actions, positions
        self.level_draws = positions * actions + 3 * positions + 11
        self.observation_example = torch.zeros(positions, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._positions = torch.arange(positions, device=self.device)
        self._actions = torch.arange(actions, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> SlipperyLevel:
        P, A = self.positions, self.num_actions
        moves, sure, far, holes, of_level = uniforms.split([P * A, P, P, P, 11], dim=1)
        u = of_level.unbind(1)
        limit = draw_integers(u[0], MIN_LIMIT, MAX_LIMIT)
        # The numbers of positions with the remainder that the split asks for, of which one is drawn.
        least = (self.draw_remainder(u[1]) - limit - MIN_POSITIONS) % 5 + MIN_POSITIONS
        goal = least + 5 * draw_integers(u[2], 0, (P - least) // 5) - 1
        odd = draw_integers(u[3], 0, 1)[:, None]
        inside = (self._positions > FARTHEST) & (self._positions < goal[:, None])
        holes = inside & (self._positions % 2 == odd) & (holes < 2.0 * u[4][:, None] / 3.0)
        # The sure action moves by one or two, whichever is no hole: no two holes are next to each other.
        ahead = draw_integers(far, 1, FARTHEST)  # [B, P]
        falls = holes.gather(1, (self._positions + ahead).clamp(max=P - 1))
        ahead = torch.where(falls, FARTHEST + 1 - ahead, ahead)
        is_sure = self._actions == draw_integers(sure, 0, A - 1)[:, :, None]  # [B, P, A]
        moves = torch.where(is_sure, ahead[:, :, None], draw_integers(moves, -FARTHEST, FARTHEST).unflatten(1, (P, A)))
        cost = torch.where(u[5] < 0.5, 0.0, draw_between(u[6], 0.1, 1.0)) / limit
        return SlipperyLevel(
            moves=moves,
            holes=holes,
            goal=goal,
            slip=torch.where(u[7] < 0.25, 0.0, 0.6 * u[8]).float(),
            penalty=torch.where(u[9] < 0.5, 0.0, u[10]).float(),
            cost=cost.float(),
            limit=limit,
        )

    def begin(self, levels: SlipperyLevel, uniforms: Tensor) -> SlipperyEpisode:
        zeros = torch.zeros_like(levels.goal)
        return SlipperyEpisode(zeros, zeros)

    def advance(
        self, levels: SlipperyLevel, episode: SlipperyEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[SlipperyEpisode, Tensor, Tensor]:
        taken = torch.where(uniforms[:, 0] < levels.slip, draw_integers(uniforms[:, 1], 0, self.num_actions - 1), actions)
        here = episode.position[:, None, None].expand(-1, 1, self.num_actions)
        move = levels.moves.gather(1, here)[:, 0].gather(1, taken[:, None])[:, 0]
        position = (episode.position + move).clamp(min=0).minimum(levels.goal)
        arrived = position == levels.goal
        fell = levels.holes.gather(1, position[:, None])[:, 0]
        rewards = arrived.float() - fell.float() * levels.penalty - levels.cost
        return SlipperyEpisode(position, episode.time + 1), rewards, arrived | fell

    def observe(self, levels: SlipperyLevel, episode: SlipperyEpisode) -> Tensor:
        return (self._positions == episode.position[:, None]).float()  # [B, positions]

    def picture(self, levels: SlipperyLevel, episode: SlipperyEpisode) -> Tensor:
        """The position, the holes and the goal, [B, 3, 1, positions]."""
        goal = self._positions == levels.goal[:, None]
        return torch.stack([self.observe(levels, episode), levels.holes.float(), goal.float()], dim=1).unsqueeze(2)
