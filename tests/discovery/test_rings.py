"""Rings of trajectories: against lists, one for each agent."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from disco_torch.discovery.rings import Rings, forget
from disco_torch.types import Rollout, tree_map

P, ROWS, A = 3, 2, 2


def rollout(first: int, batch: int) -> Rollout:
    """Every trajectory of every agent is another number: agent * 10000 + first, first + 1, ..."""
    numbers = 10000.0 * torch.arange(P)[:, None] + first + torch.arange(batch)  # [P, B]
    rewards = numbers[:, None] + torch.tensor([0.0, 0.25])[:, None]  # [P, rows, B]
    observations = rewards[..., None].expand(P, ROWS, batch, 3)
    logits = rewards[..., None].expand(P, ROWS, batch, A)
    return Rollout(observations, rewards.long(), rewards, torch.ones_like(rewards), logits)


def check_whole(sample: Rollout, batch: int) -> torch.Tensor:
    """The numbers of the trajectories, [P, B]; each must have come with all that belongs to it."""
    rewards = sample.rewards
    assert rewards.shape == (P, ROWS, batch) and rewards.is_contiguous()
    assert torch.equal(rewards[:, 1], rewards[:, 0] + 0.25)
    assert torch.equal(sample.observations, rewards[..., None].expand(P, ROWS, batch, 3))
    assert torch.equal(sample.behaviour_logits, rewards[..., None].expand(P, ROWS, batch, A))
    assert torch.equal(sample.actions, rewards.long()) and (sample.discounts == 1).all()
    return rewards[:, 0]


@given(
    st.integers(3, 7),
    st.lists(st.one_of(st.integers(1, 3), st.sets(st.integers(0, P - 1), min_size=1)), min_size=1, max_size=12),
    st.integers(0, 10**6),
)
def test_rings_are_lists_of_each_agents_newest_trajectories(capacity: int, events: list[int | set[int]], seed: int) -> None:
    rings = Rings(capacity, rollout(0, 1))
    state = rings.empty()
    lists: list[list[float]] = [[] for _ in range(P)]
    generator, count = torch.Generator().manual_seed(seed), 0
    for event in [*events, 2]:
        if isinstance(event, set):
            state = forget(state, torch.tensor(sorted(event)))
            for agent in event:
                lists[agent] = []
            continue
        state = rings.add(state, rollout(count, event))
        for agent in range(P):
            lists[agent] = (lists[agent] + [10000.0 * agent + count + i for i in range(event)])[-capacity:]
        count += event
        assert state.sizes.tolist() == [len(each) for each in lists]
        uniforms = torch.rand(P, 5, generator=generator)
        numbers = check_whole(rings.sample(state, uniforms, num_fresh=event), event + 5)
        for agent, own in enumerate(lists):
            assert numbers[agent, :event].tolist() == own[::-1][:event]
            wanted = [own[len(own) - 1 - int(u * len(own))] for u in uniforms[agent]]
            assert numbers[agent, event:].tolist() == wanted


def test_draws_are_uniform_over_what_is_an_agents_own() -> None:
    rings = Rings(8, rollout(0, 1))
    state = rings.add(rings.empty(), rollout(0, 8))
    state = rings.add(forget(state, torch.tensor([1])), rollout(8, 3))
    uniforms = ((torch.arange(2400) + 0.5) / 2400).expand(P, -1)
    numbers = check_whole(rings.sample(state, uniforms, 0), 2400)
    for agent, own in enumerate([range(3, 11), range(8, 11), range(3, 11)]):
        values, counts = (numbers[agent] - 10000 * agent).unique(return_counts=True)
        assert values.tolist() == list(own) and set(counts.tolist()) == {2400 // len(own)}


def test_a_number_that_rounds_up_to_1_draws_the_oldest() -> None:
    rings = Rings(4, rollout(0, 1))
    state = rings.add(rings.empty(), rollout(0, 3))
    assert (check_whole(rings.sample(state, torch.ones(P, 1), 0), 1)[:, 0] - 10000 * torch.arange(P)).tolist() == [0.0] * P


def test_what_was_drawn_stays_when_more_is_added() -> None:
    rings = Rings(3, rollout(0, 1))
    state = rings.add(rings.empty(), rollout(0, 3))
    sample = rings.sample(state, torch.zeros(P, 1), 1)
    kept = sample.rewards.clone()
    rings.add(state, rollout(3, 3))
    assert torch.equal(sample.rewards, kept)


def test_a_state_goes_on_alike() -> None:
    rings = Rings(4, rollout(0, 1))
    state = rings.add(rings.empty(), rollout(0, 3))
    other = tree_map(torch.clone, state)
    uniforms = torch.rand(P, 6, generator=torch.Generator().manual_seed(0))
    drawn = [rings.sample(rings.add(each, rollout(3, 2)), uniforms, 1).rewards for each in (state, other)]
    assert torch.equal(*drawn)
