"""The state of a population, put together from all processes and split again over any number of them.

Everything is by name: a leaf of a state is found under the path to it, as `tree_items` names it.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor

from disco_torch.data import ReplayState
from disco_torch.discovery.group_state import WindowUpdate
from disco_torch.discovery.population import Population
from disco_torch.runs import pack, unpack
from disco_torch.types import Params

Plain = dict[str, Any]
"""Tensors on the CPU and plain values, which load without running any code."""


def group_parts(group: Population, optimizers: Any) -> dict[str, Any]:
    """All that changes in a group and has a row for each of its agents, [P, ...] leaves."""
    state = group.state
    parts = {
        "learners": state.learners,
        "values": None if group.shared_value_groups else state.values,
        "returns": state.acting.returns,
        "replay": None if state.replay is None else (state.replay.trajectories, state.replay.sizes),
        "window": [(update.saved, update.rollout, update.alive) for update in state.window],
        "optimizers": optimizers,
        "inputs": state.inputs,
    }
    return {name: part for name, part in parts.items() if part is not None}


def put_parts(group: Population, parts: dict[str, Any], shared_values: Any, position: int) -> None:
    """The inverse of `group_parts`, with what has no rows of agents besides."""
    state = group.state
    state.learners, state.acting.returns, state.inputs = parts["learners"], parts["returns"], parts.get("inputs")
    state.values = shared_values if group.shared_value_groups else parts["values"]
    if state.replay is not None:
        trajectories, sizes = parts["replay"]
        state.replay = ReplayState(trajectories, sizes, torch.full_like(state.replay.next, position))
    for update, (saved, rollout, alive) in zip(state.window, parts["window"], strict=True):
        update.saved, update.rollout, update.alive = saved, rollout, alive


def save_group(group: Population, optimizers: Any) -> Plain:
    """This process's share of a group."""
    if not group.num_agents:
        return {"ids": []}
    worlds = {}
    for i, habitat in enumerate(group.habitats.habitats):
        leaves = pack(world_of(group, i))
        rows = {name: leaf.unflatten(0, (-1, group.config.num_parallel_envs)) for name, leaf in leaves.items()}
        worlds[str(group.habitats.all.index(habitat))] = {"mine": list(habitat.mine), "leaves": rows}
    return {
        "ids": list(group.habitats.ids),
        "agents": pack(group_parts(group, optimizers)),
        "shared_values": pack(group.state.values) if group.shared_value_groups else {},
        "lives": [list(numbers) for numbers in (group.lives, group.ages, group.lifetimes)],
        "worlds": worlds,
        "window": [pack(update.rule_params) for update in group.state.window],
        "position": 0 if group.state.replay is None else int(group.state.replay.next),
        "generator": group.generator.get_state(),
    }


def world_of(group: Population, i: int) -> dict[str, Any]:
    """The state of a habitat's environments and the rows to act on next, leaves of [agents * environments, ...]."""
    return {"state": group.state.acting.worlds[i], "step": group.state.acting.steps[i]}


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


def merge_rows(parts: list[dict[str, Tensor]], ids: list[list[int]]) -> dict[str, Tensor]:
    order = torch.argsort(torch.tensor(list(chain(*ids))))
    return {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}


def merge_lists(parts: list[list[int]], ids: list[list[int]]) -> list[int]:
    pairs = sorted(zip(chain(*ids), chain(*parts), strict=True))
    return [value for _, value in pairs]


def load_group(group: Population, whole: Plain, optimizers: Any, rule_params: Params, same_device: bool, where: str) -> Any:
    """Takes this process's agents out of a whole group; returns their optimisers."""
    if same_device:
        group.generator.set_state(whole["generator"])
    if not group.num_agents:
        return optimizers
    rows, state = torch.tensor(group.habitats.ids), group.state
    blank = group.blank_update(rule_params)
    state.window = [
        WindowUpdate(unpack(leaves, rule_params, f"{where}/window/{i}/rule"), blank.saved, blank.rollout, blank.alive)
        for i, leaves in enumerate(whole["window"])
    ]
    own = {name: leaf[rows] for name, leaf in whole["agents"].items()}
    parts = unpack(own, group_parts(group, optimizers), f"{where}/agents")
    shared = unpack(whole["shared_values"], state.values, f"{where}/values") if group.shared_value_groups else None
    put_parts(group, parts, shared, whole["position"])
    group.lives, group.ages, group.lifetimes = ([numbers[i] for i in group.habitats.ids] for numbers in whole["lives"])
    for i, habitat in enumerate(group.habitats.habitats):
        mine, name = torch.tensor(list(habitat.mine)), str(group.habitats.all.index(habitat))
        leaves = {key: leaf[mine].flatten(0, 1) for key, leaf in whole["worlds"][name]["leaves"].items()}
        world = unpack(leaves, world_of(group, i), f"{where}/worlds/{name}")
        state.acting.worlds[i], state.acting.steps[i] = world["state"], world["step"]
    return parts.get("optimizers")
