"""A training run in several processes: what each of them has of it, and checkpoints that any number of them can continue.

A checkpoint is that of one process: rows of environments are put one behind the other in the order of ranks, and stored
trajectories in the order in which one process with all environments would have stored them. Only `generator` differs, which
has a row for each process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from disco_torch.data import ActorState, InputStats
from disco_torch.envs import Environment, EnvironmentFailure
from disco_torch.runs import CheckpointMismatch, ProcessLost, World, pack, unpack
from disco_torch.runs.checkpoint import FIX, check_range, list_checkpoints, restore_generator, typed
from disco_torch.training.config import TrainConfig
from disco_torch.training.recorded_update import Learning
from disco_torch.types import tree_items, tree_map

DIVIDED = ("num_envs", "batch_size", "replay_capacity")
"""Settings of the whole run of which each process has its share."""
SEED_STEP = 2_000_000_011
"""Between the seeds of the random numbers of two processes."""
PATIENCE = timedelta(hours=1)
"""How long a process waits for the others: longer than the first one takes for an evaluation."""
Plain = dict[str, Any]
Episode = tuple[float, float]
"""Its return and length."""


def share_of(config: TrainConfig, size: int) -> TrainConfig:
    """The settings of one of `size` processes, with its share of environments, batch and replay."""
    if size == 1:
        return config
    for name in DIVIDED:
        value = getattr(config, name)
        if value % size:
            option, near = name.replace("_", "-"), -(-value // size) * size
            raise ValueError(
                f"`{name}` must be a multiple of the number of processes, {size}, which share it evenly, got {value}; use "
                f"--{option} {near}, or another --nproc-per-node."
            )
    return dataclasses.replace(config, **{name: getattr(config, name) // size for name in DIVIDED})


def begin_alike(world: World, modules: Sequence[nn.Module], learning: Learning) -> Learning:
    """The state of the first process; its modules, too, which a user may have made with other random numbers. Collective."""
    if world.size == 1:
        return learning
    weights = world.share(lambda: [pack(module.state_dict()) for module in modules])
    for module, own in zip(modules, weights, strict=True):
        module.load_state_dict(own)
    return unpack(world.share(lambda: pack(learning)), learning)


def episodes_of_all(world: World, ends: Tensor, finished: list[Episode]) -> list[Episode]:
    """The episodes of all processes, in the order in which one process would have met their ends. Collective.

    Args:
      world: the processes.
      ends: [rows, B], which rows ended an episode here.
      finished: this process's episodes, as many as there are ends.
    """
    rows = ends.nonzero()[:, 0].tolist()
    parts = world.gather_in_all(list(zip(rows, finished, strict=True)))
    return [episode for _, episode in sorted(chain(*parts), key=lambda each: each[0])]


@contextmanager
def failing_together(world: World) -> Iterator[None]:
    """Where the environments of one process fail, all raise: they save the state together. Collective."""
    failure = None
    try:
        yield
    except EnvironmentFailure as error:
        if world.size == 1:
            raise
        failure = error
    if world.any(failure is not None):
        reasons = world.gather_in_all(None if failure is None else str(failure))
        rank, reason = next((i, reason) for i, reason in enumerate(reasons) if reason is not None)
        raise EnvironmentFailure(f"process {rank}: {reason}") from failure


def seed_of(config: TrainConfig, rank: int, rollouts: int = 0) -> int:
    """Seed of the random numbers of a process that has no stream of its own yet, at a point of the run."""
    return config.seed + rank * SEED_STEP + rollouts


@contextmanager
def saying_how_to_resume(checkpoints: Path) -> Iterator[None]:
    """Adds to the error of a lost process what to do next."""
    try:
        yield
    except ProcessLost as error:
        how = f"resume with `torchrun ... -m disco_torch train --resume {checkpoints.parent}`"
        if checkpoints.is_dir() and not list_checkpoints(checkpoints):  # other machines may not have the folder
            how = "it had not written a checkpoint yet, start it again"
        raise ProcessLost(f"{error}; {how}.") from error


# Putting together.


def joined(parts: list[Plain]) -> Plain:
    """`generator`, `inputs` and `actor` of the whole run, from those of its processes."""
    if len(parts) == 1:
        return parts[0]
    whole = dict(parts[0])
    whole["generator"] = torch.stack([part["generator"] for part in parts])
    if whole["inputs"] is not None:
        rows = {name: torch.cat([part["inputs"][name] for part in parts]) for name in _row_names(whole["inputs"])}
        whole["inputs"] = whole["inputs"] | rows
    if whole["actor"] is not None:
        whole["actor"] = {name: torch.cat([part["actor"][name] for part in parts]) for name in whole["actor"]}
    return whole


def _row_names(inputs: Plain) -> list[str]:
    """Names of the statistics of inputs that have a row for each environment; the others are the same in all processes."""
    return [name for name in ("returns", "executed") if name in inputs]


def saves_actor(env: Environment, actor: ActorState, world: World) -> bool:
    """Whether checkpoints hold the environments. Those of several processes must have a row each in all tensors, to be put
    together and divided again.
    """
    if world.size == 1 or not env.saves_state:
        return env.saves_state
    return all(isinstance(x, Tensor) and x.ndim > 0 and x.shape[0] == env.num_envs for _, x in tree_items(actor))


def join_replay(world: World, own: Plain, num_envs: int) -> Plain | None:
    """The replay of the whole run in the first process; None in the others. Collective; one tensor at a time.

    Args:
      world: the processes.
      own: state of this process's replay; all have stored as many trajectories.
      num_envs: environments of this process.
    """
    if world.size == 1:
        return own
    order = stored_order(own["size"], num_envs, world.size)
    tensors = {}
    for name, tensor in own["tensors"].items():
        parts = world.gather(tensor)
        if parts is not None:
            tensors[name] = torch.cat(parts)[order]
    return own | {"size": own["size"] * world.size, "tensors": tensors} if world.is_first else None


def stored_order(each: int, num_envs: int, size: int) -> Tensor:
    """Where the trajectories of all processes, the oldest first, are found in their rings put one behind the other.

    A process has stored `each` trajectories, `num_envs` at a time: those of the newest rollout are the last ones.
    """
    index = torch.arange(each * size)
    rank, place = index // each, index % each
    back = each - 1 - place  # 0 is the newest
    rollout, env = back // num_envs, num_envs - 1 - back % num_envs
    # By time, then by process, then by environment.
    return torch.argsort((-rollout * size + rank) * num_envs + env)


# Dividing.


def share_of_actor(leaves: Any, like: Any, config: TrainConfig, world: World) -> Any:
    """This process's environments, out of those of the whole run."""
    if world.size == 1:
        return unpack(leaves, like, "actor")
    whole = unpack(leaves, tree_map(lambda x: _blank(x, config.num_envs), like), "actor")
    mine = _rows(config, world)
    return tree_map(lambda x, old: x[mine].to(old.device), whole, like)


