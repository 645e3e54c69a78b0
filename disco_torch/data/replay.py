"""Replay: a preallocated ring of trajectories. Accumulating is `collect`'s work; here they are stored and sampled.

Observations keep their dtype, and of the behaviour only the logits are kept, so that a step takes the observation's bytes
plus 4 A (logits) + 4 (action) + 4 (reward) + 1 (end) + 1 (cut by a time limit).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from disco_torch.types import Observations, Rollout, tree_leaves, tree_map


class Replay:
    """A ring of `capacity` trajectories of `rows` rows each.

    Args:
      capacity: trajectories to keep; the oldest are overwritten.
      rows: of each trajectory.
      observation_example: one observation without leading dimensions.
      num_actions: how many there are.
      device: where to keep them.
      memory_example: the agent's memory of one entry, a tree, or None.
    """

    def __init__(
        self,
        capacity: int,
        rows: int,
        observation_example: Observations,
        num_actions: int,
        device: torch.device | str = "cpu",
        memory_example: Any = None,
    ) -> None:
        if capacity < 1 or rows < 2:
            raise ValueError(f"`capacity` must be at least 1 and `rows` at least 2, got {capacity} and {rows}.")
        self.capacity, self.rows, self.device = capacity, rows, torch.device(device)
        observation_bytes = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(observation_example))
        self.bytes_per_step = observation_bytes + 4 * num_actions + 10
        check_fits(capacity, capacity * rows * self.bytes_per_step, self.device)

        def ring(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(capacity, rows, *shape, dtype=dtype, device=self.device)

        self._ring = Rollout(
            observations=tree_map(lambda x: ring(*x.shape, dtype=x.dtype), observation_example),
            actions=ring(dtype=torch.int32),
            rewards=ring(),
            discounts=ring(dtype=torch.bool),
            behaviour_logits=ring(num_actions),
            truncations=ring(dtype=torch.bool),
        )
        self._memory = tree_map(lambda x: torch.zeros(capacity, *x.shape, dtype=x.dtype, device=self.device), memory_example)
        self._cuts = False  # whether any trajectory was cut by a time limit; until then rollouts carry no truncations
        self._next = 0
        self._size = 0

    def __len__(self) -> int:
        """How many trajectories are stored."""
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory of all steps when full."""
        return self.capacity * self.rows * self.bytes_per_step

    def add(self, rollout: Rollout) -> None:
        """Stores each entry of a [rows, B] rollout as a trajectory, over the oldest ones."""
        rows, batch = rollout.rewards.shape
        if rows != self.rows:
            raise ValueError(f"`rollout` must have {self.rows} rows, got {rows}; collect rollouts of one length.")
        if batch > self.capacity:
            raise ValueError(
                f"`rollout` must hold at most {self.capacity} trajectories, the capacity, got {batch}; raise it."
            )
        slots = (self._next + torch.arange(batch, device=self.device)) % self.capacity
        self._cuts = self._cuts or rollout.truncations is not None
        if rollout.truncations is None:
            rollout = _with(rollout, truncations=torch.zeros_like(rollout.discounts, dtype=torch.bool))
        stored = _with(rollout, discounts=rollout.discounts > 0)
        memory = stored.first_state
        self._check_structure(rollout)
        for ring, new in zip(_leaves(self._ring), _leaves(_with(stored, first_state=None)), strict=True):
            ring[slots] = new.transpose(0, 1).to(ring.device, ring.dtype)  # [B, rows, ...]
        for ring, new in zip(_leaves(self._memory), _leaves(memory), strict=True):
            ring[slots] = new.to(ring.device, ring.dtype)
        self._next = (self._next + batch) % self.capacity
        self._size = min(self._size + batch, self.capacity)

    def _check_structure(self, rollout: Rollout) -> None:
        """Raises where observations or memory are not of the kind that the ring was made for."""
        pairs = {"observations": (self._ring.observations, rollout.observations, 2)}
        pairs["first_state"] = (self._memory, rollout.first_state, 1)
        for name, (ring, new, leading) in pairs.items():
            wanted = [tuple(leaf.shape[leading:]) for leaf in _leaves(ring)]
            got = [tuple(leaf.shape[leading:]) for leaf in _leaves(new)]
            if wanted != got:
                raise ValueError(f"`{name}` must hold entries of shapes {wanted}, got {got}; make the replay for them.")

    def sample(self, batch_size: int, generator: torch.Generator | None = None, num_fresh: int = 0) -> Rollout:
        """Draws trajectories uniformly, with replacement; the first `num_fresh` of them are the newest ones instead.

        Returns:
          A rollout of [rows, batch_size].
        """
        if self._size == 0:
            raise ValueError("the replay is empty; add rollouts before sampling.")
        if not 0 <= num_fresh <= batch_size:
            raise ValueError(f"`num_fresh` must lie in 0 .. {batch_size}, got {num_fresh}.")
        drawn = torch.randint(self._size, (batch_size - num_fresh,), generator=generator, device=self.device)
        newest = (self._next - 1 - torch.arange(num_fresh, device=self.device) % self._size) % self.capacity
        slots = torch.cat([newest, drawn])
        rollout = tree_map(lambda x: x[slots].transpose(0, 1), self._ring)  # [rows, B, ...]
        return _with(
            rollout,
            discounts=rollout.discounts.float(),
            truncations=rollout.truncations if self._cuts else None,
            first_state=tree_map(lambda x: x[slots], self._memory),
        )

    def state_dict(self) -> dict[str, Any]:
        """What is stored, without the empty part of the ring."""
        rings = _leaves(self._ring) + _leaves(self._memory)
        stored = [leaf[: self._size].to("cpu", copy=True) for leaf in rings]  # never a second ring on a GPU
        return {"stored": stored, "next": self._next, "size": self._size, "cuts": self._cuts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rings = _leaves(self._ring) + _leaves(self._memory)
        if [x.shape[1:] for x in state["stored"]] != [x.shape[1:] for x in rings] or state["size"] > self.capacity:
            raise ValueError("`state` must come from a replay of the same shapes and capacity; use the same settings.")
        for ring, stored in zip(rings, state["stored"], strict=True):
            ring[: state["size"]] = stored
        self._next, self._size, self._cuts = state["next"], state["size"], state["cuts"]


def _leaves(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _with(rollout: Rollout, **changes: Any) -> Rollout:
    return dataclasses.replace(rollout, **changes)


def check_fits(capacity: int, needed: int, device: torch.device) -> None:
    """Raises where the memory that a ring needs is not free."""
    free = free_memory(device)
    if needed > free:
        fits = int(capacity * free / needed)
        raise ValueError(
            f"`replay_capacity` of {capacity} trajectories needs {needed / 2**30:.2f} GiB on {device}, "
            f"{free / 2**30:.2f} GiB are free; at most {fits} fit."
        )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():  # counts what the file cache would give up, which the portable number below does not
        available = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
