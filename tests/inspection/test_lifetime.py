"""Targets with the lifetime memory of several ages, traces, and rules beside the one that is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from known_cases import actor_critic_case, disco_case, own_rewards_case

from disco_torch.inspection import measure_lifetime, peers_of, trace_of
from disco_torch.inspection.edits import watching
from disco_torch.inspection.lifetime import lifetime_memory
from disco_torch.rules import ActorCritic, DiscoUpdateRule, DoublyRobust
from disco_torch.types import UpdateRuleInputs

MakeInputs = Callable[..., UpdateRuleInputs]


def test_the_same_memory_gives_the_same_targets(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    watched = watching(case, calls=4)
    memories = {i: lifetime_memory(each.meta_state) for i, each in enumerate(watched)}
    ages = measure_lifetime(case, {4: memories[4], 0: memories[0], 2: memories[2]})
    assert [age.updates for age in ages] == [0, 2, 4]
    assert ages[0].from_birth["policy"].mean == 0.0 and ages[-1].from_last["policy"].mean == 0.0
    for name in ("policy", "y", "z"):
        assert ages[-1].from_birth[name].mean > 0.0
        assert ages[-1].from_birth[name].mean == pytest.approx(ages[0].from_last[name].mean)
        assert ages[1].pushes[name].mean > 0.0
    assert ages[-1].from_birth["value"].mean == 0.0  # Retrace has no memory


def test_a_rule_without_a_memory(make_inputs: MakeInputs) -> None:
    case = actor_critic_case(make_inputs)
    assert lifetime_memory(case.meta_state) is None
    with pytest.raises(ValueError, match="`case` must be of a rule with a lifetime memory, got ActorCritic"):
        measure_lifetime(case, {0: None})


def test_a_trace(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    trace = trace_of(case, trajectory=1)
    assert torch.equal(trace.actions, case.inputs.actions[:-1, 1]) and torch.equal(trace.rewards, case.inputs.rewards[:, 1])
    assert trace.ends.nonzero()[:, 0].tolist() == [4]
    torch.testing.assert_close(trace.policy.sum(-1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(trace.policy_confidence, (trace.policy * trace.policy.log()).sum(-1))
    y = case.inputs.agent_out["y"][:-1, 1].softmax(-1)
    torch.testing.assert_close(trace.y_confidence, (y * y.log()).sum(-1))
    torch.testing.assert_close(trace.push, case.pushes["policy"][:, 1])
    plain = trace_of(own_rewards_case(make_inputs))
    assert plain.values is None


def test_rules_beside_a_disco_rule(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    peers = {peer.name: peer for peer in peers_of(case)}
    assert list(peers) == ["random weights", "actor-critic", "doubly-robust"]
    for name, peer in peers.items():
        own = watching(peer.case(case), calls=3)[-1]
        assert own.pushes["policy"].isfinite().all() and float(own.pushes["policy"].abs().sum()) > 0.0, name
        again = peer.case(case, own.meta_state)
        torch.testing.assert_close(again.pushes["policy"], own.pushes["policy"])
    critic = peers["actor-critic"].case(case)
    assert isinstance(critic.rule, ActorCritic) and critic.target_out is None
    torch.testing.assert_close(critic.values, case.values)
    robust = peers["doubly-robust"].case(case)
    assert isinstance(robust.rule, DoublyRobust)
    torch.testing.assert_close(robust.action_values, case.action_values)


def test_rules_beside_one_by_hand(make_inputs: MakeInputs) -> None:
    assert [peer.name for peer in peers_of(actor_critic_case(make_inputs))] == []
    assert [peer.name for peer in peers_of(own_rewards_case(make_inputs))] == []
