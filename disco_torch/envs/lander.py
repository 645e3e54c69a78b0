"""Lander: a body with engines has to come down softly on a pad."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import Canvas, draw_between, paint
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

NONE, LIFT, LEFT, RIGHT = range(4)
SECONDS = 0.05
"""Duration of a step."""
SIDE = 1.5
"""How far to either side, and up, the body may get before it is lost."""
MIN_LIMIT, MAX_LIMIT = 100, 300
CELLS = 12
"""Rows and columns of the picture."""


@tree_dataclass
class LanderLevel:
    """Rules of a level, [B] each."""

    gravity: Tensor
    lift: Tensor  # acceleration of the engine that lifts
    push: Tensor  # acceleration of the engines to the sides
    wind: Tensor  # acceleration to the right
    gusts: Tensor  # most that is added to the wind at random, either way
    pad: Tensor  # where its middle is
    width: Tensor  # from the middle of the pad to its ends
    softness: Tensor  # highest speed of a soft landing
    shaping: Tensor  # weight of the rewards for coming closer and slower
    crash: Tensor  # what a crash costs
    fuel: Tensor  # what a step with an engine costs
    limit: Tensor  # steps after which a time limit cuts the episode


@tree_dataclass
class LanderEpisode:
    """Place [B, 2], to the right and up, and speed [B, 2], float32; steps so far, [B]."""

    place: Tensor
    speed: Tensor
    time: Tensor


class Lander(LevelEnvironment):
    """A body falls onto flat ground, in steps of 0.05 s; it does not turn.

    Actions 0 to 3: none, lift, push to the left, push to the right. It begins about 1 above the ground, up to 0.6 to either
    side. The episode ends at the ground: on the pad and at most as fast as the softness, to the side and down, that pays 1;
    anywhere or anyhow else it is a crash, and so is getting more than 1.5 to a side or up. A time limit cuts the episode and
    is no end.

    What varies: gravity (0.3 to 1.2), the lift (1.4 to 3 times gravity), the push (0.3 to 1), wind (up to 0.15 either way)
    and gusts (up to 0.3), none in half of the levels each; the pad's place (up to 0.5 to a side) and half its width (0.1 to
    0.8); the softness (0.15 to 1); what a crash costs (0 to 1) and an engine (0 in half of the levels, else up to 0.5 over
    the whole limit); the limit, 100 to 300 steps. In half of the levels a step is also paid, 0.2 to 1 times, by how much
    `distance to the middle of the pad + speed / 2` has fallen; in the others there is nothing before the ground.

    Gravity and the lift's ratio to it come from ten ranges each, numbered from 0. Levels are held out if the sum of both
    numbers is a multiple of 5 and for validation if one more than that; no training level is either.

    Observations are [B, 4] float32: how far the body is to the right of the pad's middle and above the ground, and its
    speed to the right and up.
    """

    name = "lander"
    num_actions = 4
    splits = ("train", "validation", "held-out")
    truncates = True
    level_draws = 18
    episode_draws = 4
    step_draws = 1

    def __init__(
        self,
        num_envs: int,
        *,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        self.observation_example = torch.zeros(4, dtype=torch.float32, device=self.device)
        self.observation_kinds = "numbers"
        self.canvas = Canvas(CELLS, CELLS, self.device)

    def draw_levels(self, uniforms: Tensor) -> LanderLevel:
        heavy, ratio = self.draw_pair(uniforms[:, :5])
        u = uniforms[:, 5:].float().unbind(1)
        gravity = draw_between(heavy, 0.3, 1.2)
        limit = draw_integers(u[0], MIN_LIMIT, MAX_LIMIT)
        return LanderLevel(
            gravity=gravity,
            lift=gravity * draw_between(ratio, 1.4, 3.0),
            push=draw_between(u[1], 0.3, 1.0),
            wind=torch.where(u[2] < 0.5, 0.0, draw_between(u[3], -0.15, 0.15)),
            gusts=torch.where(u[4] < 0.5, 0.0, 0.6 * (u[4] - 0.5)),
            pad=draw_between(u[5], -0.5, 0.5),
            width=draw_between(u[6], 0.1, 0.8),
            softness=draw_between(u[7], 0.15, 1.0),
            shaping=torch.where(u[8] < 0.5, 0.0, draw_between(u[9], 0.2, 1.0)),
            crash=u[10],
            fuel=torch.where(u[11] < 0.5, 0.0, 0.5 * u[12]) / limit,
            limit=limit,
        )

    def begin(self, levels: LanderLevel, uniforms: Tensor) -> LanderEpisode:
        right, up, *speed = uniforms.float().unbind(1)
        place = torch.stack([draw_between(right, -0.6, 0.6), draw_between(up, 0.9, 1.1)], dim=1)
        return LanderEpisode(place, draw_between(torch.stack(speed, dim=1), -0.1, 0.1), torch.zeros_like(levels.limit))

    def advance(
        self, levels: LanderLevel, episode: LanderEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[LanderEpisode, Tensor, Tensor]:
        pushed = ((actions == RIGHT).float() - (actions == LEFT).float()) * levels.push
        gust = levels.gusts * draw_between(uniforms[:, 0].float(), -1.0, 1.0)
        lifted = (actions == LIFT) * levels.lift - levels.gravity
        speed = episode.speed + SECONDS * torch.stack([pushed + levels.wind + gust, lifted], dim=1)
        following = LanderEpisode(episode.place + SECONDS * speed, speed, episode.time + 1)
        right, up = following.place.unbind(1)
        on_pad = (right - levels.pad).abs() <= levels.width
        soft = speed.abs().amax(1) <= levels.softness
        down = up <= 0
        landed = down & on_pad & soft
        ends = down | (right.abs() > SIDE) | (up > SIDE)
        closer = self._way_left(levels, episode) - self._way_left(levels, following)
        rewards = landed.float() - (ends & ~landed) * levels.crash - (actions != NONE) * levels.fuel
        return following, rewards + levels.shaping * closer, ends

    def observe(self, levels: LanderLevel, episode: LanderEpisode) -> Tensor:
        right, up = episode.place.unbind(1)
        return torch.cat([torch.stack([right - levels.pad, up], dim=1), episode.speed], dim=1)

    def picture(self, levels: LanderLevel, episode: LanderEpisode) -> Tensor:
        """Planes [B, 2, 12, 12]: the body, and the pad on the last row."""
        right, up = (episode.place.clamp(-SIDE, SIDE) / SIDE).unbind(1)
        row, column = (1.0 - up) * (CELLS - 1), (1.0 + right) * 0.5 * (CELLS - 1)
        body = self.canvas.cell(row.round().long().clamp(0, CELLS - 1), column.round().long())
        where = (self.canvas.column_of / (CELLS - 1) * 2.0 - 1.0) * SIDE  # [CELLS]
        pad = (where - levels.pad[:, None]).abs() <= levels.width[:, None]  # [B, CELLS]
        return paint(body, (self.canvas.row_of == CELLS - 1) & pad[:, None])

    def _way_left(self, levels: LanderLevel, episode: LanderEpisode) -> Tensor:
        """Distance to the middle of the pad + half of the speed, [B]."""
        right, up = episode.place.unbind(1)
        distance = ((right - levels.pad).square() + up.square()).sqrt()
        return distance + 0.5 * episode.speed.square().sum(1).sqrt()
