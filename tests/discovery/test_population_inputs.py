"""Normalised inputs and first steps in a discovery: each agent's own statistics, constants of the meta-gradient."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
import torch
from small_discoveries import PAPER, assert_same
from small_groups import (
    CATCH,
    REPLAY,
    Watched,
    assert_close,
    assert_close_trees,
    make_group,
    params_of,
    pick,
    random_rule,
    tiny_config,
)
from test_time_limits import WALKS, LimitedWalk

from disco_torch.data import InputConfig
from disco_torch.discovery import DiscoverySession, MixedModeMetaGradient, PlainMetaGradient
from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.provenance import rule_provenance
from disco_torch.envs import FAMILIES
from disco_torch.kernels import Recorded, Speed
from disco_torch.types import flatten_tree

ALL: dict[str, Any] = {"inputs": InputConfig(observations="auto", rewards="normalized"), "first_steps": True}


@pytest.fixture(autouse=True)
def limited_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, LimitedWalk.name, LimitedWalk)  # type: ignore[arg-type]


def watched_group(**changes: Any) -> Watched:
    """Two agents that see numbers and time limits, and two that see boards."""
    return Watched(make_group(tiny_config(WALKS, CATCH, **(ALL | changes))))


@pytest.mark.parametrize("changes", [{}, REPLAY | {"valid_envs": 5}], ids=["notebook", "replay"])
def test_plain_and_mixed_mode_agree_on_normalised_rollouts(changes: dict[str, Any]) -> None:
    watched = watched_group(**changes)
    group = watched.group
    group.advance(params_of(random_rule()))
    watched.updates.clear()
    gradient = group.advance(params_of(random_rule()))
    first = watched.updates[0]
    assert watched.valid is not None and first.batch.executed is not None and watched.valid.executed is not None
    for agent in range(4):
        states = pick(first.before, agent), pick(first.values, agent)
        train, valid = [pick(update.batch, agent) for update in watched.updates], pick(watched.valid, agent)
        for kind in (PlainMetaGradient, MixedModeMetaGradient):
            compute = kind(group.meta_gradient.learner, group.value_function, group.config.weights)
            alone = compute(first.eta, *states, train, valid, group.rates[agent])
            assert_close(pick(gradient.grads, agent), alone.grads)
            assert_close_trees(pick(group.state.learners, agent), alone.learner_state)


def test_statistics_are_of_each_agents_own_raw_rows() -> None:
    watched = watched_group()
    group = watched.group
    for _ in range(2):
        group.advance(params_of(random_rule()))
    stats = group.state.inputs
    assert stats is not None and stats.rewards is not None
    rows = torch.cat([rollout.observations for rollout in watched.collected], dim=1).double()  # [P, all rows, B, size]
    moments = stats.observations["observation"]
    for agent in range(4):
        own = rows[agent].flatten(0, 1)
        if agent < 2:
            assert float(moments.count[agent]) == len(own)
            torch.testing.assert_close(moments.mean[agent], own.mean(0))
            torch.testing.assert_close(moments.square[agent] / len(own), own.var(0, correction=0))
        else:  # a board of 0 and 1 stays as it is
            assert float(moments.count[agent]) == 0
    assert not torch.equal(moments.mean[0], moments.mean[1])
    assert (stats.rewards.count > 0).all()
    assert not any(x.requires_grad for x in flatten_tree(stats)[0])


def test_agents_learn_from_normalised_batches_and_the_replay_stays_raw() -> None:
    watched = watched_group(**REPLAY)
    group = watched.group
    for _ in range(3):
        group.advance(params_of(random_rule()))
    assert group.state.replay is not None
    stored, batch = group.state.replay.trajectories, watched.updates[-1].batch
    assert stored.executed is not None and batch.executed is not None
    raw = torch.cat([rollout.observations[:2] for rollout in watched.collected], 1).unique()
    assert torch.isin(stored.observations[:2], raw).all()
    assert not torch.isin(batch.observations[:2], raw).all()
    assert set(batch.observations[2:].unique().tolist()) <= {0.0, 1.0}
    halves = batch.rewards[:2][batch.rewards[:2] != 0] * 2  # the walk's rewards are halves
    assert not torch.equal(halves, halves.round())


def test_what_an_agent_acts_on_is_normalised() -> None:
    watched = watched_group()
    group = watched.group
    group.advance(params_of(random_rule()))
    inputs, acting, params = group.inputs, group.state.acting, group.state.learners.params
    assert inputs is not None and group.state.inputs is not None
    snapshot = inputs.snapshot(group.state.inputs)
    uniforms, env_uniforms = group.habitats.draws(1, torch.Generator().manual_seed(5))
    seen = inputs.observations(snapshot, group.habitats.observations(acting.steps))
    _, (row, _) = group.loop.act(params, acting, uniforms[0], [drawn[0] for drawn in env_uniforms], snapshot)
    for agent in range(4):
        logits = group.agent.policy(pick(params, agent), seen[agent])[0]
        torch.testing.assert_close(row.behaviour_logits[agent], logits)


def test_a_new_life_begins_with_no_statistics() -> None:
    group = watched_group().group
    group.advance(params_of(random_rule()))
    group.renew([1])
    stats = group.state.inputs
    assert stats is not None and stats.rewards is not None and stats.returns is not None
    assert stats.observations["observation"].count.tolist()[1] == 0 and stats.observations["observation"].count[0] > 0
    assert stats.rewards.count[1] == 0 and not stats.returns[1].any() and stats.rewards.count[0] > 0


def test_off_by_default_and_where_it_would_change_nothing() -> None:
    assert DiscoverConfig().inputs.changes_nothing and not DiscoverConfig().first_steps
    assert make_group(tiny_config(WALKS)).inputs is None
    boards = make_group(tiny_config(CATCH, inputs=InputConfig(observations="auto")))
    assert boards.inputs is None and boards.state.inputs is None
    off = Watched(make_group(tiny_config(WALKS)))
    off.group.advance(params_of(random_rule()))
    assert off.updates[0].batch.executed is None


@pytest.mark.parametrize("rewards", ["scaled", "clipped"])
def test_rewards_without_statistics(rewards: Any) -> None:
    inputs = InputConfig(rewards=rewards, reward_scale=0.1, reward_clip=0.1)
    watched = Watched(make_group(tiny_config(WALKS, CATCH, inputs=inputs)))
    watched.group.advance(params_of(random_rule()))
    batch, raw = watched.updates[0].batch.rewards, watched.collected[0].rewards
    expected = raw * 0.1 if rewards == "scaled" else raw.clamp(-0.1, 0.1)
    torch.testing.assert_close(batch, expected)


def test_statistics_and_normalisation_can_be_recorded() -> None:
    watched = watched_group()
    group = watched.group
    group.advance(params_of(random_rule()))
    stats, rollout, loop = group.state.inputs, watched.collected[0], group.loop
    for part in (loop.count_inputs, loop.normalize):
        recorded = Recorded(part, Speed(trace=True))
        assert_close_trees(recorded(stats, rollout), part(stats, rollout))


def test_a_resumed_discovery_is_the_same() -> None:
    config = tiny_config(WALKS, CATCH, **(PAPER | ALL))
    session, again = DiscoverySession(config), DiscoverySession(dataclasses.replace(config, seed=3))
    for _ in range(3):
        session.advance()
    buffer = io.BytesIO()
    torch.save(session.state_dict(), buffer)
    buffer.seek(0)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    assert_same(session.groups[0].state.inputs, again.groups[0].state.inputs)
    again.config = config
    for group in again.groups:
        group.config = config  # births are seeded by it
    for one in (session, again):
        one.advance()
    assert_same(session.state_dict(), again.state_dict())


def test_a_rule_says_what_its_agents_saw() -> None:
    session = DiscoverySession(tiny_config(WALKS, **ALL))
    plain = rule_provenance(session.config, session.counters)["config"]
    assert plain["inputs"]["observations"] == "auto" and plain["inputs"]["rewards"] == "normalized" and plain["first_steps"]


def test_the_states_of_all_processes_have_the_same_parts() -> None:
    config = tiny_config(WALKS, CATCH, inputs=InputConfig(observations="auto"))
    parts = [make_group(config, rank, 2) for rank in range(2)]
    counts = [group.state.inputs.observations["observation"].count for group in parts if group.state.inputs is not None]
    assert [len(count) for count in counts] == [2, 2]
    assert [group.inputs.counted.tolist() for group in parts if group.inputs is not None] == [[1, 1], [0, 0]]
