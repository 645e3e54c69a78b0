"""Policy improvement as a rule: the improved policy by hand, its identities, and the same inside of a discovered rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from disco_calls import A, agent_params, make_unroll
from disco_calls import unroll as unroll_disco

from disco_torch.rules import CMPO, CMPOConfig, CMPOHyperParams, DiscoUpdateRule, improved_logits
from disco_torch.rules.improvement import advantages_of_all
from disco_torch.types import AgentOutput, Targets, UpdateRuleInputs
from disco_torch.values import MovingAverage, estimate_q_values, expected_q, importance_weights

MakeInputs = Callable[..., UpdateRuleInputs]


@pytest.fixture
def rule() -> CMPO:
    return CMPO(CMPOConfig(num_bins=21))


@pytest.fixture
def inputs(rule: CMPO, make_inputs: MakeInputs) -> UpdateRuleInputs:
    return dataclasses.replace(make_inputs(rule.outputs(A)), extra_from_rule=None)


@pytest.fixture
def slow_out(rule: CMPO, make_inputs: MakeInputs) -> AgentOutput:
    return make_inputs(rule.outputs(A), seed=1).agent_out


def targets_of(rule: CMPO, inputs: UpdateRuleInputs, slow_out: AgentOutput, **hyper: float) -> Targets:
    params = agent_params()
    return rule.unroll_meta_net(inputs, params, rule.init_meta_state(params), make_unroll(slow_out), hyper)[0]


def random_rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_improved_policy_is_worth_more_under_the_advantages() -> None:
    logits, advantages = random_rows(0, 50, 3, A), random_rows(1, 50, 3, A)
    better = torch.softmax(improved_logits(logits, advantages, 2.0), -1)
    gain = ((better - torch.softmax(logits, -1)) * advantages.clamp(-1.0, 1.0)).sum(-1)
    assert bool((gain > 0).all())


def test_without_advantages_the_policy_stays() -> None:
    logits = random_rows(0, 4, 3, A)
    for advantages in (torch.zeros_like(logits), torch.full_like(logits, 0.7)):
        improved = torch.softmax(improved_logits(logits, advantages, 3.0), -1)
        torch.testing.assert_close(improved, torch.softmax(logits, -1))


def test_no_estimate_moves_a_log_ratio_further_than_twice_the_clipped_factor() -> None:
    logits, advantages = random_rows(0, 4, 3, A), 1e6 * random_rows(1, 4, 3, A)
    change = improved_logits(logits, advantages, 3.0, clip=0.5) - torch.log_softmax(logits, -1)
    assert float(change.max() - change.min()) <= 2 * 3.0 * 0.5 + 1e-12


def test_the_taken_action_has_the_observed_advantage() -> None:
    predicted, observed = random_rows(0, 2, 3, A), random_rows(1, 2, 3)
    actions = torch.tensor([[0, 1, 3], [2, 2, 0]])
    both = advantages_of_all(predicted, observed, actions)
    for t in range(2):
        for b in range(3):
            for a in range(A):
                taken = a == int(actions[t, b])
                assert float(both[t, b, a]) == float(observed[t, b] if taken else predicted[t, b, a])


def test_targets_by_hand(rule: CMPO, inputs: UpdateRuleInputs, slow_out: AgentOutput) -> None:
    targets = targets_of(rule, inputs, slow_out, improvement=2.5, clip=0.8, td_lambda=0.7, discount_factor=0.9)
    logits, actions = inputs.agent_out["logits"], inputs.actions[:-1]
    q, slow_q = rule.encoding.to_scalar(inputs.agent_out["q"]), rule.encoding.to_scalar(slow_out["q"])
    outs = estimate_q_values(
        expected_q(logits, q),
        q,
        actions,
        inputs.rewards,
        0.9 * (~inputs.is_terminal),
        importance_weights(logits[:-1], inputs.behaviour_logits()[:-1], actions),
        0.7,
        target_values=expected_q(logits, slow_q),
        target_q_values=slow_q,
    )
    assert outs.adv is not None and outs.qv_adv is not None
    deviation = outs.adv.var(correction=0).sqrt()
    advantages = advantages_of_all(outs.qv_adv[:-1], outs.adv, actions) / deviation
    want = torch.softmax(torch.log_softmax(slow_out["logits"][:-1], -1) + 2.5 * advantages.clamp(-0.8, 0.8), -1)
    torch.testing.assert_close(torch.softmax(targets["pi"], -1), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(targets["q_td"], outs.q_td)


def test_gradients_reach_the_policy_and_the_taken_q_alone(
    rule: CMPO, inputs: UpdateRuleInputs, slow_out: AgentOutput
) -> None:
    targets = targets_of(rule, inputs, slow_out)
    out = {name: x.clone().requires_grad_() for name, x in inputs.agent_out.items()}
    loss, _ = rule.agent_loss(dataclasses.replace(inputs, agent_out=out), targets)
    grads = dict(zip(out, torch.autograd.grad(loss.sum(), list(out.values())), strict=True))
    log_target = torch.log_softmax(targets["pi"], -1)
    want = torch.softmax(inputs.agent_out["logits"][:-1], -1) - log_target.exp()
    torch.testing.assert_close(grads["logits"][:-1], want)
    is_taken = torch.nn.functional.one_hot(inputs.actions[:-1].long(), A).bool()
    assert not bool(grads["logits"][-1].any()) and not bool(grads["q"][-1].any())
    assert not bool(grads["q"][:-1][~is_taken].any()) and bool(grads["q"][:-1][is_taken].any())


def test_the_slow_copy_follows(rule: CMPO, inputs: UpdateRuleInputs, slow_out: AgentOutput) -> None:
    state = rule.init_meta_state(agent_params(1.0))
    _, after = rule.unroll_meta_net(inputs, agent_params(2.0), state, make_unroll(slow_out), {"target_params_coeff": 0.75})
    assert float(after.target_params["scale"]) == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"improvement": 0.0}, "`improvement` must be greater than 0, got 0.0"),
        ({"clip": -1.0}, "`clip` must be greater than 0, got -1.0"),
        ({"td_lambda": 1.5}, "td_lambda"),
    ],
)
def test_hyper_params_out_of_range_are_refused(hyper: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        CMPOHyperParams(**hyper)


def test_a_discovered_rule_can_correct_the_improvement(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    """Its policy target is the meta-network's plus the improved policy: with a correction of 0 it is that policy."""
    inputs = dataclasses.replace(make_inputs(tiny_rule.outputs(A)), extra_from_rule=None)
    target_out = make_inputs(tiny_rule.outputs(A), seed=1).agent_out
    plain, state = unroll_disco(tiny_rule, inputs, target_out)
    tiny_rule.config = dataclasses.replace(tiny_rule.config, improvement=3.0)
    corrected, _ = unroll_disco(tiny_rule, inputs, target_out)
    advantages = advantages_of_all(plain["qv_adv"][:-1], plain["adv"], inputs.actions[:-1])
    scaled = MovingAverage().normalize(advantages, state.adv_ema_state, subtract_mean=False)
    want = plain["pi"] + improved_logits(target_out["logits"][:-1], scaled, 3.0)
    torch.testing.assert_close(corrected["pi"], want, rtol=1e-12, atol=1e-12)
    for name in ("y", "z", "q_td"):
        assert torch.equal(corrected[name], plain[name])


def test_a_negative_improvement_is_refused(tiny_rule: DiscoUpdateRule) -> None:
    with pytest.raises(ValueError, match="`improvement` must be at least 0, got -1"):
        dataclasses.replace(tiny_rule.config, improvement=-1.0)
