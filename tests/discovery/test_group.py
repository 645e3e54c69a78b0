"""A batched group: its gradient is each agent's own, its windows slide, its agents live and die, it can be split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_discoveries import TINY_AGENT, assert_same
from small_groups import (
    CATCH,
    CHAIN,
    GRID,
    REPLAY,
    SLIDING,
    Watched,
    assert_close,
    assert_close_trees,
    make_group,
    meta_gradient_by_hand,
    params_of,
    pick,
    poison,
    random_rule,
    tiny_config,
)

from disco_torch.discovery import MixedModeMetaGradient, PlainMetaGradient
from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.discovery.group import seed_of
from disco_torch.discovery.records import GroupGradient
from disco_torch.types import Rollout, tree_map


@pytest.fixture(scope="module", params=[{}, REPLAY | {"valid_envs": 5}], ids=["notebook", "replay"])
def advanced(request: pytest.FixtureRequest) -> tuple[Watched, GroupGradient]:
    """A group of three agents of two learning rates in two environments, in the middle of their lives."""
    watched = Watched(make_group(tiny_config(CATCH, GRID, **request.param)))
    watched.group.advance(params_of(random_rule()))
    watched.updates.clear()
    return watched, watched.group.advance(params_of(random_rule()))


@pytest.mark.parametrize("implementation", [PlainMetaGradient, MixedModeMetaGradient])
def test_the_gradient_of_a_group_is_each_agents_own(
    advanced: tuple[Watched, GroupGradient], implementation: type[PlainMetaGradient]
) -> None:
    watched, gradient = advanced
    group, first = watched.group, watched.updates[0]
    assert watched.valid is not None and len(watched.updates) == 2
    compute = implementation(group.meta_gradient.learner, group.value_function, group.config.weights)
    for agent in range(3):
        states = pick(first.before, agent), pick(first.values, agent)
        train = [pick(update.batch, agent) for update in watched.updates]
        alone = compute(first.eta, *states, train, pick(watched.valid, agent), group.rates[agent])
        assert_close(pick(gradient.grads, agent), alone.grads)
        assert_close_trees(pick(group.state.learners, agent), alone.learner_state)
        assert_close_trees(pick(group.state.values, agent), alone.value_state)
        for name, value in alone.logs.items():
            torch.testing.assert_close(gradient.logs[name][agent], value, rtol=1e-10, atol=1e-12)
    assert len({float(rate) for rate in group.rates}) == 2


def test_the_agents_are_not_all_alike(advanced: tuple[Watched, GroupGradient]) -> None:
    _, gradient = advanced
    for one in gradient.grads.values():
        assert not torch.equal(one[0], one[1]) and not torch.equal(one[1], one[2])


def test_what_a_batch_is_made_of() -> None:
    watched = Watched(make_group(tiny_config(**REPLAY, valid_envs=4, batch_size=4, window=1)))
    for _ in range(3):
        watched.group.advance(params_of(random_rule()))
    played = [rollout for rollout in watched.collected if rollout.rewards.shape[1] == 4]
    assert [rollout.rewards.shape for rollout in watched.collected] == 3 * [(3, 4, 4), (3, 5, 4)]
    batch, newest = watched.updates[-1].batch, played[-1]
    assert batch.rewards.shape == (3, 4, 4)
    # The copies beyond `num_envs` are for judging alone; the newest come last first.
    assert torch.equal(batch.observations[:, :, :2], newest.observations[:, :, [2, 1]])
    stored = torch.cat([rollout.behaviour_logits[:, :, :3] for rollout in played[-2:]], dim=2)
    for agent in range(3):
        for drawn in batch.behaviour_logits[agent, :, 2:].unbind(1):
            assert any(torch.equal(drawn, own) for own in stored[agent].unbind(1))


def sliding(changes: dict[str, Any], advances: int = 5) -> tuple[Watched, list[GroupGradient]]:
    """A group that has been through several rules."""
    watched = Watched(make_group(tiny_config(CATCH, CHAIN, **(SLIDING | changes))))
    rule = random_rule()
    return watched, [watched.group.advance(params_of(rule, 1.0 - 0.1 * n)) for n in range(advances)]


@pytest.mark.parametrize("changes", [{}, {"stride": 2}, REPLAY], ids=["stride 1", "stride 2", "replay"])
def test_a_sliding_window_is_differentiated_as_far_back_as_it_reaches(changes: dict[str, Any]) -> None:
    watched, gradients = sliding(changes, advances=4)
    assert len(watched.group.state.window) == 3 - watched.group.config.stride  # what the next window shares with this one
    for agent in range(3):
        by_hand = meta_gradient_by_hand(watched, agent, watched.updates[-3:])
        assert_close(pick(gradients[-1].grads, agent), by_hand)
        shorter = meta_gradient_by_hand(watched, agent, watched.updates[-2:])
        assert any(not torch.allclose(shorter[name], by_hand[name]) for name in by_hand)


def test_the_first_windows_are_shorter() -> None:
    watched, gradients = sliding({}, advances=2)
    assert_close(pick(gradients[-1].grads, 0), meta_gradient_by_hand(watched, 0, watched.updates))
    loss, regularizer = gradients[-1].logs["meta_loss"], gradients[-1].logs["reg_loss"]
    assert torch.equal(loss - gradients[-1].logs["pg_loss"], regularizer)


def test_nothing_flows_across_the_replacement_of_an_agent() -> None:
    watched, _ = sliding({}, advances=3)
    group, eta = watched.group, params_of(random_rule(), 0.5)
    assert group.renew([1]) == 1
    for own in (1, 2, 3, 3):  # as its life goes on, more of it is in the window
        gradient = group.advance(eta)
        assert_close(pick(gradient.grads, 1), meta_gradient_by_hand(watched, 1, watched.updates[-own:]))
        assert_close(pick(gradient.grads, 0), meta_gradient_by_hand(watched, 0, watched.updates[-3:]))
        own_kl = [r for r in group.state.window if r.goes_on[1] == 1]
        assert len(own_kl) == min(own, 2)


def test_an_agent_that_is_not_finite_leaves_no_trace() -> None:
    """Its successor's gradient is finite at once, though updates of the one before are still in the window."""
    watched, _ = sliding({}, advances=2)
    group, eta = watched.group, params_of(random_rule())
    poison(group, 1, "heads.y")
    bad = group.advance(eta)
    assert [bool(bad.grads["meta_net.y_head.bias"][agent].isfinite().all()) for agent in range(3)] == [True, False, True]
    group.renew([1])
    after = group.advance(eta)
    assert all(bool(grad.isfinite().all()) for grad in after.grads.values())
    assert all(bool(value.isfinite().all()) for value in after.logs.values())
    assert_close(pick(after.grads, 1), meta_gradient_by_hand(watched, 1, watched.updates[-1:]))


