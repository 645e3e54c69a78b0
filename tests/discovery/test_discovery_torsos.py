"""Agents with convolutions in a discovery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_discoveries import TINY_AGENT
from small_groups import (
    CATCH,
    CHAIN,
    GRID,
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

from disco_torch.data import InputConfig
from disco_torch.discovery import DiscoverySession, PlainMetaGradient
from disco_torch.discovery.config import DiscoverConfig, GroupConfig
from disco_torch.types import tree_map

INPUTS = InputConfig(observations="auto", rewards="normalized")


def with_torso(torso: Any = "board", *habitats: Any, **changes: Any) -> DiscoverConfig:
    agent = replace(TINY_AGENT, torso=torso, channels=(2,))
    group = GroupConfig(habitats or (replace(CATCH, agents=3),), agent, learning_rates=(1e-2, 3e-3))
    return tiny_config(groups=(group,), **changes)


@pytest.mark.parametrize("torso", ["board", "impala"])
@pytest.mark.parametrize("changes", [{}, REPLAY | {"inputs": INPUTS}], ids=["notebook", "replay"])
def test_meta_gradients_through_convolutions(torso: str, changes: dict[str, Any]) -> None:
    watched = Watched(make_group(with_torso(torso, **changes)))
    group, eta = watched.group, params_of(random_rule())
    assert group.agent.config.torso == torso
    group.advance(eta)
    watched.updates.clear()
    gradient, first = group.advance(eta), watched.updates[0]
    assert first.batch.observations.shape[3:] == (3, 3)
    compute = PlainMetaGradient(group.meta_gradient.learner, group.value_function, group.config.weights)
    for agent in range(3):
        states = pick(first.before, agent), pick(first.values, agent)
        train = [pick(update.batch, agent) for update in watched.updates]
        alone = compute(eta, *states, train, pick(watched.valid, agent), group.rates[agent])
        assert_close(pick(gradient.grads, agent), alone.grads)
        assert_close_trees(pick(group.state.learners, agent), alone.learner_state)


def test_a_discovery_with_convolutions_goes_on_from_its_state() -> None:
    config = with_torso(**REPLAY)
    session, again = DiscoverySession(config), DiscoverySession(config)
    session.advance()
    again.load_state_dict(tree_map(torch.clone, session.state_dict()))
    for each in (session, again):
        each.advance()
    assert_close_trees(again.rule_params, session.rule_params, 0.0)


def test_what_is_chosen() -> None:
    assert make_group(with_torso("auto")).agent.config.torso == "board"
    assert make_group(with_torso("auto", CATCH, CHAIN)).agent.config.torso == "mlp"
    assert make_group(with_torso("auto", GRID)).agent.config.torso == "board"


def test_observations_of_several_shapes() -> None:
    with pytest.raises(
        ValueError, match=r"`torso` of a group must be 'mlp' where .*, \[\(3, 3\), \(8,\)\], got 'board'; put"
    ):
        make_group(with_torso("board", CATCH, CHAIN))
