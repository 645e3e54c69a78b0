"""Replay: preallocated rings of trajectories, for one agent or for each of a population.

Observations keep their dtype, and of the behaviour only the logits are kept, so that a step takes the observation's bytes
plus 4 A (logits) + 4 (action) + 4 (reward) + 1 (end) + 1 (cut by a time limit) + 1 (executed, where first steps count). A
trajectory of an agent with memory also has the memory before its first row. Of stacks of frames `Replay` stores each frame
once, see `disco_torch.data.frames`.

`ReplayState` and the functions of it are pure but for `add_rollout`, which writes into the rings that it is given: nothing
is read back from the device, so that they can be captured. `Replay` holds such a state for one agent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from disco_torch.checks import check_actions
from disco_torch.data.capacity import check_capacity
from disco_torch.data.frames import FrameStacks, check_stacks, compact, expand
from disco_torch.data.transfers import beside_computation, to_device, used_now
from disco_torch.types import Observations, Rollout, flatten_tree, tree_dataclass, tree_leaves, tree_map


@tree_dataclass
class ReplayState:
    """The rings of `P` agents, or of one: then all is without the dimension `P`.

    Attributes:
      trajectories: [P, capacity, rows, ...] leaves, those of `first_state` [P, capacity, ...].
      sizes: [P], how many of the newest trajectories are the agent's own: a new agent must not learn from the experience of
        the one whose place it took.
      next: [], the place that is written next, in all rings: agents add at the same time.
    """

    trajectories: Rollout
    sizes: Tensor
    next: Tensor


def empty_replay(capacity: int, example: Rollout) -> ReplayState:
    """Rings of `capacity` trajectories such as those of a rollout with [P, rows, B, ...] leaves, or [rows, B, ...]."""
    agents = example.rewards.shape[:-2]  # () or (P,)
    like, memory = _compact(example), example.first_state
    like.first_state = None
    lead = len(agents)

    def ring(x: Tensor) -> Tensor:
        return x.new_zeros(*agents, capacity, x.shape[lead], *x.shape[lead + 2 :])

    def memory_ring(x: Tensor) -> Tensor:
        return x.new_zeros(*agents, capacity, *x.shape[lead + 1 :])

    batch = example.rewards.shape[-1]
    check_capacity(capacity, capacity * sum(x.nbytes // batch for x in _tensors((like, memory))), like.rewards.device)
    rings = tree_map(ring, like)
    rings.first_state = tree_map(memory_ring, memory)
    sizes = torch.zeros(agents, dtype=torch.long, device=like.rewards.device)
    return ReplayState(rings, sizes, sizes.new_zeros(()))


def add_rollout(state: ReplayState, rollout: Rollout) -> ReplayState:
    """Stores each entry of a [P, rows, B] rollout as a trajectory, over the oldest ones; writes into the given rings."""
    rings, new = state.trajectories, _compact(rollout)
    capacity, batch = rings.rewards.shape[-2], new.rewards.shape[-1]
    slots = (state.next + torch.arange(batch, device=state.next.device)) % capacity
    places, rows = _places(rings, slots.expand(*state.sizes.shape, -1))

    def put(rings: Any, new: Any, where: Tensor) -> None:
        last = where.ndim - 1
        for ring, x in zip(_tensors(rings), _tensors(new), strict=True):
            ring.flatten(0, last).index_copy_(0, where.flatten(), x.flatten(0, last).to(ring.device, ring.dtype))

    put(rings.first_state, new.first_state, places)
    put(_of_rows(rings), _of_rows(new), rows)
    return ReplayState(rings, (state.sizes + batch).clamp(max=capacity), (state.next + batch) % capacity)


def sample_rollout(state: ReplayState, uniforms: Tensor, num_fresh: int = 0, newer: int = 0) -> Rollout:
    """The newest `num_fresh` trajectories of each agent, and one for each of its uniform numbers, [P, n].

    The newest are counted without the `newer` ones that came last. An agent with fewer trajectories than that gets them
    again, from the newest on.

    Returns:
      A rollout of [P, rows, num_fresh + n, ...].
    """
    rings, sizes = state.trajectories, state.sizes.clamp(min=1).unsqueeze(-1)  # [P, 1]
    # How far back, 0 is the newest; the multiplication may round up to the size itself.
    back = torch.minimum((uniforms * sizes).long(), sizes - 1)
    if num_fresh:
        back = torch.cat([torch.arange(newer, newer + num_fresh, device=back.device) % sizes, back], dim=-1)
    places, rows = _places(rings, (state.next - 1 - back) % rings.rewards.shape[-2])

    def take(rings: Any, where: Tensor) -> Any:
        last, flat = where.ndim - 1, where.flatten()
        return tree_map(lambda ring: ring.flatten(0, last).index_select(0, flat).unflatten(0, where.shape), rings)

    rollout: Rollout = take(_of_rows(rings), rows)
    rollout.actions, rollout.discounts = rollout.actions.long(), rollout.discounts.to(rollout.rewards.dtype)
    rollout.first_state = take(rings.first_state, places)
    return rollout


def forget_agents(state: ReplayState, agents: Tensor) -> ReplayState:
    """Empties the rings of some agents, [n] indices."""
    return ReplayState(state.trajectories, state.sizes.index_fill(0, agents, 0), state.next)


def _places(rings: Rollout, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Places in all rings of the trajectories in slots [P, n] of each ring, [P, n], and of their rows, [P, rows, n]."""
    capacity, rows = rings.rewards.shape[-2:]
    if slots.ndim == 2:
        firsts = torch.arange(0, slots.shape[0] * capacity, capacity, device=slots.device)
        slots = slots + firsts.unsqueeze(1)
    return slots, (slots * rows).unsqueeze(-2) + torch.arange(rows, device=slots.device).unsqueeze(1)


