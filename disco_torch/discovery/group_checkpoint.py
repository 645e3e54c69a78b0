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
from disco_torch.discovery.host_environments import HostEnvironments
from disco_torch.discovery.local_group import LocalGroup
from disco_torch.runs import pack, unpack
from disco_torch.runs.checkpoint import (
    FIX,
    MAX_COUNT,
    CheckpointMismatch,
    check_names,
    check_range,
    restore_generator,
    typed,
)
from disco_torch.types import Params, tree_map

NAMES = ("ids", "agents", "shared_values", "lives", "environments", "window", "position", "generator")
Plain = dict[str, Any]
"""Tensors on the CPU and plain values, which load without running any code."""


def group_parts(group: LocalGroup, optimizers: Any) -> dict[str, Any]:
    """All that changes in a group and has a row for each of its agents, [P, ...] leaves."""
    state = group.state
    parts = {
        "learners": state.learners,
        "values": None if group.shared_value_groups else state.values,
        "returns": state.acting.returns,
        "memory": state.acting.memory,
        "replay": None if state.replay is None else (state.replay.trajectories, state.replay.sizes),
        "window": [(update.saved, update.rollout, update.alive) for update in state.window],
        "optimizers": optimizers,
        "inputs": state.inputs,
    }
    return {name: part for name, part in parts.items() if part is not None}


def put_parts(group: LocalGroup, parts: dict[str, Any], shared_values: Any, position: int) -> None:
    """The inverse of `group_parts`, with what has no rows of agents besides."""
    state = group.state
    state.learners, state.inputs = parts["learners"], parts.get("inputs")
    state.acting.returns, state.acting.memory = parts["returns"], parts.get("memory")
    state.values = shared_values if group.shared_value_groups else parts["values"]
    if state.replay is not None:
        trajectories, sizes = parts["replay"]
        state.replay = ReplayState(trajectories, sizes, torch.full_like(state.replay.next, position))
    for update, (saved, rollout, alive) in zip(state.window, parts["window"], strict=True):
        update.saved, update.rollout, update.alive = saved, rollout, alive


def save_group(group: LocalGroup, optimizers: Any) -> Plain:
    """This process's share of a group."""
    if not group.num_agents:
        return {"ids": []}
    environments = {}
    for i, habitat in enumerate(group.habitats.habitats):
        leaves = pack(environments_of(group, i))  # none on the host
        rows = {name: leaf.unflatten(0, (-1, group.config.num_parallel_envs)) for name, leaf in leaves.items()}
        environments[str(group.habitats.all.index(habitat))] = {"mine": list(habitat.mine), "leaves": rows}
    return {
        "ids": list(group.habitats.ids),
        "agents": pack(group_parts(group, optimizers)),
        "shared_values": pack(group.state.values) if group.shared_value_groups else {},
        "lives": [list(numbers) for numbers in (group.lives, group.ages, group.lifetimes)],
        "environments": environments,
        "window": [pack(update.rule_params) for update in group.state.window],
        "position": 0 if group.state.replay is None else int(group.state.replay.next),
        "generator": group.generator.get_state(),
    }


def environments_of(group: LocalGroup, i: int) -> dict[str, Any]:
    """The state of a habitat's environments and the rows to act on next, leaves of [agents * environments, ...].

    Empty where they are on the host: their state cannot be stored, and new episodes begin after a resume.
    """
    if isinstance(group.habitats.habitats[i].env, HostEnvironments):
        return {}
    return {"state": group.state.acting.env_states[i], "step": group.state.acting.steps[i]}


def merge_groups(parts: list[Plain], total: int) -> Plain:
    """The whole group, from the shares of all processes; rows are in the order of the agents."""
    parts = [part for part in parts if part["ids"]]
    whole = dict(parts[0])
    ids = [part["ids"] for part in parts]
    whole["ids"] = list(range(total))
    whole["agents"] = merge_rows([part["agents"] for part in parts], ids)
    whole["lives"] = [merge_lists([part["lives"][i] for part in parts], ids) for i in range(3)]
    names = sorted({name for part in parts for name in part["environments"]})
    whole["environments"] = {}
    for name in names:
        having = [part["environments"][name] for part in parts if name in part["environments"]]
        mine = [share["mine"] for share in having]
        leaves = merge_rows([share["leaves"] for share in having], mine)
        whole["environments"][name] = {"mine": sorted(chain(*mine)), "leaves": leaves}
    return whole


def merge_rows(parts: list[dict[str, Tensor]], ids: list[list[int]]) -> dict[str, Tensor]:
    order = torch.argsort(torch.tensor(list(chain(*ids))))
    return {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}


def merge_lists(parts: list[list[int]], ids: list[list[int]]) -> list[int]:
    pairs = sorted(zip(chain(*ids), chain(*parts), strict=True))
    return [value for _, value in pairs]


