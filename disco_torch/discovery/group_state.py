"""What a group of agents is made of while it learns, as trees of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from disco_torch.data import InputStats, ReplayState
from disco_torch.discovery.habitats import ActingState, EpisodeSums
from disco_torch.discovery.mixed_mode import SavedUpdate
from disco_torch.training import LearnerState, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, flatten_tree, tree_dataclass


@tree_dataclass
class WindowUpdate:
    """One update of all agents, as the backward pass needs it; all leaves but those of `rule_params` are [P, ...].

    Attributes:
      rule_params: the rule that the agents were updated with.
      saved: what the backward pass needs of the agents.
      rollout: what they learned from.
      alive: [P], 0 where the agent that was updated has been replaced since, and its update has no weight. None where
        windows do not overlap, so that this cannot happen.
    """

    rule_params: Params
    saved: SavedUpdate
    rollout: Rollout
    alive: Tensor | None = None


@tree_dataclass
class GroupState:
    """All of a group that learning changes: [P, ...] leaves, but for shared value functions and environments.

    `inputs` are the statistics of what the agents see, None where nothing is normalised. `window` holds the updates of
    earlier meta-updates that the next one still differentiates through. It is the last field,
    since it grows at first: what is before it has the same place in every state.
    """

    learners: LearnerState
    values: ValueFunctionState
    acting: ActingState
    replay: ReplayState | None
    inputs: InputStats | None
    window: list[WindowUpdate]


@tree_dataclass
class Draws:
    """The uniform numbers of a meta-update: those of each rollout, and of each batch from the replay."""

    collections: list[tuple[Tensor, list[Tensor]]]
    batches: list[Tensor]


@tree_dataclass
class GroupGradient:
    """What the agents of a group contribute to an update of the rule, [P, ...] each, and logs by name, [P] each."""

    grads: Params
    logs: Logs
    episodes: EpisodeSums


def is_finite(tree: Any) -> Tensor:
    """Whether all that an agent has in a tree of [P, ...] is finite, [P]. Where the numbers' sum overflows, it is not."""
    numbers = [x.reshape(x.shape[0], -1).sum(1) for x in flatten_tree(tree)[0] if x.is_floating_point()]
    return torch.stack(numbers).sum(0).isfinite()


def along(which: Tensor, like: Tensor) -> Tensor:
    """[P] with dimensions added to broadcast along `like`, [P, ...]."""
    return which.reshape(-1, *[1] * (like.ndim - 1))
