"""The replay of a population: against lists, one for each agent, and against a replay for each agent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disco_torch.data import Replay, add_rollout, empty_replay, forget_agents, sample_rollout
from disco_torch.types import Rollout, flatten_tree, tree_map

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
    state = empty_replay(capacity, rollout(0, 1))
    lists: list[list[float]] = [[] for _ in range(P)]
    generator, count = torch.Generator().manual_seed(seed), 0
    for event in [*events, 2]:
        if isinstance(event, set):
            state = forget_agents(state, torch.tensor(sorted(event)))
            for agent in event:
                lists[agent] = []
            continue
        state = add_rollout(state, rollout(count, event))
        for agent in range(P):
            lists[agent] = (lists[agent] + [10000.0 * agent + count + i for i in range(event)])[-capacity:]
        count += event
        assert state.sizes.tolist() == [len(each) for each in lists]
        uniforms = torch.rand(P, 5, generator=generator)
        numbers = check_whole(sample_rollout(state, uniforms, num_fresh=event), event + 5)
        for agent, own in enumerate(lists):
            assert numbers[agent, :event].tolist() == own[::-1][:event]
            wanted = [own[len(own) - 1 - int(u * len(own))] for u in uniforms[agent]]
            assert numbers[agent, event:].tolist() == wanted


def test_draws_are_uniform_over_what_is_an_agents_own() -> None:
    state = add_rollout(empty_replay(8, rollout(0, 1)), rollout(0, 8))
    state = add_rollout(forget_agents(state, torch.tensor([1])), rollout(8, 3))
    uniforms = ((torch.arange(2400) + 0.5) / 2400).expand(P, -1)
    numbers = check_whole(sample_rollout(state, uniforms, 0), 2400)
    for agent, own in enumerate([range(3, 11), range(8, 11), range(3, 11)]):
        values, counts = (numbers[agent] - 10000 * agent).unique(return_counts=True)
        assert values.tolist() == list(own) and set(counts.tolist()) == {2400 // len(own)}


def test_a_number_that_rounds_up_to_1_draws_the_oldest() -> None:
    state = add_rollout(empty_replay(4, rollout(0, 1)), rollout(0, 3))
    assert (check_whole(sample_rollout(state, torch.ones(P, 1), 0), 1)[:, 0] - 10000 * torch.arange(P)).tolist() == [0.0] * P


def test_what_was_drawn_stays_when_more_is_added() -> None:
    state = add_rollout(empty_replay(3, rollout(0, 1)), rollout(0, 3))
    sample = sample_rollout(state, torch.zeros(P, 1), 1)
    kept = sample.rewards.clone()
    add_rollout(state, rollout(3, 3))
    assert torch.equal(sample.rewards, kept)


def test_equal_states_continue_alike() -> None:
    state = add_rollout(empty_replay(4, rollout(0, 1)), rollout(0, 3))
    other = tree_map(torch.clone, state)
    uniforms = torch.rand(P, 6, generator=torch.Generator().manual_seed(0))
    drawn = [sample_rollout(add_rollout(each, rollout(3, 2)), uniforms, 1).rewards for each in (state, other)]
    assert torch.equal(*drawn)


def varied(first: int, batch: int, rows: int = 4) -> Rollout:
    """Rollouts of all agents with everything that a rollout can carry."""
    generator = torch.Generator().manual_seed(first)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.rand(P, rows, batch, *shape, generator=generator)

    observations = {"image": (255 * numbers(2, 2)).byte(), "rest": [numbers(3)]}
    memory = {"hidden": numbers(5)[:, 0], "count": (9 * numbers()[:, 0]).long()}
    parts = ((A * numbers()).long(), numbers(), (numbers() > 0.2).float(), numbers(A), numbers() > 0.8)
    return Rollout(observations, *parts, memory)


def pick(tree: Rollout, agent: int) -> Rollout:
    return tree_map(lambda x: x[agent], tree)


@pytest.mark.parametrize("num_fresh", [0, 2, 5])
def test_a_population_is_as_many_single_replays(num_fresh: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = pick(varied(0, 1), 0)
    memory = tree_map(lambda x: x[0], example.first_state)
    singles = [Replay(6, 4, tree_map(lambda x: x[0, 0], example.observations), A, memory_example=memory) for _ in range(P)]
    state = empty_replay(6, varied(0, 1))
    for first, batch in enumerate([2, 3, 1, 4, 2], start=1):
        new, uniforms = varied(first, batch), torch.rand(P, 7, generator=torch.Generator().manual_seed(first))
        state = add_rollout(state, new)
        drawn = sample_rollout(state, uniforms, num_fresh)
        for agent, single in enumerate(singles):
            single.add(pick(new, agent))
            monkeypatch.setattr(torch, "rand", lambda *_, agent=agent, uniforms=uniforms, **__: uniforms[agent])
            alone = single.sample(7 + num_fresh, num_fresh=num_fresh)
            monkeypatch.undo()
            (got, structure), (want, other) = flatten_tree(pick(drawn, agent)), flatten_tree(alone)
            assert structure == other and len(got) == 9
            assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_everything_of_a_trajectory_comes_back_as_it_came() -> None:
    new = varied(3, 2)
    drawn = sample_rollout(add_rollout(empty_replay(4, varied(0, 1)), new), torch.zeros(P, 0), 2)
    newest_first = tree_map(lambda x: x.flip(2), replace(new, first_state=None))
    newest_first.first_state = tree_map(lambda x: x.flip(1), new.first_state)
    for a, b in zip(flatten_tree(drawn)[0], flatten_tree(newest_first)[0], strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_rollouts_without_truncations_have_none_in_the_replay() -> None:
    state = add_rollout(empty_replay(4, rollout(0, 1)), rollout(0, 2))
    assert state.trajectories.truncations is None
    assert sample_rollout(state, torch.zeros(P, 1)).truncations is None
    stored = state.trajectories
    assert (stored.actions.dtype, stored.discounts.dtype) == (torch.int32, torch.bool)


def test_nothing_is_read_back_from_the_device() -> None:
    """Tensors without data stand for a GPU's: reading one raises, so nothing waits for it."""
    new = tree_map(lambda x: x.to("meta"), varied(0, 2))
    state = add_rollout(empty_replay(4, new), new)
    state = add_rollout(forget_agents(state, torch.empty(1, dtype=torch.long, device="meta")), new)
    drawn = sample_rollout(state, torch.empty(P, 3, device="meta"), num_fresh=1)
    assert drawn.rewards.shape == (P, 4, 4) and drawn.rewards.is_meta
    memory = tree_map(lambda x: x[0, 0], new.first_state)
    single = Replay(4, 4, tree_map(lambda x: x[0, 0, 0], new.observations), A, "meta", memory)
    single.add(pick(new, 0))
    assert single.sample(3, num_fresh=1).rewards.is_meta and len(single) == 2