def share_of_inputs(leaves: Any, like: InputStats, config: TrainConfig, world: World) -> InputStats:
    """The statistics of inputs, with the running returns of this process's environments."""
    if world.size == 1 or like.returns is None or like.executed is None:
        return unpack(leaves, like, "inputs")
    returns, executed = (_blank(x, config.num_envs) for x in (like.returns, like.executed))
    whole = unpack(leaves, dataclasses.replace(like, returns=returns, executed=executed), "inputs")
    assert whole.returns is not None and whole.executed is not None
    mine, device = _rows(config, world), like.returns.device
    return dataclasses.replace(whole, returns=whole.returns[mine].to(device), executed=whole.executed[mine].to(device))


def _blank(x: Tensor, num_envs: int) -> Tensor:
    """Shape and dtype of a tensor with a row for each environment of the whole run; it takes no memory."""
    return torch.empty((), dtype=x.dtype).expand(num_envs, *x.shape[1:])


def _rows(config: TrainConfig, world: World) -> slice:
    each = config.num_envs // world.size
    return slice(world.rank * each, (world.rank + 1) * each)


def share_of_replay(whole: Any, config: TrainConfig, world: World) -> Any:
    """This process's trajectories, out of those of the whole run; where they cannot be shared evenly, without the oldest."""
    if world.size == 1:
        return whole
    if type(whole) is not dict:
        raise CheckpointMismatch(f"the checkpoint's `replay` must be dict, got {type(whole).__name__}; {FIX}.")
    size, tensors = typed(whole, "size", int, "replay"), typed(whole, "tensors", dict, "replay")
    check_range("replay/size", [size], 0, config.replay_capacity)
    each = size // world.size
    order = stored_order(each, config.num_envs // world.size, world.size)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order)) + size - len(order)
    mine = places[world.rank * each : (world.rank + 1) * each]
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.ndim == 0 or len(tensor) != size:
            raise CheckpointMismatch(f"the checkpoint's `replay/tensors/{name}` must have {size} trajectories; {FIX}.")
    return whole | {"size": each, "tensors": {name: tensor[mine] for name, tensor in tensors.items()}}


def was_split(state: Plain) -> bool:
    """Whether a checkpoint is of several processes."""
    return _are_of_several(state["generator"])


def _are_of_several(states: Any) -> bool:
    return isinstance(states, Tensor) and states.ndim == 2


def restore_stream(generator: torch.Generator, states: Any, world: World, seed: int) -> None:
    """Continues this process's random numbers; one that the checkpoint has none of begins with the seed."""
    # cloned: a generator reads whole words, and a row of a tensor may begin between two.
    each = [row.clone() for row in states] if _are_of_several(states) else [states]
    if world.rank < len(each):
        restore_generator(generator, each[world.rank])
    else:
        generator.manual_seed(seed)
