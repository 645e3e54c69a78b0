"""Minibatches: the steps of a rollout, in any order, for several gradient steps on the same targets.

A loss reads a step, and of the rows on both sides of it no others. So a table with one line a step serves it, whatever the
order of the lines: quantities of steps, [T, B, ...], take one place in a line and quantities of rows, [T+1, B, ...], two.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from disco_torch.types import LearningOutputs, Rollout, Targets, UpdateRuleInputs, tree_dataclass, tree_map


def check_gradient_steps(epochs: int, minibatches: int, max_gradient_norm: float) -> None:
    """Raises where the settings of an update's gradient steps are out of range."""
    for name, value in (("epochs", epochs), ("minibatches", minibatches)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")
    if not 0.0 <= max_gradient_norm < math.inf:
        raise ValueError(
            f"`max_gradient_norm` must be finite and not negative, got {max_gradient_norm}; 0 leaves gradients as they are."
        )


def check_no_memory(memory: Any, epochs: int, minibatches: int) -> None:
    """Raises where the agent has a memory, a tree or None, and an update is several gradient steps."""
    if memory is not None and epochs * minibatches > 1:
        raise ValueError(
            f"`epochs` and `minibatches` must be 1 for an agent with memory, got {epochs} and {minibatches}; steps in "
            "random order have no memory of the ones before. Set both to 1, or the agent's `core` to 'none'."
        )


@tree_dataclass
class StepTable:
    """What the losses of `N` steps need, each leaf [N, 1, ...] or, for the rows before and after a step, [N, 2, ...].

    Attributes:
      inputs: what the rule saw, with the agent's outputs from when the targets were computed.
      targets: the rule's targets.
    """

    inputs: UpdateRuleInputs
    targets: Targets

    @property
    def num_steps(self) -> int:
        return self.inputs.rewards.shape[0]


def table_of_steps(inputs: UpdateRuleInputs, targets: Targets) -> StepTable:
    """All steps of a rollout, those of the first time step first; constants, without what the agent computes again."""
    T, B = inputs.rewards.shape
    inputs = dataclasses.replace(inputs, taken_out=None, agent_summary=None)

    def lines(x: Tensor) -> Tensor:
        rows = x.shape[0] if x.ndim > 1 and x.shape[1] == B else -1
        if rows not in (T, T + 1):
            raise ValueError(
                f"the rule's targets must be [T, B, ...] or [T+1, B, ...] with T = {T} and B = {B} to be divided into "
                f"minibatches, got {list(x.shape)}; set `epochs` and `minibatches` to 1."
            )
        places = x.unsqueeze(2) if rows == T else torch.stack([x[:-1], x[1:]], dim=2)  # [T, B, 1 or 2, ...]
        # detached: all of it was computed before the gradient steps, and is a constant of them.
        return places.detach().flatten(0, 1)  # [T * B, 1 or 2, ...]

    return tree_map(lines, StepTable(inputs, targets))


def draw_orders(epochs: int, num_steps: int, generator: torch.Generator | None, device: torch.device | str) -> Tensor:
    """A random order of all steps for each epoch, [epochs, N]."""
    return torch.stack([torch.randperm(num_steps, generator=generator, device=device) for _ in range(epochs)])


def minibatches_of(table: StepTable, order: Tensor, number: int) -> list[StepTable]:
    """The steps in the given order, [N], divided into parts whose sizes differ by one at most."""
    if number == 1:
        return [table]
    if number > table.num_steps:
        raise ValueError(
            f"`minibatches` must be at most the number of steps of a batch, {table.num_steps}, got {number}; use longer "
            "rollouts, or fewer minibatches."
        )
    shuffled = tree_map(lambda x: x.index_select(0, order), table)
    ends = [part[-1] + 1 for part in torch.arange(table.num_steps).tensor_split(number)]
    starts = [0, *ends[:-1]]
    return [tree_map(lambda x, a=a, b=b: x[a:b], shuffled) for a, b in zip(starts, ends, strict=True)]


def rows_of(table: StepTable) -> Rollout:
    """The rows before the steps as a rollout of M steps and a batch of 1, for an agent without memory.

    An agent runs on rows, one more than there are steps; the last one is any.
    """
    inputs = table.inputs

    def rows(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], x[:1, 1:]])  # [M+1, 1, ...]

    blank = torch.zeros_like(rows(inputs.actions), dtype=inputs.rewards.dtype)
    logits = rows(inputs.behaviour_logits())
    return Rollout(tree_map(rows, inputs.observations), rows(inputs.actions), blank, blank, logits)


def inputs_of(table: StepTable, outputs: LearningOutputs) -> tuple[UpdateRuleInputs, Targets]:
    """The steps as a rollout of one time step and a batch of M, with outputs for `rows_of` in place of the stored ones.

    The row after each step keeps its stored outputs, which are constants.
    """

    def steps(x: Any) -> Any:
        return tree_map(lambda leaf: leaf.transpose(0, 1), x)  # [1 or 2, M, ...]

    before = {name: x[:-1] for name, x in outputs.outputs.items()}  # [M, 1, ...]
    stored = table.inputs.agent_out
    both = {name: torch.cat([x, stored[name][:, 1:]], dim=1) for name, x in before.items()}
    inputs = dataclasses.replace(table.inputs, agent_out=both, taken_out=outputs.taken)
    return steps(inputs), steps(table.targets)
