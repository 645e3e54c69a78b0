"""What a group of agents is made of while it learns, as trees of tensors."""

from __future__ import annotations

from torch import Tensor

from disco_torch.data import ReplayState
from disco_torch.discovery.habitats import ActingState, EpisodeSums
from disco_torch.discovery.mixed_mode import Passage
from disco_torch.training import LearnerState, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, tree_dataclass


@tree_dataclass
class Record:
    """One update of all agents, as the way back needs it; all leaves but `eta` are [P, ...].

    `goes_on` is 0 where the agent that was updated has been replaced since: nothing of it counts any more. None where
    windows do not overlap, so that this cannot be.
    """

    eta: Params
    passage: Passage
    rollout: Rollout
    goes_on: Tensor | None = None


@tree_dataclass
class GroupState:
    """All of a group that learning changes: [P, ...] leaves, but for shared value functions and what worlds hold.

    `window` holds the updates of meta-updates before that the next one still goes through. It is the last, since it grows at
    first: what is before it has the same place in every state.
    """

    learners: LearnerState
    values: ValueFunctionState
    acting: ActingState
    rings: ReplayState | None
    window: list[Record]


@tree_dataclass
class Draws:
    """The uniform numbers of a meta-update: of each collection, and of each batch from the rings."""

    collections: list[tuple[Tensor, list[Tensor]]]
    batches: list[Tensor]


@tree_dataclass
class GroupGradient:
    """What the agents of a group contribute to an update of the rule, [P, ...] each, and logs by name."""

    grads: Params
    logs: Logs
    episodes: EpisodeSums
