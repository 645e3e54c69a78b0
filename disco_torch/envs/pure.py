"""Environments whose step is a pure function of tensors: state, actions and uniform numbers in, state and row out.

All randomness comes in as numbers, so that a step runs on any device, can be captured and batched, and gives the same games
however the environments are split over processes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

import torch
from torch import Tensor

from disco_torch.checks import check_actions, check_shape
from disco_torch.envs.base import Environment, EnvStep, State
from disco_torch.types import tree_map

Tree = TypeVar("Tree")


class PureEnvironment(Environment):
    """An environment that implements `start` and `step_with`.

    Attributes:
      level_draws: uniform numbers in [0, 1) that make an environment's level; 0 where all are alike.
      episode_draws: those that begin an episode.
      step_draws: those that a step takes in addition.
      autoreset: whether a step that ends an episode begins the next one. False leaves the last state, to draw it; such a
        state cannot be stepped on.
    """

    saves_state = True
    autoreset: bool = True
    level_draws: int = 0
    episode_draws: int
    step_draws: int = 0

    @abstractmethod
    def start(self, level_uniforms: Tensor, episode_uniforms: Tensor) -> tuple[State, EnvStep]:
        """Begins an episode in each environment, from uniform numbers [B, level_draws] and [B, episode_draws]."""

    @abstractmethod
    def step_with(self, state: State, actions: Tensor, uniforms: Tensor) -> tuple[State, EnvStep]:
        """One step from uniform numbers, [B, step_draws + episode_draws]; after an end the next episode begins at once."""

    def logged_rewards(self, state: State, step: EnvStep) -> Tensor:
        """The rewards of a step, [B], as returns are logged: in a scale in which levels can be compared."""
        return step.rewards

    def reset(self, generator: torch.Generator) -> tuple[State, EnvStep]:
        return self.start(self._level_uniforms(generator), self._uniforms(generator, self.episode_draws))

    def step(self, state: State, actions: Tensor, generator: torch.Generator) -> tuple[State, EnvStep]:
        check_shape("actions", actions, (self.num_envs,), "it needs one action for each environment")
        check_actions("actions", actions, self.num_actions)
        return self.step_with(state, actions, self._uniforms(generator, self.step_draws + self.episode_draws))

    def _level_uniforms(self, generator: torch.Generator) -> Tensor:
        return self._uniforms(generator, self.level_draws)

    def _uniforms(self, generator: torch.Generator, draws: int) -> Tensor:
        if generator.device.type != self.device.type:
            raise ValueError(
                f"`generator` must be on the device of the environment, {self.device}, got one on {generator.device}; "
                f"make it with torch.Generator(device='{self.device}')."
            )
        return torch.rand(self.num_envs, draws, generator=generator, device=self.device, dtype=torch.float32)


def row_of(
    observations: Tensor,
    rewards: Tensor,
    ends: Tensor,
    is_first: Tensor,
    truncations: Tensor | None = None,
    final_observations: Tensor | None = None,
) -> EnvStep:
    """What a step gives, [B, ...] each; the last two only where a time limit may cut episodes."""
    return EnvStep(
        observations=observations,
        rewards=rewards,
        discounts=(~ends).float(),
        truncations=torch.zeros_like(ends) if truncations is None else truncations,
        final_observations=final_observations,
        is_first=is_first,
        episode_ends=ends if truncations is None else ends | truncations,
    )


def select_envs(which: Tensor, a: Tree, b: Tree) -> Tree:
    """Trees of [B, ...]: the rows of `a` where `which` [B], those of `b` elsewhere."""
    return tree_map(lambda x, y: torch.where(which.reshape(-1, *[1] * (x.ndim - 1)), x, y), a, b)


def draw_integers(uniforms: Tensor, low: int | Tensor, high: int | Tensor) -> Tensor:
    """Integers from `low` to `high`, both included, from uniform numbers in [0, 1)."""
    span = high - low + 1
    drawn = (uniforms * span).long()
    # A product may round up to `span` itself.
    return low + (torch.minimum(drawn, span - 1) if isinstance(span, Tensor) else drawn.clamp(max=span - 1))
