"""Stacks of frames, stored once a frame: a rollout as a replay keeps it, and back.

Of a trajectory whose observation is a stack of `k` frames in each of its rows, these are stored: the newest frame of every
row, in the place of the stack; the older frames of the first row; and in which rows an episode began anew.

    row        0          1          2          3                      k = 3, "-" is padding
    stack      a b c      b c d      - - e      - e f                  row 2 begins an episode
    newest         c          d          e          f
    older      a b                                                     rows + k - 1 frames, and a bit for each row

What begins anew is told by the frames themselves: a row goes on if its older frames are the newer ones of the row before.
So what is put together again is right whatever ended there, by a terminal state or a time limit. All is computed on the
device and nothing is read back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from disco_torch.envs import FrameStack
from disco_torch.envs.base import ROOT
from disco_torch.types import Observations, Rollout, flatten_tree, tree_dataclass, tree_items, unflatten_tree

FrameStacks = Mapping[str, FrameStack]
"""The leaves of an observation that are stacks of frames, by name, as `Environment.frame_stacks`."""


@tree_dataclass
class FirstRow:
    """What is stored once for each trajectory, in the place of a rollout's `first_state`.

    Attributes:
      memory: the agent's memory before the first row, a tree of [B, ...], or None.
      older: frames before the newest one in the first row of each stack, [B, k-1, ...], by name.
      begins: [B, rows] bool by name, rows whose older frames are padding.
    """

    memory: Any
    older: dict[str, Tensor]
    begins: dict[str, Tensor]


def compact(rollout: Rollout, stacks: FrameStacks) -> tuple[Rollout, Tensor]:
    """A rollout with each frame once.

    Args:
      rollout: [rows, B] or, of a population, [P, rows, B]; the leaves of `stacks` are [..., k, *frame].
      stacks: which leaves of the observation these are.

    Returns:
      The same rollout with these leaves [..., *frame] and a `FirstRow` in its `first_state`; and [] bool, whether `expand`
      gives the rollout back.
    """
    lead = rollout.rewards.ndim - 2
    whole = torch.ones((), dtype=torch.bool, device=rollout.rewards.device)
    if not stacks:
        return rollout, whole
    first = FirstRow(rollout.first_state, {}, {})
    leaves = {}
    for name, leaf in tree_items(rollout.observations, ROOT):
        leaves[name] = leaf
        if name not in stacks:
            continue
        x = leaf.movedim(lead, 0)  # [rows, (P,) B, k, *frame]
        frame = lead + 2
        x = x.movedim(frame, 0)  # [k, rows, (P,) B, *frame]
        goes_on = _same(x[:-1, 1:], x[1:, :-1], lead)  # [rows - 1, (P,) B]
        padding = x[-1:] if stacks[name].padding == "first" else torch.zeros_like(x[-1:])
        is_first = _same(x[:-1, 1:], padding[:, 1:].expand_as(x[:-1, 1:]), lead)
        whole = whole & (goes_on | is_first).all()
        leaves[name] = x[-1].movedim(0, lead)
        first.older[name] = x[:-1, 0].movedim(0, lead + 1)  # [(P,) B, k-1, *frame]
        first.begins[name] = torch.cat([torch.zeros_like(goes_on[:1]), ~goes_on]).movedim(0, -1)  # [(P,) B, rows]
    return dataclasses.replace(rollout, observations=_with_leaves(rollout.observations, leaves), first_state=first), whole


def expand(stored: Rollout, stacks: FrameStacks) -> Rollout:
    """The inverse of `compact`: every row with its whole stack."""
    if not stacks:
        return stored
    lead, first = stored.rewards.ndim - 2, stored.first_state
    leaves = {
        name: leaf if name not in stacks else _stacks(leaf, first.older[name], first.begins[name], stacks[name], lead)
        for name, leaf in tree_items(stored.observations, ROOT)
    }
    return dataclasses.replace(stored, observations=_with_leaves(stored.observations, leaves), first_state=first.memory)


def _stacks(newest: Tensor, older: Tensor, begins: Tensor, stack: FrameStack, lead: int) -> Tensor:
    """[(P,) rows, B, k, *frame] of the stored parts of a leaf."""
    newest, older, begins = newest.movedim(lead, 0), older.movedim(lead + 1, 0), begins.movedim(-1, 0)  # [.., (P,) B, ..]
    batch, frame = begins.shape[1:], newest.shape[lead + 2 :]
    frames = torch.cat([older, newest]).flatten(1, lead + 1)  # [k-1+rows, P * B, *frame]: stack t begins at frame t
    rows, last = begins.shape[0], stack.size - 1
    row = torch.arange(rows, device=newest.device).unsqueeze(1)
    first = torch.where(begins.flatten(1), row + last, 0).cummax(0).values.unsqueeze(2)  # [rows, P * B, 1]
    index = row.unsqueeze(2) + torch.arange(stack.size, device=newest.device)  # [rows, 1, k]
    stacks = frames[index.maximum(first), torch.arange(frames.shape[1], device=newest.device).unsqueeze(1)]
    if stack.padding == "zeros":
        stacks = stacks.masked_fill_((index < first)[(...,) + (None,) * len(frame)], 0)
    return stacks.unflatten(1, batch).movedim(0, lead)


def _same(x: Tensor, y: Tensor, lead: int) -> Tensor:
    """[rows, (P,) B]: whether the frames [k, rows, (P,) B, *frame] of two tensors are equal."""
    return (x == y).flatten(lead + 3).all(-1).all(0) if x.ndim > lead + 3 else (x == y).all(0)


def _with_leaves(observations: Observations, leaves: dict[str, Any]) -> Observations:
    """A tree in the structure of `observations` with the given leaves, in the order of `tree_items`."""
    return unflatten_tree(leaves.values(), flatten_tree(observations)[1])


def check_stacks(rollout: Rollout, expanded: Rollout) -> None:
    """Raises where a [rows, B] rollout is not what its frames, each stored once, give back, and names the first such row."""
    for (name, x), (_, y) in zip(*(tree_items(each.observations, ROOT) for each in (rollout, expanded)), strict=True):
        differ = (x != y).flatten(2).any(-1).nonzero().tolist()
        if differ:
            row, trajectory = differ[0]
            raise ValueError(
                f"`{name}` must be a stack of frames, each row with the frames of the row before moved up by one place or "
                f"padded as the first of an episode; got another one in row {row} of trajectory {trajectory}; leave the "
                "`frame_stacks` of the environment empty, so that whole stacks are stored."
            )
