"""Swing: a driven pendulum that has to get up high, at a cost for every step until then, or to stay up."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from disco_torch.envs.boards import Canvas, draw_between, paint
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

GRAVITY = 10.0
SECONDS = 0.1
"""Duration of a step."""
MAX_TORQUES = 5
SIDE = 9
"""Rows and columns of the picture."""


@tree_dataclass
class SwingLevel:
    """Rules of a level, [B] each but `torques`."""

    balances: Tensor  # bool, whether the task is to stay up instead of getting there
    length: Tensor
    friction: Tensor  # share of the speed that is lost in a second
    torques: Tensor  # [B, MAX_TORQUES] of each action, in units of what holds the body level
    noise: Tensor  # most that is added to the torque at random, either way
    height: Tensor  # to reach or to stay above, from -1 at the bottom to 1 at the top
    limit: Tensor  # steps after which a time limit cuts the episode


@tree_dataclass
class SwingEpisode:
    """Angle from the bottom and its speed, [B] float32; steps so far, [B]."""

    angle: Tensor
    speed: Tensor
    time: Tensor


class Swing(LevelEnvironment):
    """A body on a rod swings around a fixed point; every action is a torque.

        speed' = -(g / length) (sin angle - torque - noise) - friction speed

    in steps of 0.1 s. The torque is in units of what holds the body level, so that its mass counts already. Two thirds of
    the levels are swings: the body hangs still, give or take 0.1, and every step costs 1 until it has reached a height,
    which ends the episode. In the others it stands upright, give or take 0.1, and every step pays 1 until it falls below a
    height, which ends the episode at once. A time limit of 100 to 400 steps cuts the episode and is no end.

    What varies: the length (0.5 to 2), the strongest torque (0.12 to 0.8), 2 to 5 different torques, evenly from the
    strongest one way to the strongest the other way (where there are fewer than 5, several actions do the same), friction
    (none in half of the levels, else up to 0.2), noise (none in half of the levels, else up to 0.3 of the strongest torque),
    the height (swings: 0 to 0.95, else 0.3 to 0.8) and the limit. With weak torques a swing has to be built up.

    Lengths and strengths come from ten ranges each, numbered from 0. Levels are held out if the sum of both numbers is a
    multiple of 5 and for validation if one more than that; no training level is either.

    Observations are [B, 3] float32: cosine and sine of the angle, and the speed, of up to about 10.
    """

    name = "swing"
    num_actions = MAX_TORQUES
    splits = ("train", "validation", "held-out")
    truncates = True
    level_draws = 12
    episode_draws = 2
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
        self.observation_example = torch.zeros(3, dtype=torch.float32, device=self.device)
        self.observation_kinds = "numbers"
        self.canvas = Canvas(SIDE, SIDE, self.device)
        self._actions = torch.arange(MAX_TORQUES, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> SwingLevel:
        u = uniforms.float().unbind(1)
        strong, long = self.draw_pair(uniforms[:, :5])
        strength = draw_between(strong, 0.12, 0.8)
        number = draw_integers(u[5], 2, MAX_TORQUES)[:, None]
        torques = 2.0 * (self._actions % number).float() / (number - 1) - 1.0  # [B, MAX_TORQUES]
        balances = u[6] < 1 / 3
        return SwingLevel(
            balances=balances,
            length=draw_between(long, 0.5, 2.0),
            friction=torch.where(u[7] < 0.5, 0.0, 0.4 * (u[7] - 0.5)),
            torques=strength[:, None] * torques,
            noise=torch.where(u[8] < 0.5, 0.0, 0.3 * u[9]) * strength,
            height=torch.where(balances, draw_between(u[10], 0.3, 0.8), draw_between(u[10], 0.0, 0.95)),
            limit=draw_integers(u[11], 100, 400),
        )

    def begin(self, levels: SwingLevel, uniforms: Tensor) -> SwingEpisode:
        angle, speed = (0.2 * uniforms.float() - 0.1).unbind(1)
        return SwingEpisode(angle + math.pi * levels.balances.float(), speed, torch.zeros_like(levels.limit))

    def advance(
        self, levels: SwingLevel, episode: SwingEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[SwingEpisode, Tensor, Tensor]:
        torque = levels.torques.gather(1, actions[:, None])[:, 0]
        torque = torque + levels.noise * draw_between(uniforms[:, 0].float(), -1.0, 1.0)
        pull = GRAVITY / levels.length * (torque - episode.angle.sin())
        speed = episode.speed + SECONDS * (pull - levels.friction * episode.speed)
        angle = episode.angle + SECONDS * speed
        above = -angle.cos() >= levels.height
        ends = above != levels.balances
        return SwingEpisode(angle, speed, episode.time + 1), 2.0 * levels.balances.float() - 1.0, ends

    def observe(self, levels: SwingLevel, episode: SwingEpisode) -> Tensor:
        return torch.stack([episode.angle.cos(), episode.angle.sin(), episode.speed], dim=1)

    def picture(self, levels: SwingLevel, episode: SwingEpisode) -> Tensor:
        """Planes [B, 3, 9, 9]: the body, the point it hangs from, and the cells above the height."""
        middle = SIDE // 2
        down, right = (middle + middle * way for way in (episode.angle.cos(), episode.angle.sin()))
        body = self.canvas.cell(down.round().long(), right.round().long())
        fixed = self.canvas.cell(torch.full_like(levels.limit, middle), torch.full_like(levels.limit, middle))
        above = self.canvas.row_of <= (middle - middle * levels.height[:, None, None])
        return paint(body, fixed, above.expand_as(body))
