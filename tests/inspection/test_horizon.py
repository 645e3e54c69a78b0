"""How far a rule looks: on actor-critic, the horizon of its discount and lambda."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from known_cases import actor_critic_case, disco_case, own_rewards_case

from disco_torch.inspection import Reach, effective_horizon, measure_reach
from disco_torch.inspection.edits import fresh_rule, watching
from disco_torch.inspection.horizon import same_episode
from disco_torch.rules import DiscoUpdateRule
from disco_torch.types import UpdateRuleInputs
from disco_torch.weights import load_rule

MakeInputs = Callable[..., UpdateRuleInputs]


def pick(reaches: list[Reach], quantity: str, target: str) -> Reach:
    (found,) = (reach for reach in reaches if (reach.quantity, reach.target) == (quantity, target))
    return found


@pytest.mark.parametrize(("discount", "lambda_"), [(0.9, 0.8), (0.99, 0.5), (0.8, 1.0)])
def test_the_horizon_of_actor_critic(make_inputs: MakeInputs, discount: float, lambda_: float) -> None:
    case = actor_critic_case(make_inputs, T=15, discount_factor=discount, vtrace_lambda=lambda_)
    logits = torch.zeros_like(case.inputs.agent_out["logits"])  # uniform: every step is pushed alike
    case = case.with_output("logits", logits).with_inputs(behaviour_agent_out={"logits": logits})
    reach = pick(measure_reach(case), "reward", "policy")
    ratio = discount * lambda_
    expected = ratio ** torch.arange(15, dtype=torch.float64)
    torch.testing.assert_close(reach.mean / reach.mean[0], expected)
    torch.testing.assert_close(reach.trajectories / reach.trajectories[:, :1], expected.expand(10, -1))
    assert reach.horizon == pytest.approx(float(1 + (torch.arange(15) * expected).sum() / expected.sum()))


def test_the_horizon_of_a_long_geometric_decay() -> None:
    decay = 0.9 ** torch.arange(400, dtype=torch.float64)
    assert effective_horizon(decay) == pytest.approx(10.0)
    assert effective_horizon(torch.cat([decay, torch.full((9,), torch.nan, dtype=torch.float64)])) == pytest.approx(10.0)
    assert effective_horizon(torch.tensor([3.0, 0.0, 0.0])) == 1.0
    assert torch.tensor(effective_horizon(torch.zeros(3))).isnan()


def test_a_value_is_bootstrapped_from_once(make_inputs: MakeInputs) -> None:
    case = actor_critic_case(make_inputs, T=8, discount_factor=0.9, vtrace_lambda=0.0)
    logits = torch.zeros_like(case.inputs.agent_out["logits"])
    case = case.with_output("logits", logits).with_inputs(behaviour_agent_out={"logits": logits})
    reach = pick(measure_reach(case), "value", "policy")
    # One step: A_t = r_t + 0.9 v_{t+1} - v_t.
    expected = torch.tensor([1.0, 0.9, *[0.0] * 6], dtype=torch.float64)
    torch.testing.assert_close(reach.mean / reach.mean[0], expected)


def test_a_rule_that_does_not_look_ahead(make_inputs: MakeInputs) -> None:
    reaches = measure_reach(own_rewards_case(make_inputs))
    reach = pick(reaches, "reward", "policy")
    assert reach.horizon == 1.0 and float(reach.mean[0]) > 0.0 and not reach.mean[1:].nan_to_num().any()
    nothing = pick(reaches, "y", "policy")
    assert torch.tensor(nothing.horizon).isnan() and not nothing.mean.nan_to_num().any()


def test_pairs_lie_within_an_episode(make_inputs: MakeInputs) -> None:
    case = own_rewards_case(make_inputs, T=4, B=1)
    case = case.with_inputs(is_terminal=torch.tensor([[False], [True], [False], [False]]))
    expected = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]]).bool()
    assert torch.equal(same_episode(case)[..., 0], expected)
    cut = case.with_inputs(is_terminal=torch.zeros(4, 1, dtype=torch.bool), is_truncated=case.inputs.is_terminal)
    assert torch.equal(same_episode(cut)[..., 0], expected)
    reach = pick(measure_reach(case), "reward", "policy")
    assert reach.mean[:2].isfinite().all() and reach.mean[2:].isnan().all()


def test_every_pair_of_a_disco_rule(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    reaches = measure_reach(disco_case(tiny_rule, make_inputs))
    pairs = {(reach.quantity, reach.target) for reach in reaches}
    assert pairs == {(a, b) for a in ("reward", "value", "y", "z") for b in ("policy", "y", "z", "value")}
    for reach in reaches:
        assert reach.trajectories.shape == (5, 6) and reach.mean.shape == (6,)
    assert pick(reaches, "z", "z").horizon > 1.0


def test_disco103_bootstraps(disco103_path: Path, make_inputs: MakeInputs) -> None:
    """Its target for z at t reads z at t+k, and a rule with random weights hardly reads z at all."""
    rule = load_rule(disco103_path, dtype=torch.float64)
    case = watching(disco_case(rule, make_inputs, T=6, B=4), calls=5)[-1]  # type: ignore[arg-type]
    own = pick(measure_reach(case), "z", "z")
    random = watching(dataclasses.replace(case, rule=fresh_rule(rule), meta_state=rule.init_meta_state(case.params)), 5)[-1]
    other = pick(measure_reach(random), "z", "z")
    assert own.horizon > 1.5 and float(own.mean[2]) > 10.0 * float(other.mean[2])


def test_steps_that_do_not_count_are_left_out(make_inputs: MakeInputs) -> None:
    case = own_rewards_case(make_inputs, T=3, B=1)
    mask = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    case = dataclasses.replace(case).with_inputs(is_terminal=torch.zeros(3, 1, dtype=torch.bool), loss_mask=mask)
    policy = case.inputs.agent_out["logits"][0, 0].softmax(-1)
    reach = pick(measure_reach(case), "reward", "policy")
    torch.testing.assert_close(reach.mean[0], 1.0 - policy[case.inputs.actions[0, 0]])
