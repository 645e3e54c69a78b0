"""Variation: any family with other scales, orders and numbers of actions, as different users would write the same task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.envs.base import EnvStep
from disco_torch.envs.boards import draw_between
from disco_torch.envs.pure import PureEnvironment
from disco_torch.types import tree_dataclass

MAX_ROTATED = 16
"""Most numbers of an observation that are rotated: longer ones are only put in another order."""
LOG_SCALE = 2.0
"""Observations and rewards are scaled by 1 / 100 to 100."""
LOG_SPREAD = 1.0
"""Besides, each number of an observation is scaled by 1 / 10 to 10."""
SEED_OF_VARIATION = 1_000_003
"""Added to the seed of a level, so that its variation has numbers of its own."""


@tree_dataclass
class Variation:
    """How an environment is shown, for `D` numbers of an observation, or planes, and `A` actions."""

    actions: Tensor  # [B, A] the family's own action that each action stands for
    order: Tensor  # [B, D] which number is shown in each place
    rotation: Tensor | None  # [B, D, D] orthogonal; None where none are rotated
    scale: Tensor  # [B, D]
    shift: Tensor  # [B, D]
    reward_scale: Tensor  # [B]


@tree_dataclass
class VariedState:
    """The variation of each environment and the state of the environments themselves, trees of [B, ...]."""

    variation: Variation
    inner: Any


class Varied(PureEnvironment):
    """An environment whose levels vary also in what a user would choose at will. What is best to do stays the same.

    Rewards are multiplied by 1 / 100 to 100. Nothing is added to them, which would change what is best where episodes end
    sooner or later. Observations are put in another order, in half of the levels rotated by a random orthogonal matrix if
    they are vectors of at most 16 numbers, scaled as a whole by 1 / 100 to 100, in half of the levels besides each number by
    1 / 10 to 10, and in half of the levels shifted. Of observations that are planes, the planes are put in another order,
    scaled and shifted as numbers are. All are "numbers", of unknown scale. Actions are in random order; where there are more
    than the environment has itself, several do the same.

    Args:
      env: environments of tensors. Their levels are the same as without a variation.
      num_actions: number of actions, at least that of `env`; None for as many.
    """

    def __init__(self, env: PureEnvironment, num_actions: int | None = None) -> None:
        self.num_actions = env.num_actions if num_actions is None else num_actions
        if self.num_actions < env.num_actions:
            raise ValueError(f"`num_actions` must be at least {env.num_actions}, those of {env.name}, got {num_actions}.")
        self.env, self.name, self.num_envs, self.device = env, env.name, env.num_envs, env.device
        self.level_seed: int | None = getattr(env, "level_seed", None)
        self.observation_example = torch.zeros_like(env.observation_example, dtype=torch.float32)
        self.observation_kinds = "numbers"
        self.truncates = env.truncates
        D = self.observation_example.shape[0]
        self.rotates = self.observation_example.ndim == 1 and D <= MAX_ROTATED
        self._draws = [self.num_actions, D, D * D * self.rotates, D, D, 5]
        self.level_draws = env.level_draws + sum(self._draws)
        self.episode_draws, self.step_draws = env.episode_draws, env.step_draws
        self._identity = torch.eye(D, dtype=torch.float32, device=self.device)

    @property
    def autoreset(self) -> bool:
        return self.env.autoreset

    @autoreset.setter
    def autoreset(self, value: bool) -> None:
        self.env.autoreset = value

    def start(self, level_uniforms: Tensor, episode_uniforms: Tensor) -> tuple[VariedState, EnvStep]:
        of_env, own = level_uniforms.split([self.env.level_draws, sum(self._draws)], dim=1)
        inner, step = self.env.start(of_env, episode_uniforms)
        state = VariedState(self.draw_variation(own), inner)
        return state, self._shown(state.variation, step)

    def step_with(self, state: VariedState, actions: Tensor, uniforms: Tensor) -> tuple[VariedState, EnvStep]:
        actions = state.variation.actions.gather(1, actions[:, None])[:, 0]
        inner, step = self.env.step_with(state.inner, actions, uniforms)
        return VariedState(state.variation, inner), self._shown(state.variation, step)

    def logged_rewards(self, state: VariedState, step: EnvStep) -> Tensor:
        """The rewards without their variation."""
        return step.rewards / state.variation.reward_scale

    def draw_variation(self, uniforms: Tensor) -> Variation:
        actions, order, rotation, spread, shift, u = uniforms.split([*self._draws], dim=1)
        rotated, scale, has_spread, has_shift, reward_scale = u.unbind(1)
        spread = torch.where(has_spread[:, None] < 0.5, 0.0, draw_between(spread, -LOG_SPREAD, LOG_SPREAD))
        scales = 10.0 ** (spread + draw_between(scale, -LOG_SCALE, LOG_SCALE)[:, None])  # [B, D]
        shift = torch.where(has_shift[:, None] < 0.5, 0.0, draw_between(shift, -2.0, 2.0))
        return Variation(
            actions=actions.argsort(1) % self.env.num_actions,
            order=order.argsort(1),
            rotation=self._rotation(rotation, rotated < 0.5) if self.rotates else None,
            scale=scales.float(),
            shift=(scales * shift).float(),
            reward_scale=(10.0 ** draw_between(reward_scale, -LOG_SCALE, LOG_SCALE)).float(),
        )

    def _rotation(self, uniforms: Tensor, rotated: Tensor) -> Tensor:
        """A random orthogonal matrix where `rotated` [B], else the identity: the product of as many reflections as rows."""
        normals = torch.erfinv((2.0 * uniforms - 1.0).clamp(-0.9999, 0.9999)).float()
        directions = normals.unflatten(1, self._identity.shape) + 1e-6  # [B, D, D]
        directions = directions / directions.square().sum(2, keepdim=True).sqrt()
        matrix = self._identity.expand(uniforms.shape[0], -1, -1)
        for direction in directions.unbind(1):
            along = (matrix * direction[:, None]).sum(2, keepdim=True)  # [B, D, 1]
            matrix = matrix - 2.0 * along * direction[:, None]
        return torch.where(rotated[:, None, None], matrix, self._identity)

    def _shown(self, variation: Variation, step: EnvStep) -> EnvStep:
        shown = self._observation(variation, step.observations)
        final = step.final_observations
        return EnvStep(
            observations=shown,
            rewards=variation.reward_scale * step.rewards,
            discounts=step.discounts,
            truncations=step.truncations,
            final_observations=None if final is None else self._observation(variation, final),
            is_first=step.is_first,
            episode_ends=step.episode_ends,
        )

    def _observation(self, variation: Variation, observations: Tensor) -> Tensor:
        """Observations [B, D, ...] as they are shown."""
        across = (-1, variation.order.shape[1], *[1] * (observations.ndim - 2))
        x = observations.float().gather(1, variation.order.reshape(across).expand_as(observations))
        if variation.rotation is not None:
            x = (variation.rotation * x[:, None]).sum(2)
        return variation.scale.reshape(across) * x + variation.shift.reshape(across)

    def _level_uniforms(self, generator: torch.Generator) -> Tensor:
        of_env = self.env._level_uniforms(generator)
        own = self._uniforms(generator, sum(self._draws))
        if self.level_seed is not None:
            seeded = torch.Generator().manual_seed(self.level_seed + SEED_OF_VARIATION)
            drawn = torch.rand(1, sum(self._draws), generator=seeded, dtype=torch.float32)
            own = drawn.to(self.device).expand_as(own)
        return torch.cat([of_env, own], dim=1)

    def render(self, state: VariedState | None = None) -> np.ndarray | None:
        """The picture of the environment itself."""
        return self.env.render(None if state is None else state.inner)
