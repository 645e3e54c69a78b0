"""Actor-critic as a rule: its loss by hand, its targets from V-trace, and what is normalised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from disco_torch.rules import (
    ActorCritic,
    ActorCriticConfig,
    ActorCriticHyperParams,
    entropy,
)
from disco_torch.types import Params, Targets, UpdateRuleInputs, tree_map
from disco_torch.values import estimate_values, importance_weights

A = 4
PARAMS: Params = {"w": torch.zeros(1, dtype=torch.float64)}


def unused(*_: object) -> None:
    raise AssertionError("actor-critic keeps no slow copy of the agent to run")


@pytest.fixture(params=[1, 31], ids=["scalar", "categorical"])
def rule(request: pytest.FixtureRequest) -> ActorCritic:
    return ActorCritic(ActorCriticConfig(num_bins=request.param, max_abs_value=10.0))


@pytest.fixture
def inputs(rule: ActorCritic, make_inputs: Callable[..., UpdateRuleInputs]) -> UpdateRuleInputs:
    return dataclasses.replace(make_inputs(rule.outputs(A)), extra_from_rule=None)


def unroll(rule: ActorCritic, inputs: UpdateRuleInputs, hyper: dict[str, float] | None = None) -> Targets:
    return rule.unroll_meta_net(inputs, PARAMS, rule.init_meta_state(PARAMS), unused, hyper)[0]


def test_it_asks_for_logits_and_a_value() -> None:
    spec = ActorCritic().outputs(7)
    assert dict(spec.flat) == {"logits": 7, "v": 601} and not spec.per_action


def test_targets_are_vtrace_estimates(rule: ActorCritic, inputs: UpdateRuleInputs) -> None:
    hyper = {"discount_factor": 0.9, "vtrace_lambda": 0.7}
    targets = unroll(rule, inputs, hyper)
    logits = inputs.agent_out["logits"]
    outs = estimate_values(
        rule.encoding.to_scalar(inputs.agent_out["v"]),
        inputs.rewards,
        0.9 * (~inputs.is_terminal),
        importance_weights(logits[:-1], inputs.behaviour_logits()[:-1], inputs.actions[:-1]),
        0.7,
    )
    for name, want in {
        "raw_advs": outs.adv,
        "value_target": outs.value_target,
        "values": outs.value,
        "tds": outs.td,
    }.items():
        assert want is not None
        torch.testing.assert_close(targets[name], want)


def by_hand(rule: ActorCritic, inputs: UpdateRuleInputs, advs: Tensor, tds: Tensor, costs: ActorCriticHyperParams) -> Tensor:
    """The loss of every step with loops instead of tensors."""
    logits, v = inputs.agent_out["logits"], inputs.agent_out["v"]
    loss = torch.zeros_like(inputs.rewards)
    for t in range(loss.shape[0]):
        for b in range(loss.shape[1]):
            log_pi = torch.log_softmax(logits[t, b], -1)
            bonus = -sum(log_p.exp() * log_p for log_p in log_pi)
            target = rule.encoding.to_scalar(v[t, b]) + tds[t, b]
            value_loss = rule.encoding.loss_from_target(v[t, b], target)
            pg_loss = -log_pi[inputs.actions[t, b]] * advs[t, b]
            loss[t, b] = costs.pg_cost * pg_loss + costs.value_cost * value_loss - costs.entropy_cost * bonus
    return loss


@pytest.mark.parametrize("costs", [ActorCriticHyperParams(), ActorCriticHyperParams(0.9, 0.5, 0.3, 2.0, 0.7)])
def test_loss_by_hand(rule: ActorCritic, inputs: UpdateRuleInputs, costs: ActorCriticHyperParams) -> None:
    targets = unroll(rule, inputs)
    loss, logs = rule.agent_loss(inputs, targets, costs)
    torch.testing.assert_close(loss, by_hand(rule, inputs, targets["raw_advs"], targets["tds"], costs))
    torch.testing.assert_close(logs["entropy"], entropy(inputs.agent_out["logits"][:-1]).mean())
    no_meta, no_logs = rule.agent_loss_no_meta(inputs, targets, costs)
    assert (no_meta == 0).all() and no_meta.shape == loss.shape and not no_logs


def test_what_is_normalised_is_configured(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    rule = ActorCritic(ActorCriticConfig(num_bins=1, normalize_adv=True, normalize_td=True))
    inputs = make_inputs(rule.outputs(A))
    targets = unroll(rule, inputs)
    loss, _ = rule.agent_loss(inputs, targets)
    want = by_hand(rule, inputs, targets["normalized_advs"], targets["normalized_tds"], ActorCriticHyperParams())
    torch.testing.assert_close(loss, want)
    assert not torch.allclose(targets["normalized_advs"], targets["raw_advs"])


def test_advantages_may_keep_their_mean(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    centred, kept = (
        ActorCritic(ActorCriticConfig(num_bins=1, normalize_adv=True, center_adv=each)) for each in (True, False)
    )
    inputs = make_inputs(kept.outputs(A))
    targets, of_centred = unroll(kept, inputs), unroll(centred, inputs)["normalized_advs"]
    advs = targets["raw_advs"]
    deviation = torch.sqrt(advs.var(correction=0) + 1e-12) + 1e-6
    torch.testing.assert_close(targets["normalized_advs"], advs / deviation)
    torch.testing.assert_close(of_centred, (advs - advs.mean()) / deviation)
    assert (torch.sign(targets["normalized_advs"]) == torch.sign(advs)).all() and abs(float(advs.mean())) > 1e-3


def test_gradients_flow_to_the_agents_outputs_and_to_nothing_in_the_targets(
    rule: ActorCritic, inputs: UpdateRuleInputs
) -> None:
    out = tree_map(lambda x: x.clone().requires_grad_(), inputs.agent_out)
    inputs = dataclasses.replace(inputs, agent_out=out)
    joined, _ = rule.agent_loss(inputs, unroll(rule, inputs))
    apart, _ = rule.agent_loss(inputs, tree_map(lambda x: x.detach(), unroll(rule, inputs)))
    for got, want in zip(*(torch.autograd.grad(x.sum(), list(out.values())) for x in (joined, apart)), strict=True):
        torch.testing.assert_close(got, want)
        assert (want != 0).any()


def test_the_state_is_two_moving_averages(rule: ActorCritic, inputs: UpdateRuleInputs) -> None:
    start = rule.init_meta_state(PARAMS)
    targets, state = rule.unroll_meta_net(inputs, PARAMS, start, unused)
    want = rule.average.update_state(targets["raw_advs"], start.adv_ema_state)
    torch.testing.assert_close(state.adv_ema_state.moment1, want.moment1)
    want = rule.average.update_state(targets["tds"], start.td_ema_state)
    torch.testing.assert_close(state.td_ema_state.moment2, want.moment2)
    assert float(start.td_ema_state.decay_product) == 1.0


def test_bad_input(rule: ActorCritic, inputs: UpdateRuleInputs) -> None:
    with pytest.raises(ValueError, match=r"`hyper_params` has no 'entropy'; ActorCriticHyperParams knows \['discount_fac"):
        unroll(rule, inputs, {"entropy": 0.1})
    with pytest.raises(ValueError, match=r"`behaviour_agent_out` must hold the 'logits' of the policy that acted"):
        unroll(rule, dataclasses.replace(inputs, behaviour_agent_out=None))
    with pytest.raises(ValueError, match=r"`agent_out` must hold \['logits', 'v'\], got \['logits'\]; 'v' is missing"):
        unroll(rule, dataclasses.replace(inputs, agent_out={"logits": inputs.agent_out["logits"]}))
    with pytest.raises(ValueError, match=r"`rewards` must be floating point, got torch.int64; convert it"):
        unroll(rule, dataclasses.replace(inputs, rewards=inputs.rewards.long()))
    with pytest.raises(ValueError, match=r"`is_terminal` must be \[6, 3\], got \[6, 2\]; it must match `rewards`"):
        rule.agent_loss(dataclasses.replace(inputs, is_terminal=inputs.is_terminal[:, 1:]), unroll(rule, inputs))


def test_bad_configuration() -> None:
    with pytest.raises(ValueError, match=r"`normalize_td` needs a scalar value, `num_bins` = 1, got 601: a normalised TD"):
        ActorCriticConfig(normalize_td=True)
    with pytest.raises(ValueError, match=r"`discount_factor` must lie in \[0.0, 1.0\], got 1.1"):
        ActorCriticHyperParams(discount_factor=1.1)
    with pytest.raises(ValueError, match=r"`vtrace_lambda` must lie in \[0.0, 1.0\], got -1.0"):
        ActorCriticHyperParams(vtrace_lambda=-1.0)
