"""Populations: agents live, die and are replaced, and can be split over processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_discoveries import TINY_AGENT, assert_same
from small_groups import (
    CATCH,
    CHAIN,
    REPLAY,
    SLIDING,
    Watched,
    make_group,
    params_of,
    pick,
    random_rule,
    tiny_config,
)

from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.discovery.local_group import seed_of


def test_lifetimes_are_drawn_with_odds_of_one_over_them() -> None:
    lifetimes, births = (2, 5, 10, 10), 700
    group = make_group(tiny_config(CATCH, lifetimes=lifetimes))
    counts = dict.fromkeys(lifetimes, 0)
    for life in range(1, births + 1):
        group.lives[0] = life
        group._birth(0)
        counts[group.lifetimes[0]] += 1
    odds = {2: 0.5, 5: 0.2, 10: 0.2}
    chi_square = 0.0
    for lifetime, weight in odds.items():
        expected = births * weight / sum(odds.values())
        chi_square += (counts[lifetime] - expected) ** 2 / expected
    assert chi_square < 13.8, "beyond the 99.9 % quantile of chi-square with 2 degrees of freedom"


def test_first_lives_are_cut_short_so_that_deaths_do_not_fall_together() -> None:
    many = tiny_config(
        HabitatConfig("catch", {"rows": 3, "columns": 3}, agents=60), lifetimes=(40,), num_envs=1, batch_size=1
    )
    lifetimes = make_group(many).lifetimes
    assert all(1 <= lifetime <= 40 for lifetime in lifetimes) and len(set(lifetimes)) > 20
    assert sum(lifetimes) / 60 == pytest.approx(20, abs=5)


def test_without_lifetimes_nobody_dies() -> None:
    group = make_group(tiny_config())
    for _ in range(3):
        group.advance(params_of(random_rule()))
        assert group.renew([]) == 0
    assert group.lives == [0, 0, 0] and group.ages == [6, 6, 6]


def test_a_new_life_has_nothing_of_the_old_one() -> None:
    group = make_group(tiny_config(CATCH, HabitatConfig("chain", agents=2), lifetimes=(6,), **(SLIDING | REPLAY)))
    group.lifetimes = [6, 2, 6, 2]
    eta = params_of(random_rule())
    for _ in range(2):
        assert group.renew([]) == 0
        group.advance(eta)
    before, assertions = group.state.learners, 0
    old_level = group.state.acting.env_states[1].levels.keys.clone()
    assert group.renew([]) == 2 and group.lives == [0, 1, 0, 1] and group.ages == [2, 0, 2, 0]
    assert group.lifetimes == [6, 6, 6, 6] and group.state.replay is not None
    assert group.state.replay.sizes.tolist() == [6, 0, 6, 0]
    assert [update.alive.tolist() for update in group.state.window] == [[1, 0, 1, 0]] * 2
    for agent, is_new in enumerate([False, True, False, True]):
        learner = pick(group.state.learners, agent)
        assert (int(learner.opt_state.count) == 0) == is_new == (int(pick(group.state.values, agent).opt_state.count) == 0)
        for name, param in learner.params.items():
            assert torch.equal(param, before.params[name][agent]) != is_new
            assert not is_new or torch.equal(param, learner.meta_state.target_params[name])
            assertions += 1
        assert (group.state.acting.returns[agent] == 0).all() or not is_new
    level = group.state.acting.env_states[1].levels.keys
    assert torch.equal(level[:3], old_level[:3]) and not torch.equal(level[3:], old_level[3:])
    assert (group.state.acting.env_states[0].ball_row[3:] == 0).all() and assertions > 0
    watched = Watched(group)
    group.advance(eta)
    batch = watched.updates[0].batch
    assert (batch.behaviour_logits[1] != 0).any(), "it learns from its own trajectories, not from an empty ring"


def test_lives_depend_on_seed_agent_and_life_alone() -> None:
    config = tiny_config(CATCH, lifetimes=(3, 9))

    def life(agent: int, number: int, seed: int = 0) -> Any:
        group = make_group(tiny_config(CATCH, lifetimes=(3, 9), seed=seed))
        group.lives[agent] = number
        return group._birth(agent), group.lifetimes[agent]

    assert_same(life(0, 2), life(0, 2))
    group = make_group(config)
    for _ in range(2):  # whatever came between
        group.advance(params_of(random_rule()))
        group.renew([0])
    assert_same(pick(group.state.learners, 0), life(0, 2)[0][0])
    for other in (life(1, 2), life(0, 3), life(0, 2, seed=1)):
        ours, theirs = life(0, 2)[0][0].params, other[0][0].params
        assert not any(torch.equal(ours[name], theirs[name]) for name in ours if "weight" in name)


def test_seeds_of_other_numbers_are_unrelated() -> None:
    seeds = {seed_of(a, b) for a in range(30) for b in range(30)} | {seed_of(a) for a in range(30)} | {seed_of(1, 2, 3)}
    assert len(seeds) == 931 and all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, 23) != seed_of(12, 3)


# Split over processes.


@pytest.mark.parametrize("changes", [{}, SLIDING | REPLAY | {"lifetimes": (2, 3)}], ids=["notebook", "paper"])
def test_a_split_group_is_the_whole_one(changes: dict[str, Any]) -> None:
    config = tiny_config(CATCH, HabitatConfig("chain", {"length": 4}, agents=2), **changes)
    whole = Watched(make_group(config))
    parts = [Watched(make_group(config, rank, 2)) for rank in range(2)]
    assert [part.group.habitats.ids for part in parts] == [[0, 1], [2, 3]]
    eta = params_of(random_rule())
    for _ in range(4):
        want = whole.group.advance(eta)
        got = [part.group.advance(eta) for part in parts]
        for name, grad in want.grads.items():
            torch.testing.assert_close(torch.cat([each.grads[name] for each in got]), grad, rtol=1e-12, atol=1e-14)
        for name, value in want.logs.items():
            torch.testing.assert_close(torch.cat([each.logs[name] for each in got]), value, rtol=1e-10, atol=1e-12)
        renewed = whole.group.renew([])
        assert sum(part.group.renew([]) for part in parts) == renewed
    for rollout, *split in zip(whole.collected, *(part.collected for part in parts), strict=True):
        assert torch.equal(torch.cat([each.actions for each in split]), rollout.actions)
        assert torch.equal(torch.cat([each.observations for each in split]), rollout.observations)
    for update, *others in zip(whole.updates, *(part.updates for part in parts), strict=True):
        joined_rewards = torch.cat([each.batch.rewards for each in others])
        assert torch.equal(joined_rewards, update.batch.rewards)
    lives = [life for part in parts for life in part.group.lives]
    assert lives == whole.group.lives and (bool(changes) == any(lives))


def test_one_agent_in_several_processes() -> None:
    """Each process has the agents that are its own, with their own rates, and some have none."""
    config = tiny_config(CATCH, CHAIN)
    groups = [make_group(config, rank, 4) for rank in range(4)]
    assert [group.habitats.ids for group in groups] == [[], [0], [1], [2]]
    assert [group.rates.tolist() for group in groups] == [[], [1e-2], [3e-3], [1e-2]]
    assert [group.habitat_of(0) for group in groups[1:]] == ["catch", "catch", "chain"]


def test_the_agents_of_a_group_take_their_learning_rates_in_turn() -> None:
    group = GroupConfig((CATCH, CHAIN), TINY_AGENT, learning_rates=(0.1, 0.2))
    assert make_group(tiny_config(groups=(group,))).rates.tolist() == [0.1, 0.2, 0.1]
