"""Replay for a population: each agent's own ring of trajectories, in one tensor for all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from disco_torch.types import Rollout, tree_map


class Rings:
    """The last `capacity` trajectories of each of `P` agents.

    All agents add at the same time, so one position serves them all; how many are an agent's own differs, since an agent
    that is new must not learn from what the one before it did.

    Args:
      capacity: trajectories of each agent.
      example: a rollout, [P, rows, B, ...] leaves.
    """

    def __init__(self, capacity: int, example: Rollout) -> None:
        self.capacity = capacity

        def ring(x: Tensor) -> Tensor:
            return torch.zeros(x.shape[0], capacity, x.shape[1], *x.shape[3:], dtype=x.dtype, device=x.device)

        self._rings = tree_map(ring, example)  # [P, capacity, rows, ...]
        agents = example.rewards.shape[0]
        self._first = capacity * torch.arange(agents, device=example.rewards.device).unsqueeze(1)  # [P, 1]
        self.sizes = torch.zeros(agents, dtype=torch.int64, device=example.rewards.device)
        self.next = 0

    def add(self, rollout: Rollout) -> None:
        """Stores each entry of a [P, rows, B] rollout."""
        batch = rollout.rewards.shape[2]
        slots = (self.next + torch.arange(batch, device=self.sizes.device)) % self.capacity
        rows = (self._first + slots).flatten()  # [P * B], places in all rings, one behind the other
        for ring, new in zip(leaves(self._rings), leaves(rollout), strict=True):
            ring.flatten(0, 1).index_copy_(0, rows, new.transpose(1, 2).flatten(0, 1))
        self.next = (self.next + batch) % self.capacity
        self.sizes = (self.sizes + batch).clamp(max=self.capacity)

    def sample(self, uniforms: Tensor, num_fresh: int) -> Rollout:
        """The newest `num_fresh` trajectories of each agent, and one for each of its uniform numbers, [P, n].

        Returns:
          [P, rows, num_fresh + n, ...].
        """
        drawn = (uniforms * self.sizes.unsqueeze(1)).long()
        drawn = torch.minimum(drawn, self.sizes.unsqueeze(1) - 1)  # how far back, 0 is the newest
        newest = torch.arange(num_fresh, device=drawn.device).expand(drawn.shape[0], -1)
        slots = (self.next - 1 - torch.cat([newest, drawn], dim=1)) % self.capacity  # [P, B]
        rows = (self._first + slots).flatten()

        def taken(ring: Tensor) -> Tensor:
            return ring.flatten(0, 1).index_select(0, rows).unflatten(0, slots.shape).transpose(1, 2).contiguous()

        return tree_map(taken, self._rings)

    def forget(self, agents: Tensor) -> None:
        """Makes the rings of some agents empty, [n] indices."""
        self.sizes = self.sizes.index_fill(0, agents, 0)

    def state(self) -> tuple[Any, Tensor]:
        """What changes, by agent; `next` is the whole population's."""
        return self._rings, self.sizes

    def load(self, state: tuple[Any, Tensor], position: int) -> None:
        self._rings, self.sizes, self.next = *state, position


def leaves(rollout: Rollout) -> list[Tensor]:
    parts = (rollout.observations, rollout.actions, rollout.rewards, rollout.discounts, rollout.behaviour_logits)
    return list(parts)
