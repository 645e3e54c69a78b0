"""The protocol of all environments: a batch of parallel ones that step together, and one layout of what a step gives.

A step of `B` parallel environments gives one row of each: what arrived (reward, discount), and the observation to act on
next.

    the episode continues   observations = s_{t+1}    discounts 1
    it ended                observations = s'_0       discounts 0    is_first, episode_ends
    a time limit cut it     observations = s'_0       discounts 1    is_first, episode_ends, truncations;
                                                                     final_observations = the last of the cut episode

An environment may also show the ended episode's last observation, and spend one more step (whose action is ignored) to
show the next one's first; that row has reward 0, discount 0 and `is_first`. The steps that a loss may learn from are the
same either way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from disco_torch.checks import check_least
from disco_torch.types import Observations, tree_dataclass

ROOT = "observation"
"""What the names of the leaves of an observation begin with, see `disco_torch.types.tree_items`."""
State = Any
"""A tree of tensors where the environment `saves_state`, else None."""


@tree_dataclass
class EnvStep:
    """One row of each parallel environment, on their device.

    Attributes:
      observations: tree of [B, ...], what the agent acts on next.
      rewards: [B] float32, of the step that led here; 0 at a reset.
      discounts: [B] float32, 0 where this row closes an episode, else 1.
      truncations: [B] bool, whether a time limit cut the episode with this step.
      final_observations: tree of [B, ...]: where `truncations`, the last observation of the cut episode, elsewhere equal to
        `observations`. None if this environment never truncates.
      is_first: [B] bool, whether `observations` begins an episode, before which a memory starts anew.
      episode_ends: [B] bool, whether an episode ended with this step in either way; for statistics.
    """

    observations: Observations
    rewards: Tensor
    discounts: Tensor
    truncations: Tensor
    final_observations: Observations | None
    is_first: Tensor
    episode_ends: Tensor


@dataclass(frozen=True)
class FrameStack:
    """A leaf of an observation is the last `size` frames of its episode, the oldest first: [size, ...].

    In each row of an episode the frames of the row before move up by one place, and the newest comes last. So an environment
    that leaves out a first observation, as those do that reset in the step that ends an episode, must not say so.

    Attributes:
      size: number of frames.
      padding: what stands in the first row of an episode before its one frame: zeros, or that frame again.
    """

    size: int
    padding: Literal["zeros", "first"]

    def __post_init__(self) -> None:
        check_least("size", self.size, 2)
        if self.padding not in ("zeros", "first"):
            raise ValueError(f"`padding` must be 'zeros' or 'first', got {self.padding!r}.")


class EnvironmentFailure(RuntimeError):
    """An environment raised, died or gave something that cannot be learned from; says which, when and at which index."""


class Environment(ABC):
    """A batch of `num_envs` parallel environments with discrete actions.

    Attributes:
      name: for messages and logs.
      num_envs: number of parallel environments, `B`.
      num_actions: actions are 0 .. num_actions - 1.
      device: where the tensors of each `EnvStep` lie.
      observation_example: one observation without the leading dimension, zeros in the shapes and dtypes that come.
      observation_kinds: "image", "unit" or "numbers" for each leaf, in the structure of `observation_example`; see
        `disco_torch.envs.kinds`. None: by the dtypes of the example.
      truncates: whether a time limit may cut its episodes; its steps then hold `final_observations`.
      saves_state: whether `state` is the whole state, so that a checkpoint can hold it and a step is a pure function.
      frame_stacks: the leaves of an observation that are stacks of frames, by name: "observation" for one that is a tensor,
        "observation/KEY" for one in a dict. A replay stores each of their frames once.
      settings: arguments that decide what is played, defaults included; a run writes them into its configuration.
      ends_within_episodes: whether a discount of 0 may come without a new episode. An agent with memory cannot learn there.
    """

    name: str
    num_envs: int
    num_actions: int
    device: torch.device
    observation_example: Observations
    observation_kinds: Any = None
    truncates: bool = False
    saves_state: bool = False
    frame_stacks: Mapping[str, FrameStack] = MappingProxyType({})
    settings: Mapping[str, bool | int | float | str] = MappingProxyType({})
    ends_within_episodes: bool = False

    @abstractmethod
    def reset(self, generator: torch.Generator) -> tuple[State, EnvStep]:
        """Begins an episode in every environment; randomness comes from `generator`."""

    @abstractmethod
    def step(self, state: State, actions: Tensor, generator: torch.Generator) -> tuple[State, EnvStep]:
        """Takes `actions`, [B] integers, in the environments that `state` describes."""

    def render(self, state: State = None) -> np.ndarray | None:
        """An image of environment 0, [height, width, 3] uint8, or None if it draws none."""
        return None

    def close(self) -> None:
        """Frees what the environment holds outside of its state, such as windows and worker processes."""
        return None
