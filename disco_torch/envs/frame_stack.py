"""Frame stacks: what an environment showed in the last steps as one observation, for any environment of this package."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.checks import check_least
from disco_torch.envs.base import Environment, EnvStep
from disco_torch.envs.pure import PureEnvironment
from disco_torch.types import Observations, tree_dataclass, tree_map


@tree_dataclass
class StackedState:
    """The state of the environments, and their last frames, a tree of [B, K, ...]."""

    inner: Any
    frames: Any


def stack_frames(env: Environment, num_frames: int) -> Environment:
    """The environments with the last `num_frames` frames of the episode as observations; as they are for 1.

    An observation [...] becomes [K, ...], the oldest frame first; convolutional torsos read the frames of boards and images
    as channels. At the beginning of an episode its first frame stands for those that are missing.
    """
    check_least("frame_stack", num_frames, 1)
    if num_frames == 1:
        return env
    return (
        PureStackedEnvironment(env, num_frames) if isinstance(env, PureEnvironment) else StackedEnvironment(env, num_frames)
    )


class StackedEnvironment(Environment):
    """`stack_frames` of environments that keep their state inside; the frames are kept here."""

    env: Environment
    num_frames: int

    def __init__(self, env: Environment, num_frames: int) -> None:
        _take_over(self, env, num_frames)
        self._frames: Observations = None

    def reset(self, generator: torch.Generator) -> tuple[None, EnvStep]:
        _, step = self.env.reset(generator)
        self._frames, step = stacked_row(None, step, self.num_frames)
        return None, step

    def step(self, state: None, actions: Tensor, generator: torch.Generator) -> tuple[None, EnvStep]:
        if self._frames is None:
            raise ValueError("`reset` must come before `step`, got a step first; it starts the first episodes.")
        _, step = self.env.step(None, actions, generator)
        self._frames, step = stacked_row(self._frames, step, self.num_frames)
        return None, step

    def render(self, state: None = None) -> np.ndarray | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


class PureStackedEnvironment(PureEnvironment):
    """`stack_frames` of environments of tensors."""

    env: PureEnvironment
    num_frames: int

    def __init__(self, env: PureEnvironment, num_frames: int) -> None:
        _take_over(self, env, num_frames)
        self.level_draws, self.episode_draws, self.step_draws = env.level_draws, env.episode_draws, env.step_draws

    @property
    def autoreset(self) -> bool:
        return self.env.autoreset

    @autoreset.setter
    def autoreset(self, value: bool) -> None:
        self.env.autoreset = value

    def start(self, level_uniforms: Tensor, episode_uniforms: Tensor) -> tuple[StackedState, EnvStep]:
        inner, step = self.env.start(level_uniforms, episode_uniforms)
        frames, step = stacked_row(None, step, self.num_frames)
        return StackedState(inner, frames), step

    def step_with(self, state: StackedState, actions: Tensor, uniforms: Tensor) -> tuple[StackedState, EnvStep]:
        inner, step = self.env.step_with(state.inner, actions, uniforms)
        frames, step = stacked_row(state.frames, step, self.num_frames)
        return StackedState(inner, frames), step

    def logged_rewards(self, state: StackedState, step: EnvStep) -> Tensor:
        return self.env.logged_rewards(state.inner, step)

    def _level_uniforms(self, generator: torch.Generator) -> Tensor:
        return self.env._level_uniforms(generator)

    def render(self, state: StackedState | None = None) -> np.ndarray | None:
        return self.env.render(None if state is None else state.inner)


def stacked_row(frames: Observations, step: EnvStep, num_frames: int) -> tuple[Observations, EnvStep]:
    """The frames after a step, a tree of [B, K, ...], and its row with stacked observations.

    Args:
      frames: those before it; None for the first row.
      step: row of the environments.
      num_frames: number of frames, `K`.
    """

    def repeated(shown: Tensor) -> Tensor:
        return shown.unsqueeze(1).expand(-1, num_frames, *shown.shape[1:])

    def following(old: Tensor, shown: Tensor) -> Tensor:
        return torch.cat([old[:, 1:], shown.unsqueeze(1)], dim=1)

    def after(old: Tensor, shown: Tensor) -> Tensor:
        begins = step.is_first.reshape(-1, *[1] * shown.ndim)
        return torch.where(begins, repeated(shown), following(old, shown))

    if frames is None:
        now = tree_map(lambda shown: repeated(shown).clone(), step.observations)
    else:
        now = tree_map(after, frames, step.observations)
    final = step.final_observations
    if final is not None and frames is not None:
        cut = step.truncations
        last = tree_map(following, frames, final)
        final = tree_map(lambda x, y: torch.where(cut.reshape(-1, *[1] * (x.ndim - 1)), x, y), last, now)
    elif final is not None:
        final = now
    return now, EnvStep(
        observations=now,
        rewards=step.rewards,
        discounts=step.discounts,
        truncations=step.truncations,
        final_observations=final,
        is_first=step.is_first,
        episode_ends=step.episode_ends,
    )


def _take_over(stack: Any, env: Environment, num_frames: int) -> None:
    """What a stack has of its environments."""
    stack.env, stack.num_frames = env, num_frames
    stack.name, stack.num_envs, stack.num_actions, stack.device = env.name, env.num_envs, env.num_actions, env.device
    stack.observation_kinds, stack.truncates, stack.saves_state = env.observation_kinds, env.truncates, env.saves_state
    stack.observation_example = tree_map(lambda x: x.expand(num_frames, *x.shape).clone(), env.observation_example)
