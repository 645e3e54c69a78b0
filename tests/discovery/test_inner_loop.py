"""The batched inner loop: each agent's gradient is its own, windows slide, value functions can be shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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
from disco_torch.discovery.config import HabitatConfig
from disco_torch.discovery.group_state import GroupGradient
from disco_torch.types import Rollout, tree_map


@pytest.fixture(scope="module", params=[{}, REPLAY | {"valid_envs": 5}, {"epochs": 3}], ids=["notebook", "replay", "epochs"])
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
    # The environments beyond `num_envs` are for validation alone; the newest come last first.
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
        own_kl = [update for update in group.state.window if update.alive[1] == 1]
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
    for shared, agents in enumerate((slice(0, 2), slice(2, 4))):
        logits = [
            group.agent.unroll(pick(last.before, agent).params, pick(last.batch, agent).observations)[0]["logits"]
            for agent in range(4)[agents]
        ]
        want, *_ = group.value_function.update(pick(last.values, shared), joined(last.batch, agents), torch.cat(logits, 1))
        assert_close_trees(pick(group.state.values, shared), want)

        finals = [
            group.agent.unroll(pick(group.state.learners, agent).params, pick(watched.valid, agent).observations)[0][
                "logits"
            ]
            for agent in range(4)[agents]
        ]
        value_out, *_ = group.value_function.estimate(
            pick(watched.values, shared), joined(watched.valid, agents), torch.cat(finals, 1)
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
