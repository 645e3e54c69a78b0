"""Policy gradient as a rule: its loss by hand and the advantages that it asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from disco_torch.rules import PolicyGradient, PolicyGradientHyperParams
from disco_torch.types import Targets, UpdateRuleInputs, ValueOuts

RULE = PolicyGradient()


@pytest.fixture
def inputs(make_inputs: Callable[..., UpdateRuleInputs]) -> UpdateRuleInputs:
    adv = torch.linspace(-1.0, 2.0, 18, dtype=torch.float64).reshape(6, 3)
    value_out = ValueOuts(adv=adv, normalized_adv=3.0 * adv)
    return dataclasses.replace(make_inputs(RULE.outputs(4)), extra_from_rule=None, value_out=value_out)


def unroll(inputs: UpdateRuleInputs, hyper: Any = None) -> Targets:
    return RULE.unroll_meta_net(inputs, {}, RULE.init_meta_state({}), lambda *_: None, hyper)[0]


def test_it_asks_for_logits_alone_and_keeps_no_state(inputs: UpdateRuleInputs) -> None:
    assert dict(RULE.outputs(5).flat) == {"logits": 5} and not RULE.outputs(5).per_action
    assert RULE.unroll_meta_net(inputs, {}, {}, lambda *_: None)[1] == {}


@pytest.mark.parametrize("normalize", [True, False])
def test_loss_by_hand(inputs: UpdateRuleInputs, normalize: bool) -> None:
    hyper = PolicyGradientHyperParams(pg_cost=2.0, entropy_cost=0.3, normalize_adv=normalize)
    assert inputs.value_out is not None and inputs.value_out.adv is not None
    advs = inputs.value_out.adv * (3.0 if normalize else 1.0)
    loss, logs = RULE.agent_loss(inputs, unroll(inputs, hyper), hyper)
    log_pi = torch.log_softmax(inputs.agent_out["logits"][:-1], -1)
    for t in range(6):
        for b in range(3):
            bonus = -sum(log_p.exp() * log_p for log_p in log_pi[t, b])
            want = -2.0 * log_pi[t, b, inputs.actions[t, b]] * advs[t, b] - 0.3 * bonus
            torch.testing.assert_close(loss[t, b], want)
    torch.testing.assert_close(logs["pg_advs"], advs.mean())
    assert (RULE.agent_loss_no_meta(inputs, {})[0] == 0).all()


def test_gradients_flow_to_the_logits_alone(inputs: UpdateRuleInputs) -> None:
    logits = inputs.agent_out["logits"].requires_grad_()
    targets = {"pi": unroll(inputs)["pi"].clone().requires_grad_()}
    loss, _ = RULE.agent_loss(inputs, targets)
    to_logits, to_advs = torch.autograd.grad(loss.sum(), (logits, targets["pi"]), allow_unused=True)
    assert (to_logits[:-1] != 0).all() and (to_logits[-1] == 0).all() and to_advs is None


def test_bad_input(inputs: UpdateRuleInputs) -> None:
    with pytest.raises(ValueError, match=r"`value_out` must hold the advantages of a value function, got None; see Value"):
        unroll(dataclasses.replace(inputs, value_out=None))
    with pytest.raises(ValueError, match=r"`hyper_params` has no 'cost'; PolicyGradientHyperParams knows \['pg_cost'"):
        unroll(inputs, {"cost": 1.0})
    with pytest.raises(ValueError, match=r"`actions` must lie in 0 \.\. 3, got \d at \[0, 0\]"):
        unroll(dataclasses.replace(inputs, actions=inputs.actions + 4))
    with pytest.raises(ValueError, match=r"`agent_out` must hold 'logits', got \[\]"):
        unroll(dataclasses.replace(inputs, agent_out={}))
    with pytest.raises(ValueError, match=r"`advantages` must be \[6, 3\], got \[5, 3\]; one advantage for each row"):
        RULE.agent_loss(inputs, {"pi": unroll(inputs)["pi"][1:]})


def test_estimates_without_the_advantages_that_are_asked_for(inputs: UpdateRuleInputs) -> None:
    assert inputs.value_out is not None
    value_out = ValueOuts(adv=inputs.value_out.adv)
    with pytest.raises(ValueError, match="normalized_adv"):
        unroll(dataclasses.replace(inputs, value_out=value_out))
