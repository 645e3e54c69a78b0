"""Agents with a memory in a discovery: they act and learn with it, and it is in checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_discoveries import TINY_AGENT
from small_groups import (
    CATCH,
    CHAIN,
    REPLAY,
    SLIDING,
    Watched,
    assert_close,
    assert_close_trees,
    make_group,
    params_of,
    pick,
    random_rule,
    tiny_config,
)
from torch import Tensor, nn

from disco_torch.agents import agent as agents
from disco_torch.data import InputConfig, memory_resets
from disco_torch.discovery import DiscoverySession, PlainMetaGradient
from disco_torch.discovery.config import DiscoverConfig, GroupConfig
from disco_torch.discovery.local_group import LocalGroup
from disco_torch.kernels import Speed
from disco_torch.types import flatten_tree, tree_map

INPUTS = InputConfig(observations="auto", rewards="normalized")


class TinyRecurrence(nn.Module):
    """h' = tanh(W [x, h]), h = 0.5 where an episode begins."""

    def __init__(self, in_features: int, out_features: int = 3) -> None:
        super().__init__()
        self.out_features = out_features
        self.linear = nn.Linear(in_features + out_features, out_features)

    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        return {"h": torch.full((batch_size, self.out_features), 0.5, dtype=self.linear.weight.dtype)}

    def forward(self, features: Tensor, should_reset: Tensor | None, state: dict[str, Tensor]) -> tuple[Tensor, Any]:
        assert should_reset is not None
        h, rows = state["h"], []
        for x, reset in zip(features, should_reset, strict=True):
            h = torch.where(reset.unsqueeze(-1), torch.full_like(h, 0.5), h)
            h = torch.tanh(self.linear(torch.cat([x, h], dim=-1)))
            rows.append(h)
        return torch.stack(rows), {"h": h}


@pytest.fixture(autouse=True)
def recurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agents.CORES, "tiny", lambda features, config: TinyRecurrence(features))


def with_memory(core: Any = "tiny", **changes: Any) -> DiscoverConfig:
    group = GroupConfig((CATCH, CHAIN), replace(TINY_AGENT, core=core, core_size=3), learning_rates=(1e-2, 3e-3))
    return tiny_config(groups=(group,), **changes)


def test_what_agents_do_follows_from_their_memory() -> None:
    watched = Watched(make_group(with_memory(window=1)))
    group = watched.group
    before = group.state.acting.memory["h"]
    assert before.shape == (3, 3, 3) and bool((before == 0.5).all())  # agents, environments, units
    group.advance(params_of(random_rule()))
    params = watched.updates[0].before.params  # all rollouts of a meta-update are collected with the initial parameters
    (first, second) = watched.collected
    assert torch.equal(first.first_state["h"], before) and not torch.equal(second.first_state["h"], before)
    for rollout, after in ((first, second.first_state), (second, group.state.acting.memory)):
        for agent in range(3):
            own: Any = pick(rollout, agent)
            resets = memory_resets(own)
            out, memory = group.agent.unroll(pick(params, agent), own.observations, resets, own.first_state)
            torch.testing.assert_close(out["logits"], own.behaviour_logits)
            torch.testing.assert_close(memory["h"], after["h"][agent])
    assert bool(memory_resets(pick(second, 0)).any())  # an episode of this Catch has two steps


@pytest.mark.parametrize("core", ["tiny", "lstm"])
@pytest.mark.parametrize(
    "changes", [{}, REPLAY | {"valid_envs": 5}, {"inputs": INPUTS}], ids=["notebook", "replay", "inputs"]
)
def test_the_meta_gradient_goes_through_the_memory(core: str, changes: dict[str, Any]) -> None:
    watched = Watched(make_group(with_memory(core, **changes)))
    group, eta = watched.group, params_of(random_rule())
    begun = flatten_tree(group.agent.initial_state(3))[0]
    group.advance(eta)
    watched.updates.clear()
    gradient, first = group.advance(eta), watched.updates[0]
    compute = PlainMetaGradient(group.meta_gradient.learner, group.value_function, group.config.weights)
    for agent in range(3):
        states = pick(first.before, agent), pick(first.values, agent)
        train = [pick(update.batch, agent) for update in watched.updates]
        for batch in train:
            stored = flatten_tree(batch.first_state)[0]
            assert not any(torch.equal(x, empty) for x, empty in zip(stored, begun, strict=True))
        alone = compute(eta, *states, train, pick(watched.valid, agent), group.rates[agent])
        assert_close(pick(gradient.grads, agent), alone.grads)
        assert_close_trees(pick(group.state.learners, agent), alone.learner_state)


def test_shared_value_functions_have_no_memory() -> None:
    group = make_group(tiny_config(groups=(sharing(),), share_values=True))
    gradient = group.advance(params_of(random_rule()))
    assert all(bool(grad.isfinite().all()) for grad in gradient.grads.values())


def sharing() -> GroupConfig:
    agent = replace(TINY_AGENT, core="tiny")  # type: ignore[arg-type]
    return GroupConfig((CATCH, replace(CHAIN, agents=2)), agent, learning_rates=(1e-2,))


def test_a_new_life_begins_without_memories() -> None:
    group = make_group(with_memory(**SLIDING))
    group.advance(params_of(random_rule()))
    others = group.state.acting.memory["h"].clone()
    assert not bool((others == 0.5).any())
    group.renew([1])
    memory = group.state.acting.memory["h"]
    assert bool((memory[1] == 0.5).all()) and torch.equal(memory[[0, 2]], others[[0, 2]])


@pytest.mark.parametrize(("core", "name"), [("tiny", "h"), ("lstm", "cell")])
def test_memory_is_in_checkpoints(core: str, name: str) -> None:
    config = with_memory(core, **(SLIDING | REPLAY))
    session, again = DiscoverySession(config), DiscoverySession(config)
    for _ in range(2):
        session.advance()
    state: Any = session.state_dict()
    assert state["groups"][0]["agents"][f"memory/{name}"].shape == (3, 3, 3)
    again.load_state_dict(tree_map(torch.clone, state))
    for each in (session, again):
        each.advance()
    assert_close_trees(again.groups[0].state.acting, session.groups[0].state.acting, 0.0)
    assert_close_trees(again.rule_params, session.rule_params, 0.0)


def test_traced_agents_with_memory_are_the_plain_ones() -> None:
    short = {"window": 1, "rollout_length": 2, "valid_length": 2}
    config, eta = with_memory("lstm", **REPLAY, **short), params_of(random_rule())
    speeds = (Speed(), Speed(trace=True))
    plain, traced = (LocalGroup(config, 0, random_rule(), torch.device("cpu"), speed) for speed in speeds)
    for _ in range(2):
        assert_close(traced.advance(eta).grads, plain.advance(eta).grads)
    assert_close_trees(traced.state.acting.memory, plain.state.acting.memory)