TWO_HABITATS = (CATCH, HabitatConfig("chain", {"length": 4}, agents=2))


def joined(rollout: Rollout, agents: slice) -> Rollout:
    """The rollouts of several agents as one batch."""
    return tree_map(lambda x: torch.cat(list(x[agents]), dim=1), rollout)


def test_a_shared_value_function_learns_from_all_agents_of_its_habitat() -> None:
    watched = Watched(make_group(tiny_config(*TWO_HABITATS, share_values=True)))
    group = watched.group
    gradient = group.advance(params_of(random_rule()))
    last = watched.updates[-1]
    assert watched.valid is not None and watched.values is not None
    assert all(leaf.shape[0] == 2 for leaf in group.state.values.params.values())
    for lane, agents in enumerate((slice(0, 2), slice(2, 4))):
        logits = [
            group.agent.unroll(pick(last.before, agent).params, pick(last.batch, agent).observations)[0]["logits"]
            for agent in range(4)[agents]
        ]
        want, *_ = group.value_function.update(pick(last.values, lane), joined(last.batch, agents), torch.cat(logits, 1))
        assert_close_trees(pick(group.state.values, lane), want)

        finals = [
            group.agent.unroll(pick(group.state.learners, agent).params, pick(watched.valid, agent).observations)[0][
                "logits"
            ]
            for agent in range(4)[agents]
        ]
        value_out, *_ = group.value_function.estimate(
            pick(watched.values, lane), joined(watched.valid, agents), torch.cat(finals, 1)
        )
        for i, agent in enumerate(range(4)[agents]):
            own = tree_map(lambda x, i=i: x[:, 3 * i : 3 * i + 3], value_out)
            assert_close(pick(gradient.grads, agent), meta_gradient_by_hand(watched, agent, watched.updates, own))


def test_a_shared_value_function_recovers_from_an_agent_that_is_not_finite() -> None:
    group = make_group(tiny_config(*TWO_HABITATS, share_values=True))
    eta = params_of(random_rule())
    poison(group, 3)
    grads = group.advance(eta).grads["meta_net.y_head.bias"]
    assert grads[:2].isfinite().all() and not grads[3].isfinite().any()
    group.renew([agent for agent in range(4) if not grads[agent].isfinite().all()])
    assert all(bool(grad.isfinite().all()) for grad in group.advance(eta).grads.values())


# Lives.


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
    old_level = group.state.acting.worlds[1].levels.keys.clone()
    assert group.renew([]) == 2 and group.lives == [0, 1, 0, 1] and group.ages == [2, 0, 2, 0]
    assert group.lifetimes == [6, 6, 6, 6] and group.state.rings is not None
    assert group.state.rings.sizes.tolist() == [6, 0, 6, 0]
    assert [record.goes_on.tolist() for record in group.state.window] == [[1, 0, 1, 0]] * 2
    for agent, is_new in enumerate([False, True, False, True]):
        learner = pick(group.state.learners, agent)
        assert (int(learner.opt_state.count) == 0) == is_new == (int(pick(group.state.values, agent).opt_state.count) == 0)
        for name, param in learner.params.items():
            assert torch.equal(param, before.params[name][agent]) != is_new
            assert not is_new or torch.equal(param, learner.meta_state.target_params[name])
            assertions += 1
        assert (group.state.acting.returns[agent] == 0).all() or not is_new
    level = group.state.acting.worlds[1].levels.keys
    assert torch.equal(level[:3], old_level[:3]) and not torch.equal(level[3:], old_level[3:])
    assert (group.state.acting.worlds[0].ball_row[3:] == 0).all() and assertions > 0
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


@pytest.mark.parametrize(
    ("habitats", "size", "message"),
    [
        ((CATCH, CHAIN), 1, r"as many agents in each habitat of a group, got 1 processes and \[1, 2\] agents"),
        ((CATCH,), 2, r"`share_values` needs one process .* got 2 processes and \[2\] agents"),
    ],
)
def test_values_that_cannot_be_shared(habitats: Any, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_group(tiny_config(*habitats, share_values=True), 0, size)


def test_the_agents_of_a_group_take_their_learning_rates_in_turn() -> None:
    group = GroupConfig((CATCH, CHAIN), TINY_AGENT, learning_rates=(0.1, 0.2))
    assert make_group(tiny_config(groups=(group,))).rates.tolist() == [0.1, 0.2, 0.1]
