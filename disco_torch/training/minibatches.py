"""Minibatches: the steps of a rollout, in any order, for several gradient steps on the same targets.

A loss reads a step, and of the rows on both sides of it no others. So a table with one line a step serves it, whatever the
order of the lines: quantities of steps, [T, B, ...], take one place in a line and quantities of rows, [T+1, B, ...], two.
An agent with memory must read the rows of a trajectory in their order: then a line is a whole trajectory.
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


@tree_dataclass
class StepTable:
    """What the losses of `N` steps need, each leaf [N, 1, ...] or, for the rows before and after a step, [N, 2, ...]; of
    an agent with memory, of `N` trajectories, each leaf [N, T, ...] or [N, T+1, ...].

    Attributes:
      inputs: what the rule saw, with the agent's outputs from when the targets were computed.
      targets: the rule's targets.
      memory: before each trajectory, a tree of [N, ...]; None for an agent without memory.
    """

    inputs: UpdateRuleInputs
    targets: Targets
    memory: Any = None

    @property
    def num_lines(self) -> int:
        return self.inputs.rewards.shape[0]


def make_table(inputs: UpdateRuleInputs, targets: Targets, memory: Any = None) -> StepTable:
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
        x = x.detach()  # computed before the gradient steps, and a constant of them
        if memory is not None:
            return x.transpose(0, 1)  # [B, T or T+1, ...]
        places = x.unsqueeze(2) if rows == T else torch.stack([x[:-1], x[1:]], dim=2)  # [T, B, 1 or 2, ...]
        return places.flatten(0, 1)  # [T * B, 1 or 2, ...]

    table = tree_map(lines, StepTable(inputs, targets))
    return dataclasses.replace(table, memory=memory)


def draw_orders(epochs: int, num_lines: int, generator: torch.Generator | None, device: torch.device | str) -> Tensor:
    """A random order of all lines of a table for each epoch, [epochs, N]."""
    return torch.stack([torch.randperm(num_lines, generator=generator, device=device) for _ in range(epochs)])


def minibatches_of(table: StepTable, order: Tensor, number: int) -> list[StepTable]:
    """The lines in the given order, [N], divided into parts whose sizes differ by one at most."""
    if number == 1:
        return [table]
    if number > table.num_lines:
        lines, fix = ("steps", "use longer rollouts") if table.memory is None else ("trajectories", "use larger batches")
        raise ValueError(
            f"`minibatches` must be at most the number of {lines} of a batch, {table.num_lines}, got {number}; {fix}, or "
            "fewer minibatches."
        )
    shuffled = tree_map(lambda x: x.index_select(0, order), table)
    ends = [part[-1] + 1 for part in torch.arange(table.num_lines).tensor_split(number)]
    starts = [0, *ends[:-1]]
    return [tree_map(lambda x, a=a, b=b: x[a:b], shuffled) for a, b in zip(starts, ends, strict=True)]


def rows_of(table: StepTable) -> Rollout:
    """What the agent runs on again: the trajectories, [T+1, M], of an agent with memory; else the rows before the steps, as
    a rollout of M steps and a batch of 1.

    An agent runs on rows, one more than there are steps; the last one is any.
    """
    inputs = table.inputs

    def rows(x: Tensor) -> Tensor:
        return x.transpose(0, 1) if table.memory is not None else torch.cat([x[:, :1], x[:1, 1:]])  # [M+1, 1, ...]

    actions, logits = rows(inputs.actions), rows(inputs.behaviour_logits())
    blank = torch.zeros_like(actions, dtype=inputs.rewards.dtype)
    return Rollout(tree_map(rows, inputs.observations), actions, blank, blank, logits, first_state=table.memory)


def resets_of(table: StepTable) -> Tensor:
    """Which of `rows_of` begin an episode, [T+1, M]; [M+1, 1], all of them, for an agent without memory."""
    if table.memory is not None:
        return table.inputs.should_reset_mask_fwd.transpose(0, 1)
    return torch.ones(table.num_lines + 1, 1, dtype=torch.bool, device=table.inputs.rewards.device)


def inputs_of(table: StepTable, outputs: LearningOutputs) -> tuple[UpdateRuleInputs, Targets]:
    """The steps as a rollout, with outputs for `rows_of` in place of the stored ones: of T steps and a batch of M
    trajectories for an agent with memory, else of one time step and a batch of M.

    In the latter the row after each step keeps its stored outputs, which are constants.
    """

    def steps(x: Any) -> Any:
        return tree_map(lambda leaf: leaf.transpose(0, 1), x)  # [1 or 2, M, ...] or [T or T+1, M, ...]

    inputs, targets = steps(dataclasses.replace(table.inputs, agent_out={})), steps(table.targets)
    if table.memory is not None:
        return dataclasses.replace(inputs, agent_out=outputs.outputs, taken_out=outputs.taken), targets
    taken = None if outputs.taken is None else steps(outputs.taken)
    stored = steps(table.inputs.agent_out)
    both = {name: torch.cat([steps(x[:-1]), stored[name][1:]]) for name, x in outputs.outputs.items()}  # [2, M, ...]
    return dataclasses.replace(inputs, agent_out=both, taken_out=taken), targets
