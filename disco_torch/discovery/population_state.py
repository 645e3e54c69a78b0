"""The state of a population, put together from all processes and split again over any number of them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from disco_torch.data import ReplayState
from disco_torch.discovery.group_state import WindowUpdate
from disco_torch.discovery.population import Population
from disco_torch.types import Params

Plain = dict[str, Any]
"""Tensors on the CPU and plain values, which load without running any code."""


def group_parts(group: Population, optimizers: Any) -> Any:
    """All that changes in a group and has a row for each of its agents, [P, ...] leaves."""
    state = group.state
    rings = None if state.replay is None else (state.replay.trajectories, state.replay.sizes)
    records = [(update.saved, update.rollout, update.alive) for update in state.window]
    values = None if group.shared_value_groups else state.values
    return state.learners, values, state.acting.returns, rings, records, optimizers


def save_group(group: Population, optimizers: Any) -> Plain:
    """This process's share of a group."""
    if not group.num_agents:
        return {"ids": []}
    worlds = {}
    for i, habitat in enumerate(group.habitats.habitats):
        state = (group.state.acting.worlds[i], group.state.acting.steps[i])
        index = group.habitats.all.index(habitat)
        worlds[str(index)] = {"mine": list(habitat.mine), "leaves": cpu_leaves(state, group.config.num_copies)}
    return {
        "ids": list(group.habitats.ids),
        "agents": cpu_leaves(group_parts(group, optimizers)),
        "shared_values": cpu_leaves(group.state.values) if group.shared_value_groups else [],
        "lives": [list(numbers) for numbers in (group.lives, group.ages, group.lifetimes)],
        "worlds": worlds,
        "window": [cpu_leaves(update.rule_params) for update in group.state.window],
        "position": 0 if group.state.replay is None else int(group.state.replay.next),
        "generator": group.generator.get_state(),
    }


def cpu_leaves(tree: Any, copies: int = 1) -> list[Tensor]:
    """The tensors of a tree; with `copies`, [P * copies, ...] leaves become [P, copies, ...]."""
    leaves = [leaf.detach().cpu() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    return leaves if copies == 1 else [leaf.unflatten(0, (-1, copies)) for leaf in leaves]


def merge_groups(parts: list[Plain], total: int) -> Plain:
    """The whole group, from the shares of all processes; rows are in the order of the agents."""
    parts = [part for part in parts if part["ids"]]
    whole = dict(parts[0])
    ids = [part["ids"] for part in parts]
    whole["ids"] = list(range(total))
    whole["agents"] = merge_rows([part["agents"] for part in parts], ids)
    whole["lives"] = [merge_lists([part["lives"][i] for part in parts], ids) for i in range(3)]
    names = sorted({name for part in parts for name in part["worlds"]})
    whole["worlds"] = {}
    for name in names:
        having = [part["worlds"][name] for part in parts if name in part["worlds"]]
        mine = [world["mine"] for world in having]
        leaves = merge_rows([world["leaves"] for world in having], mine)
        whole["worlds"][name] = {"mine": sorted(chain(*mine)), "leaves": leaves}
    return whole


def merge_rows(parts: list[list[Tensor]], ids: list[list[int]]) -> list[Tensor]:
    order = torch.argsort(torch.tensor(list(chain(*ids))))
    return [torch.cat(leaves)[order] for leaves in zip(*parts, strict=True)]


def merge_lists(parts: list[list[int]], ids: list[list[int]]) -> list[int]:
    pairs = sorted(zip(chain(*ids), chain(*parts), strict=True))
    return [value for _, value in pairs]


def load_group(group: Population, whole: Plain, optimizers: Any, eta: Params, same_device: bool) -> Any:
    """Takes this process's agents out of a whole group; returns their optimisers."""
    if same_device:
        group.generator.set_state(whole["generator"])
    if not group.num_agents:
        return optimizers
    copies, rows, state = group.config.num_copies, torch.tensor(group.habitats.ids), group.state
    blank = group.blank_update(eta)
    state.window = [WindowUpdate(fill(eta, leaves), blank.saved, blank.rollout, blank.alive) for leaves in whole["window"]]
    parts = group_parts(group, optimizers)
    learners, values, returns, rings, records, optimizers = fill(parts, [leaf[rows] for leaf in whole["agents"]])
    state.learners, state.acting.returns = learners, returns
    state.values = fill(state.values, whole["shared_values"]) if group.shared_value_groups else values
    if state.replay is not None:
        state.replay = ReplayState(rings[0], rings[1], torch.full_like(state.replay.next, whole["position"]))
    for update, (saved, rollout, alive) in zip(state.window, records, strict=True):
        update.saved, update.rollout, update.alive = saved, rollout, alive
    group.lives, group.ages, group.lifetimes = ([numbers[i] for i in group.habitats.ids] for numbers in whole["lives"])
    for i, habitat in enumerate(group.habitats.habitats):
        mine = torch.tensor(list(habitat.mine))
        stored = whole["worlds"][str(group.habitats.all.index(habitat))]["leaves"]
        leaves = [leaf[mine].flatten(0, 1) if copies > 1 else leaf[mine] for leaf in stored]
        acting = state.acting
        acting.worlds[i], acting.steps[i] = fill((acting.worlds[i], acting.steps[i]), leaves)
    return optimizers


def fill(tree: Any, leaves: list[Tensor]) -> Any:
    """A tree like the given one with other tensors, on the same devices."""
    old, structure = pytree.tree_flatten(tree)
    places = [i for i, leaf in enumerate(old) if isinstance(leaf, Tensor)]
    if len(places) != len(leaves):
        raise ValueError(f"the checkpoint holds {len(leaves)} parts of a state, {len(places)} are needed; other settings?")
    for i, leaf in zip(places, leaves, strict=True):
        old[i] = leaf.to(old[i].device)
    return pytree.tree_unflatten(old, structure)
