"""Traces: what an agent predicts along its episodes, and where a rule pushes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from disco_torch.inspection.case import RuleCase
from disco_torch.rules import entropy


@dataclass(frozen=True)
class Trace:
    """Numbers of each step of a trajectory; `T` steps, `A` actions.

    Attributes:
      actions: [T] the taken ones.
      rewards: [T].
      ends: [T] bool, whether the step is the last of its episode.
      values: [T]; None where the agent has none.
      policy: [T, A] probabilities.
      policy_confidence, y_confidence: [T] negative entropy in nats, 0 at most; None where the agent has no y.
      push: [T, A], where the rule pushes the probability of each action, minus the gradient of the loss by the logits.
    """

    actions: Tensor
    rewards: Tensor
    ends: Tensor
    values: Tensor | None
    policy: Tensor
    policy_confidence: Tensor
    y_confidence: Tensor | None
    push: Tensor


def trace_of(case: RuleCase, trajectory: int = 0) -> Trace:
    """The trace of one trajectory of a case."""
    inputs, b = case.inputs, trajectory
    y = inputs.agent_out.get("y")
    logits = inputs.agent_out["logits"][:-1, b]
    return Trace(
        actions=inputs.actions[:-1, b],
        rewards=inputs.rewards[:, b],
        ends=inputs.should_reset_mask_bwd[:-1, b].bool(),
        values=None if case.values is None else case.values[:-1, b],
        policy=torch.softmax(logits, dim=-1),
        policy_confidence=-entropy(logits),
        y_confidence=None if y is None else -entropy(y[:-1, b]),
        push=case.pushes["policy"][:, b],
    )
