"""Replay for a population: each agent's own ring of trajectories, in one tensor for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.types import Rollout, tree_dataclass, tree_map


@tree_dataclass
class RingState:
    """What changes: trajectories [P, capacity, rows, ...], how many of them are the agent's own [P], and the next place."""

    rings: Rollout
    sizes: Tensor
    next: Tensor


class Rings:
    """The last `capacity` trajectories of each of `P` agents.

    All agents add at the same time, so one position serves them all; how many are an agent's own differs, since an agent
    that is new must not learn from what the one before it did.

    Args:
      capacity: trajectories of each agent.
      example: a rollout, [P, rows, B, ...] leaves.
    """

    def __init__(self, capacity: int, example: Rollout) -> None:
        self.capacity, self._example = capacity, tree_map(lambda x: x[:, :, 0], example)
        agents = torch.arange(example.rewards.shape[0], device=example.rewards.device)
        self._first = capacity * agents.unsqueeze(1)  # [P, 1]

    def empty(self) -> RingState:
        def ring(x: Tensor) -> Tensor:
            return x.new_zeros(x.shape[0], self.capacity, *x.shape[1:])

        sizes = torch.zeros_like(self._first[:, 0])
        return RingState(tree_map(ring, self._example), sizes, torch.zeros_like(sizes[0]))

    def add(self, state: RingState, rollout: Rollout) -> RingState:
        """Stores each entry of a [P, rows, B] rollout; writes into the rings that are given."""
        batch = rollout.rewards.shape[2]
        slots = (state.next + torch.arange(batch, device=self._first.device)) % self.capacity
        rows = (self._first + slots).flatten()  # [P * B], places in all rings, one behind the other
        for ring, new in zip(leaves(state.rings), leaves(rollout), strict=True):
            ring.flatten(0, 1).index_copy_(0, rows, new.transpose(1, 2).flatten(0, 1))
        sizes = (state.sizes + batch).clamp(max=self.capacity)
        return RingState(state.rings, sizes, (state.next + batch) % self.capacity)

    def sample(self, state: RingState, uniforms: Tensor, num_fresh: int) -> Rollout:
        """The newest `num_fresh` trajectories of each agent, and one for each of its uniform numbers, [P, n].

        Returns:
          [P, rows, num_fresh + n, ...].
        """
        sizes = state.sizes.unsqueeze(1)
        drawn = torch.minimum((uniforms * sizes).long(), sizes - 1)  # how far back, 0 is the newest
        newest = torch.arange(num_fresh, device=drawn.device).expand(drawn.shape[0], -1)
        slots = (state.next - 1 - torch.cat([newest, drawn], dim=1)) % self.capacity  # [P, B]
        rows = (self._first + slots).flatten()

        def taken(ring: Tensor) -> Tensor:
            return ring.flatten(0, 1).index_select(0, rows).unflatten(0, slots.shape).transpose(1, 2).contiguous()

        return tree_map(taken, state.rings)


def forget(state: RingState, agents: Tensor) -> RingState:
    """Makes the rings of some agents empty, [n] indices."""
    return RingState(state.rings, state.sizes.index_fill(0, agents, 0), state.next)


def leaves(rollout: Rollout) -> list[Tensor]:
    parts = (rollout.observations, rollout.actions, rollout.rewards, rollout.discounts, rollout.behaviour_logits)
    return list(parts)
