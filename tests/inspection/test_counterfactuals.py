"""What a rule reads: counterfactuals and sensitivities, on rules that read what is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from known_cases import actor_critic_case, disco_case, own_rewards_case

from disco_torch.inspection import COUNTERFACTUALS, Reading, measure_counterfactuals, measure_exchange, measure_sensitivities
from disco_torch.inspection.counterfactuals import summarize
from disco_torch.rules import DiscoUpdateRule, MetaNetInputOption
from disco_torch.types import UpdateRuleInputs

MakeInputs = Callable[..., UpdateRuleInputs]


def by_name(readings: list[Reading]) -> dict[str, Reading]:
    return {reading.name: reading for reading in readings}


def test_a_rule_that_reads_rewards_alone(make_inputs: MakeInputs) -> None:
    case = own_rewards_case(make_inputs)
    found = by_name(measure_counterfactuals(case))
    assert list(found) == [each.name for each in COUNTERFACTUALS]
    for name in ("forced end", "behaviour = current", "uniform policy", "zero y"):
        assert found[name].moved["policy"].mean == 0.0
    for name, value in (("no reward", 0.0), ("reward +1", 1.0), ("reward -1", -1.0)):
        # The push is r (e_a - pi), half of whose absolute sum is |r| (1 - pi(a)).
        policy = case.inputs.agent_out["logits"][:-1].softmax(-1)
        others = 1.0 - policy.gather(-1, case.inputs.actions[:-1].unsqueeze(-1)).squeeze(-1)
        expected = ((case.inputs.rewards - value).abs() * others).mean()
        torch.testing.assert_close(torch.tensor(found[name].moved["policy"].mean, dtype=torch.float64), expected)
    for name in ("no advantage", "no q", "target = current", "zero z"):
        assert found[name].moved == {} and found[name].skipped.startswith("Skipped: ")


def test_the_sensitivity_is_the_derivative(make_inputs: MakeInputs) -> None:
    case = own_rewards_case(make_inputs)
    found = measure_sensitivities(case)
    assert found.rule_inputs == []
    readings = by_name(found.quantities)
    policy = case.inputs.agent_out["logits"][:-1].softmax(-1)
    others = 1.0 - policy.gather(-1, case.inputs.actions[:-1].unsqueeze(-1)).squeeze(-1)
    expected = float(case.inputs.rewards.std() * others.mean())
    assert abs(readings["reward"].moved["policy"].mean - expected) < 1e-9
    for name in ("policy", "behaviour policy", "prediction y"):
        assert readings[name].moved["policy"].mean == 0.0
    assert readings["reward"].moved["y"].mean == 0.0  # nothing pushes y


def test_an_input_that_a_meta_network_lacks_is_not_read(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    inputs = tiny_rule.config.net.input_option
    without_y = MetaNetInputOption([each for each in inputs.base if "y_" not in each.name], inputs.action_conditional)
    net = dataclasses.replace(tiny_rule.config.net, input_option=without_y)
    rule = DiscoUpdateRule(dataclasses.replace(tiny_rule.config, net=net)).double()
    case = disco_case(rule, make_inputs)
    case = dataclasses.replace(case, meta_state=case.look()[1])  # a fresh rule's first targets are all 0
    case = dataclasses.replace(case, meta_state=case.look()[1])
    found = measure_sensitivities(case)
    readings = by_name(found.quantities)
    for name in ("prediction y", "slow y"):
        assert [moved.mean for moved in readings[name].moved.values()] == [0.0] * 4
    assert min(readings["prediction z"].moved[name].mean for name in ("policy", "y", "z")) > 0.0
    assert by_name(measure_counterfactuals(case))["zero y"].moved["z"].mean == 0.0
    own = by_name(found.rule_inputs)
    assert "y_pair" not in own and own["reward"].moved["y"].mean > 0.0
    assert own["reward"].moved["value"].mean == 0.0  # Retrace reads rewards, the meta-network does not touch it


def test_every_counterfactual_of_a_disco_rule(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    for reading in measure_counterfactuals(case):
        assert reading.skipped == "" and set(reading.moved) == {"policy", "y", "z", "value"}
        assert all(0.0 < reading.moved[name].mean <= 1.0 for name in ("policy", "y", "z")), reading.name
        assert all(moved.low <= moved.mean <= moved.high for moved in reading.moved.values())


def test_the_scale_of_moves(make_inputs: MakeInputs) -> None:
    case = actor_critic_case(make_inputs, entropy_cost=0.0)
    advantages = case.targets["raw_advs"]
    policy = case.inputs.agent_out["logits"][:-1].softmax(-1)
    others = 1.0 - policy.gather(-1, case.inputs.actions[:-1].unsqueeze(-1)).squeeze(-1)
    expected = ((advantages - advantages.roll(1, 1)).abs() * others).mean()
    found = measure_exchange(case).moved["policy"].mean
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected)


def test_only_counted_steps_are_summed() -> None:
    moves = torch.tensor([[1.0, 5.0, 7.0], [3.0, 9.0, 7.0]])
    counted = torch.tensor([[True, False, False], [True, True, False]])
    found = summarize({"policy": moves}, counted)["policy"]
    assert found.mean == (2.0 + 9.0) / 2  # the third trajectory has no step that counts


def test_a_constant_input_is_skipped(make_inputs: MakeInputs) -> None:
    case = own_rewards_case(make_inputs)
    for rounding in (0.0, 1e-8):
        still = case.with_inputs(rewards=1.0 + rounding * case.inputs.rewards)
        assert by_name(measure_sensitivities(still).quantities)["reward"].skipped.startswith("Skipped: it is constant")
