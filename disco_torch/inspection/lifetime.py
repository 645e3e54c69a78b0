"""Over a lifetime: how a rule's targets for one rollout change with what it remembers of the agent's life."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from disco_torch.analysis import Interval
from disco_torch.inspection.case import RuleCase
from disco_torch.inspection.counterfactuals import summarize

NO_MEMORY = "the rule remembers nothing of an agent's life: its state has no meta-RNN"


@dataclass(frozen=True)
class Age:
    """The targets for a rollout with the lifetime memory of one age, everything else being as it is now.

    Attributes:
      updates: number of updates that the memory has seen.
      from_birth, from_last: how far the targets are from those with the first and with the last memory.
      pushes: half the sum of absolute values of the push on each output, the distance from prediction to target.
    """

    updates: int
    from_birth: dict[str, Interval]
    from_last: dict[str, Interval]
    pushes: dict[str, Interval]


def lifetime_memory(meta_state: Any) -> Any:
    """What a rule's state holds of the agent's life; None where it holds nothing."""
    return getattr(meta_state, "rnn_state", None)


def measure_lifetime(case: RuleCase, memories: Mapping[int, Any]) -> list[Age]:
    """The targets of a case with the memories of several ages.

    Args:
      case: the case; its own memory is not used.
      memories: number of updates -> lifetime memory, see `lifetime_memory`, the first being that of birth.
    """
    if lifetime_memory(case.meta_state) is None:
        raise ValueError(f"`case` must be of a rule with a lifetime memory, got {type(case.rule).__name__}: {NO_MEMORY}.")
    aged = {
        updates: dataclasses.replace(case, meta_state=dataclasses.replace(case.meta_state, rnn_state=memory))
        for updates, memory in sorted(memories.items())
    }
    first, last = next(iter(aged.values())), list(aged.values())[-1]
    ages = []
    for updates, each in aged.items():
        sizes = {name: 0.5 * push.abs().sum(-1) for name, push in each.pushes.items()}
        summaries = (summarize(moves, case.counted) for moves in (first.moves(each), last.moves(each), sizes))
        ages.append(Age(updates, *summaries))
    return ages
