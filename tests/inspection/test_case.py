"""A rule with all that its targets depend on: pushes, and how far targets move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from known_cases import A, actor_critic_case, disco_case

from disco_torch import Agent, AgentConfig, Learner
from disco_torch.inspection import make_case
from disco_torch.inspection.edits import fresh_rule, read_rule_inputs, with_estimates, with_rule_inputs
from disco_torch.inspection.quantities import BOOTSTRAPS, QUANTITIES, encode, present
from disco_torch.rules import DiscoUpdateRule, PolicyGradient, entropy
from disco_torch.types import Rollout, UpdateRuleInputs
from disco_torch.values import ValueEncoding, select_action

MakeInputs = Callable[..., UpdateRuleInputs]


def test_the_push_of_a_kl_is_target_minus_prediction(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    out, targets, actions = case.inputs.agent_out, case.targets, case.inputs.actions[:-1]
    assert set(case.pushes) == {"policy", "y", "z", "value"}
    torch.testing.assert_close(case.pushes["policy"], targets["pi"].softmax(-1) - out["logits"][:-1].softmax(-1))
    torch.testing.assert_close(case.pushes["y"], targets["y"].softmax(-1) - out["y"][:-1].softmax(-1))
    taken = select_action(out["z"][:-1], actions)
    torch.testing.assert_close(case.pushes["z"], targets["z"].softmax(-1) - taken.softmax(-1))


def test_the_push_of_actor_critic(make_inputs: MakeInputs) -> None:
    case = actor_critic_case(make_inputs, entropy_cost=0.3)
    logits = case.inputs.agent_out["logits"][:-1]
    policy, log_policy = logits.softmax(-1), logits.log_softmax(-1)
    taken = torch.nn.functional.one_hot(case.inputs.actions[:-1], A) - policy
    of_entropy = -policy * (log_policy + entropy(logits).unsqueeze(-1))
    expected = case.targets["raw_advs"].unsqueeze(-1) * taken + 0.3 * of_entropy
    torch.testing.assert_close(case.pushes["policy"], expected)


def test_moves_are_total_variation_distances(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    assert all(float(move.max()) == 0.0 for move in case.moves(case).values())
    # The agent's own policy is changed as well; its target moves by no more than the targets themselves differ.
    changed = case.with_output("logits", torch.zeros_like(case.inputs.agent_out["logits"]))
    distance = 0.5 * (changed.targets["pi"].softmax(-1) - case.targets["pi"].softmax(-1)).abs().sum(-1)
    torch.testing.assert_close(case.moves(changed)["policy"], distance)
    assert float(distance.max()) > 1e-3


def test_estimates_and_inputs_are_changed_and_the_rule_is_not(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    before = case.look()[0]["pi"]
    read = read_rule_inputs(case)
    assert list(read) == [each.name for each in tiny_rule.config.net.input_option.all]
    no_advantage = with_estimates(
        case, lambda values: dataclasses.replace(values, adv=0 * values.adv, normalized_adv=0 * values.normalized_adv)
    )
    assert no_advantage is not None
    seen = read_rule_inputs(no_advantage)
    assert not seen["advantage"].any() and not seen["normalized_advantage"].any()
    torch.testing.assert_close(seen["reward"], read["reward"])
    same = with_rule_inputs(case, lambda name, x: 0 * x if "advantage" in name and "q_" not in name else x)
    assert same is not None
    torch.testing.assert_close(same.targets["pi"], no_advantage.targets["pi"])
    assert not torch.allclose(same.targets["pi"], before)
    torch.testing.assert_close(case.look()[0]["pi"], before)


def test_a_rule_without_a_meta_network_has_no_inputs_of_one(make_inputs: MakeInputs) -> None:
    case = actor_critic_case(make_inputs)
    assert with_estimates(case, lambda values: values) is None and read_rule_inputs(case) == {}


def test_fresh_weights(tiny_rule: DiscoUpdateRule) -> None:
    before = {name: param.clone() for name, param in tiny_rule.named_parameters()}
    fresh, again = (dict(fresh_rule(tiny_rule, seed=3).named_parameters()) for _ in range(2))
    weights = [name for name in before if name.endswith("weight")]
    assert weights and all(not torch.equal(fresh[name], before[name]) for name in weights)
    assert all(torch.equal(fresh[name], again[name]) for name in fresh)
    assert all(torch.equal(param, before[name]) for name, param in tiny_rule.named_parameters())


@pytest.mark.parametrize(
    "encoding", [ValueEncoding(), ValueEncoding(1, nonlinear=True), ValueEncoding(51, 10.0), ValueEncoding(51, 10.0, True)]
)
def test_values_are_encoded_and_back(encoding: ValueEncoding) -> None:
    values = torch.linspace(-5.0, 5.0, 12, dtype=torch.float64).view(3, 4)
    outputs = encode(values, encoding)
    assert outputs.shape == (3, 4, encoding.num_bins) and outputs.isfinite().all()
    torch.testing.assert_close(encoding.to_scalar(outputs), values, atol=1e-3, rtol=1e-3)


def test_quantities_of_a_case(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    names = [each.name for each in present(QUANTITIES, case)]
    assert names[:4] == ["reward", "policy", "behaviour policy", "action value q"] and "slow z" in names
    for each in present((*QUANTITIES, *BOOTSTRAPS), case):
        x = each.get(case)
        assert x is not None
        shifted = each.get(each.shifted(case, torch.full((), 0.25, dtype=x.dtype)))
        torch.testing.assert_close(shifted, x + 0.25, atol=1e-3, rtol=1e-3)
    (value,) = (each for each in present(BOOTSTRAPS, case) if each.name == "value")
    moved = value.shifted(case, torch.ones((), dtype=torch.float64))
    assert moved.target_out is not None and case.target_out is not None
    slow = [case.encoding.to_scalar(each.target_out["q"]) for each in (case, moved)]  # type: ignore[index]
    torch.testing.assert_close(slow[1], slow[0] + 1.0, atol=1e-3, rtol=1e-3)


def test_a_case_of_a_learner(make_rollout: Callable[..., Rollout], tiny_rule: DiscoUpdateRule) -> None:
    rollout = make_rollout()
    agent = Agent(torch.zeros(10), A, tiny_rule.outputs(A), AgentConfig((8,), 4, (4,))).double()
    learner = Learner(agent, tiny_rule)
    state = learner.init(torch.Generator().manual_seed(0))
    case = make_case(learner, state.params, state.meta_state, rollout)
    # As an update computes them.
    inputs = dataclasses.replace(case.inputs)
    targets, _ = learner.targets(state.params, state.meta_state, rollout, inputs)
    torch.testing.assert_close(case.targets["pi"], targets["pi"])
    torch.testing.assert_close(case.counted, case.inputs.loss_mask.bool())  # type: ignore[union-attr]
    assert case.target_out is not None
    torch.testing.assert_close(case.target_out["y"], case.inputs.agent_out["y"])  # at birth the slow copy is the agent


def test_a_rule_that_keeps_no_slow_copy(make_rollout: Callable[..., Rollout]) -> None:
    rollout, rule = make_rollout(), PolicyGradient()
    agent = Agent(torch.zeros(10), A, rule.outputs(A), AgentConfig((8,), 4, (4,))).double()
    learner = Learner(agent, rule)
    state = learner.init(torch.Generator().manual_seed(0))
    values: Any = actor_critic_like_values(rollout)
    case = make_case(learner, state.params, state.meta_state, rollout, values)
    assert case.target_out is None and case.values is None and set(case.pushes) == {"policy"}


def actor_critic_like_values(rollout: Rollout) -> Any:
    from disco_torch.types import ValueOuts

    advantages = rollout.rewards[1:]
    return ValueOuts(adv=advantages, normalized_adv=advantages)