def load_group(group: LocalGroup, whole: Plain, optimizers: Any, rule_params: Params, same_device: bool, where: str) -> Any:
    """Takes this process's agents out of a whole group; returns their optimisers."""
    if type(whole) is dict and "worlds" in whole:  # what checkpoints called this part at first
        whole = {"environments" if name == "worlds" else name: part for name, part in whole.items()}
    check_names(whole, NAMES, where)
    _check_ids(whole["ids"], group.own.num_agents, f"{where}/ids")
    if same_device:
        restore_generator(group.generator, whole["generator"], f"{where}/generator")
    if not group.num_agents:
        return optimizers
    state = group.state
    blank = group.blank_update(rule_params)
    window = typed(whole, "window", list, where)
    check_range(f"{where}/window", [len(window)], 0, group.config.window - group.config.updates_per_meta_update)
    state.window = [
        WindowUpdate(unpack(leaves, rule_params, f"{where}/window/{i}/rule"), blank.saved, blank.rollout, blank.alive)
        for i, leaves in enumerate(window)
    ]
    like, total = group_parts(group, optimizers), (group.own.num_agents,)
    parts = take_rows(typed(whole, "agents", dict, where), like, group.habitats.ids, total, f"{where}/agents")
    shared = unpack(whole["shared_values"], state.values, f"{where}/values") if group.shared_value_groups else None
    put_parts(group, parts, shared, typed(whole, "position", int, where))
    _check_numbers(group, where)
    group.lives, group.ages, group.lifetimes = _lives(group, typed(whole, "lives", list, where), where)
    environments = whole["environments"]
    check_names(environments, map(str, range(len(group.habitats.all))), f"{where}/environments")
    for i, habitat in enumerate(group.habitats.habitats):
        name, rows = str(group.habitats.all.index(habitat)), (habitat.config.agents, group.config.num_parallel_envs)
        check_names(environments[name], ("mine", "leaves"), f"{where}/environments/{name}")
        _check_ids(environments[name]["mine"], habitat.config.agents, f"{where}/environments/{name}/mine")
        leaves = typed(environments[name], "leaves", dict, f"{where}/environments/{name}")
        like = tree_map(lambda x: x.unflatten(0, (-1, group.config.num_parallel_envs)), environments_of(group, i))
        restored = take_rows(leaves, like, list(habitat.mine), rows, f"{where}/environments/{name}")
        restored = tree_map(lambda x: x.flatten(0, 1), restored)
        if restored:
            state.acting.env_states[i], state.acting.steps[i] = restored["state"], restored["step"]
    group.restart_hosts()
    return parts.get("optimizers")


def take_rows(leaves: Plain, like: Any, rows: list[int], total: tuple[int, ...], where: str) -> Any:
    """This process's rows of leaves [*total, ...] of all agents. Shapes are compared first: a leaf may claim any size."""

    def blank(x: Tensor) -> Tensor:
        return torch.empty((), dtype=x.dtype).expand(*total, *x.shape[len(total) :])

    whole = unpack(leaves, tree_map(blank, like), where)
    return tree_map(lambda x, old: x[torch.tensor(rows)].to(old.device), whole, like)


def _check_ids(ids: Any, total: int, where: str) -> None:
    if type(ids) is not list or any(type(i) is not int for i in ids) or ids != list(range(total)):
        raise CheckpointMismatch(f"the checkpoint's `{where}` must be the numbers of all {total} agents in order; {FIX}.")


def _check_numbers(group: LocalGroup, where: str) -> None:
    """Raises where actions or places in the replay are not in their range: they are used as indices."""
    state, last = group.state, group.habitats.num_actions - 1
    for i, update in enumerate(state.window):
        check_range(f"{where}/agents/window/{i}/1/actions", update.rollout.actions, 0, last)
    if state.replay is not None:
        capacity = group.config.replay_capacity
        check_range(f"{where}/agents/replay/0/actions", state.replay.trajectories.actions, 0, last)
        check_range(f"{where}/agents/replay/1", state.replay.sizes, 0, capacity)
        check_range(f"{where}/position", state.replay.next.reshape(-1), 0, capacity - 1)


def _lives(group: LocalGroup, lists: list[Any], where: str) -> list[list[int]]:
    """Which life each agent of this process is in, its age and its lifetime."""
    total = group.own.num_agents
    for numbers in lists if len(lists) == 3 else [()]:
        if type(numbers) is not list or len(numbers) != total or any(type(x) is not int for x in numbers):
            raise CheckpointMismatch(f"the checkpoint's `{where}/lives` must be 3 lists of {total} integers; {FIX}.")
        check_range(f"{where}/lives", numbers, 0, MAX_COUNT)
    return [[numbers[i] for i in group.habitats.ids] for numbers in lists]