def _compact(rollout: Rollout) -> Rollout:
    """A rollout in the dtypes that are stored."""
    return dataclasses.replace(rollout, actions=rollout.actions.int(), discounts=rollout.discounts > 0)


def _of_rows(rollout: Rollout) -> Rollout:
    """A rollout without what it has once for each trajectory."""
    return rollout if rollout.first_state is None else dataclasses.replace(rollout, first_state=None)


def _tensors(tree: Any) -> list[Tensor]:
    return [] if tree is None else [leaf for leaf in flatten_tree(tree)[0] if isinstance(leaf, Tensor)]


LEADING = {"observations": 2, "first_state": 1}
"""Dimensions before those of one entry, in the parts of a rollout whose shapes are the caller's."""


def _shapes(tree: Any, lead: int) -> list[tuple[int, ...]]:
    return [tuple(x.shape[lead:]) for x in _tensors(tree)]


class Replay:
    """The last `capacity` trajectories of one agent, of `rows` rows each.

    Args:
      capacity: trajectories to keep; the oldest are overwritten.
      rows: rows of each trajectory.
      observation_example: one observation without leading dimensions.
      num_actions: number of actions.
      device: device to store them on.
      memory_example: the agent's memory of one entry, a tree, or None.
      first_steps: whether to store which rows are `executed`, so that first steps of episodes count in the loss.
      frame_stacks: leaves of the observation that are stacks of frames, as `Environment.frame_stacks`; each frame is stored
        once.
      sample_device: device of what is sampled; defaults to the one that stores it.
    """

    def __init__(
        self,
        capacity: int,
        rows: int,
        observation_example: Observations,
        num_actions: int,
        device: torch.device | str = "cpu",
        memory_example: Any = None,
        first_steps: bool = False,
        frame_stacks: FrameStacks | None = None,
        sample_device: torch.device | str | None = None,
    ) -> None:
        if capacity < 1 or rows < 2:
            raise ValueError(f"`capacity` must be at least 1 and `rows` at least 2, got {capacity} and {rows}.")
        self.capacity, self.rows, self.device = capacity, rows, torch.device(device)
        self.sample_device = self.device if sample_device is None else torch.device(sample_device)
        self.num_actions, self.first_steps, self.frame_stacks = num_actions, first_steps, dict(frame_stacks or {})

        def blank(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(rows, 1, *shape, dtype=dtype, device=self.device)

        example = Rollout(
            observations=tree_map(lambda x: blank(*x.shape, dtype=x.dtype), observation_example),
            actions=blank(dtype=torch.int32),
            rewards=blank(),
            discounts=blank(),
            behaviour_logits=blank(num_actions),
            truncations=blank(dtype=torch.bool),
            first_state=tree_map(lambda x: torch.zeros_like(x, device=self.device)[None], memory_example),
            executed=blank(dtype=torch.bool) if first_steps else None,
        )
        stored, _ = compact(example, self.frame_stacks)
        observation_bytes = sum(leaf.nbytes for leaf in tree_leaves(stored.observations)) // rows
        self.bytes_per_step = observation_bytes + 4 * num_actions + 10 + first_steps
        self.memory_bytes = sum(x.nbytes for x in _tensors(stored.first_state))
        self.state = empty_replay(capacity, stored)
        self._shapes = {name: _shapes(getattr(example, name), lead) for name, lead in LEADING.items()}
        self._size = 0  # `state.sizes` on the host, so that nothing waits for a GPU
        self._has_truncations = False  # whether any rollout carried truncations; until then samples carry none

    def __len__(self) -> int:
        """How many trajectories are stored."""
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory of all trajectories when full."""
        return self.capacity * (self.rows * self.bytes_per_step + self.memory_bytes)

    def add(self, rollout: Rollout) -> None:
        """Stores each entry of a [rows, B] rollout as a trajectory, over the oldest ones."""
        rows, batch = rollout.rewards.shape
        if rows != self.rows:
            raise ValueError(f"`rollout` must have {self.rows} rows, got {rows}; collect rollouts of one length.")
        if batch > self.capacity:
            raise ValueError(
                f"`rollout` must hold at most {self.capacity} trajectories, the capacity, got {batch}; raise it."
            )
        self._check_shapes(rollout)
        if not self.first_steps:
            rollout = dataclasses.replace(rollout, executed=None)
        elif rollout.executed is None:
            raise ValueError("`rollout` must say which rows are `executed` for first steps to count, got None.")
        self._has_truncations = self._has_truncations or rollout.truncations is not None
        if rollout.truncations is None:
            none = torch.zeros_like(rollout.discounts, dtype=torch.bool)
            rollout = dataclasses.replace(rollout, truncations=none)
        stored, is_whole = compact(rollout, self.frame_stacks)
        if self.frame_stacks and not is_whole:  # read only here: environments with stacks step on the host anyway
            check_stacks(rollout, expand(stored, self.frame_stacks))
        self.state = add_rollout(self.state, to_device(stored, self.device))
        self._size = min(self._size + batch, self.capacity)

    def _check_shapes(self, rollout: Rollout) -> None:
        """Raises where observations or memory are not of the shapes that the replay was made for."""
        for name, lead in LEADING.items():
            wanted, got = self._shapes[name], _shapes(getattr(rollout, name), lead)
            if wanted != got:
                raise ValueError(f"`{name}` must hold entries of shapes {wanted}, got {got}; make the replay for them.")

    def sample(
        self, batch_size: int, generator: torch.Generator | None = None, num_fresh: int = 0, newer: int = 0
    ) -> Rollout:
        """Draws trajectories uniformly, with replacement; the first `num_fresh` of them are the newest ones instead, counted
        without the `newer` ones that came last.

        Returns:
          A rollout of [rows, batch_size].
        """
        if self._size == 0:
            raise ValueError("the replay is empty; add rollouts before sampling.")
        if not 0 <= num_fresh <= batch_size:
            raise ValueError(f"`num_fresh` must lie in 0 .. {batch_size}, got {num_fresh}.")
        stored = self._draw(batch_size, generator, num_fresh, newer)
        rollout = expand(stored, self.frame_stacks)
        return rollout if self._has_truncations else dataclasses.replace(rollout, truncations=None)

    def _draw(self, batch_size: int, generator: torch.Generator | None, num_fresh: int, newer: int) -> Rollout:
        """What `sample` draws as it is stored, on `sample_device`. The numbers come from the generator's device, so that a
        run is the same wherever its replay is.
        """
        source = self.device if generator is None else generator.device

        def draw() -> Rollout:
            uniforms = torch.rand(batch_size - num_fresh, generator=generator, device=source).to(self.device)
            return to_device(sample_rollout(self.state, uniforms, num_fresh, newer), self.sample_device)

        if self.device.type == "cuda":
            return draw()
        with beside_computation(self.sample_device):
            stored = draw()
        return used_now(stored)

    def state_dict(self) -> dict[str, Any]:
        """What is stored, by name, the oldest trajectory first: tensors [size, rows, ...] on the CPU."""
        place = int(self.state.next)
        tensors = {}
        for name, ring in self._rings().items():
            # In parts: never a second ring on a GPU.
            tensors[name] = torch.cat([ring[place : self._size].cpu(), ring[:place].cpu()])
        return {"size": self._size, "has_truncations": self._has_truncations, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces what is stored by the content of a `state_dict`."""
        rings = self._rings()
        size, tensors = self._checked(state, rings)
        for name, ring in rings.items():
            ring[:size] = tensors[name].to(ring.device)
        sizes = torch.full_like(self.state.sizes, size)
        self.state = ReplayState(self.state.trajectories, sizes, torch.full_like(self.state.next, size % self.capacity))
        self._size, self._has_truncations = size, bool(state["has_truncations"])

    def _rings(self) -> dict[str, Tensor]:
        rings = dict(_named(self.state.trajectories))
        assert len(rings) == len(_tensors(self.state.trajectories))
        return rings

    def _checked(self, state: dict[str, Any], rings: dict[str, Tensor]) -> tuple[int, dict[str, Tensor]]:
        """Size and tensors of a `state_dict`; raises where they do not fit into this replay."""
        for key, kind in (("size", int), ("has_truncations", bool), ("tensors", dict)):
            found = state.get(key) if isinstance(state, dict) else None
            if type(found) is not kind:  # before anything is read: a tensor in its place could claim any size
                problem = f"got {'none' if found is None else type(found).__name__}"
                raise ValueError(f"`{key}` of `state`, a replay's `state_dict`, must be {kind.__name__}, {problem}.")
        if len(state) > 3:
            raise ValueError(f"`state` must hold `size`, `has_truncations` and `tensors` alone, got {sorted(state)}.")
        size, tensors = state["size"], state["tensors"]
        if not 0 <= size <= self.capacity:
            raise ValueError(f"`state` must hold at most {self.capacity} trajectories, the capacity, got {size}; raise it.")
        if set(tensors) != set(rings):
            raise ValueError(f"`state` must hold the tensors {sorted(rings)}, got {sorted(tensors)}; use the same settings.")
        for name, ring in rings.items():
            wanted, got = (size, *ring.shape[1:]), tensors[name]
            if not isinstance(got, Tensor):
                raise ValueError(f"`{name}` of `state` must be a tensor, got {type(got).__name__}.")
            if tuple(got.shape) != wanted or got.dtype != ring.dtype:
                raise ValueError(
                    f"`{name}` of `state` must be {list(wanted)} of {ring.dtype}, got {list(got.shape)} of {got.dtype}; "
                    "use the same settings."
                )
        check_actions("actions", tensors["actions"], self.num_actions)
        return size, tensors


def _named(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a tree, named by where they are, such as `observations.image`."""
    if isinstance(tree, Tensor):
        yield name, tree
        return
    parts: dict[Any, Any] = {}
    if dataclasses.is_dataclass(tree):
        parts = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    elif isinstance(tree, dict):
        parts = tree
    elif isinstance(tree, list | tuple):
        parts = dict(enumerate(tree))
    for key, part in parts.items():
        yield from _named(part, f"{name}.{key}" if name else str(key))
