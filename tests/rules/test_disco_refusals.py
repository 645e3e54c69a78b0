"""What the discovered rule refuses: hyper-parameters, configurations, inputs and targets that do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from disco_calls import A, unroll
from torch import Tensor

from disco_torch.checks import checking
from disco_torch.rules import (
    DiscoConfig,
    DiscoHyperParams,
    DiscoUpdateRule,
    resolve_hyper_params,
)
from disco_torch.types import AgentOutput, UpdateRuleInputs


def test_hyper_parameters_may_be_a_dict_a_dataclass_or_none() -> None:
    assert resolve_hyper_params(DiscoHyperParams, None) == DiscoHyperParams()
    assert resolve_hyper_params(DiscoHyperParams, {"pi_cost": 2.0}) == DiscoHyperParams(pi_cost=2.0)
    given = DiscoHyperParams(y_cost=0.0)
    assert resolve_hyper_params(DiscoHyperParams, given) is given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pi_costs": 1.0}, r"`hyper_params` has no 'pi_costs'; DiscoHyperParams knows \['pi_cost', .*'discount_factor'\]"),
        (0.5, r"`hyper_params` must be a DiscoHyperParams or a dict, got float"),
        ({"target_params_coeff": 1.5}, r"`target_params_coeff` must lie in \[0.0, 1.0\], got 1.5"),
        ({"value_fn_td_lambda": -0.1}, r"`value_fn_td_lambda` must lie in \[0.0, 1.0\], got -0.1"),
        ({"discount_factor": 2.0}, r"`discount_factor` must lie in \[0.0, 1.0\], got 2.0"),
    ],
)
def test_bad_hyper_parameters(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput, given: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        unroll(tiny_rule, inputs, target_out, hyper_params=given)
    for loss in (tiny_rule.agent_loss, tiny_rule.agent_loss_no_meta):
        with pytest.raises(ValueError, match=message):
            loss(inputs, {}, given)


def test_bad_configuration() -> None:
    with pytest.raises(ValueError, match=r"`value_discount` must lie in \[0.0, 1.0\], got 1.1"):
        DiscoConfig(value_discount=1.1)


def nan_at(x: Tensor, *place: int) -> Tensor:
    x = x.clone()
    x[place] = float("nan")
    return x


BAD_INPUTS: dict[str, tuple[Callable[[UpdateRuleInputs], dict[str, Any]], str]] = {
    "rank": (lambda i: {"rewards": i.rewards[0]}, r"`rewards` must be \[T, B\], of 2 dimensions, got shape \[3\]; time"),
    "integer rewards": (lambda i: {"rewards": i.rewards.long()}, r"`rewards` must be floating point.*`\.float\(\)`"),
    "empty batch": (lambda i: {"rewards": i.rewards[:, :0]}, r"`rewards` is empty, shape \[6, 0\]; at least one step"),
    "terminals": (lambda i: {"is_terminal": i.is_terminal[1:]}, r"`is_terminal` must be \[6, 3\], got \[5, 3\]; it must"),
    "actions": (lambda i: {"actions": i.actions[:-1]}, r"`actions` must be \[7, 3\], got \[6, 3\]; it needs one row more"),
    "float actions": (lambda i: {"actions": i.actions.double()}, r"`actions` must be integers, got .*`\.long\(\)`"),
    "range": (lambda i: {"actions": i.actions + A}, r"`actions` must lie in 0 \.\. 3, got \d at \[0, 0\]; the number of"),
    "rows": (
        lambda i: {"agent_out": i.agent_out | {"y": i.agent_out["y"][:-1]}},
        r"`agent_out\['y'\]` must be \[7, 3, \.\.\.\], got \[6, 3, 24\]; outputs need one row more than `rewards`",
    ),
    "no logits": (lambda i: {"agent_out": {"y": i.agent_out["y"]}}, r"`agent_out` must hold 'logits', got \['y'\]"),
    "behaviour": (
        lambda i: {"behaviour_agent_out": {"logits": i.agent_out["logits"][..., 1:]}},
        r"`behaviour_agent_out\['logits'\]` must be \[7, 3, 4\], got \[7, 3, 3\]; it must match `agent_out\['logits'\]`",
    ),
    "NaN rewards": (
        lambda i: {"rewards": nan_at(i.rewards, 2, 1)},
        r"`rewards` must be finite, got nan at \[2, 1\] \(1 of 18",
    ),
    "NaN outputs": (
        lambda i: {"agent_out": i.agent_out | {"z": nan_at(i.agent_out["z"], 1, 2, 3, 4)}},
        r"`agent_out\['z'\]` must be finite, got nan at \[1, 2, 3, 4\] .*; check the environment or the network",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs(tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput, name: str) -> None:
    change, message = BAD_INPUTS[name]
    bad = dataclasses.replace(inputs, **change(inputs))
    targets, _ = unroll(tiny_rule, inputs, target_out)
    with checking():
        with pytest.raises(ValueError, match=message):
            unroll(tiny_rule, bad, target_out)
        with pytest.raises(ValueError, match=message):
            tiny_rule.agent_loss(bad, targets)


def test_missing_outputs(tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput) -> None:
    out = {name: x for name, x in inputs.agent_out.items() if name != "aux_pi"}
    with pytest.raises(ValueError, match=r"`agent_out` must hold \['aux_pi', .*'z'\], got .*; 'aux_pi' is missing"):
        unroll(tiny_rule, dataclasses.replace(inputs, agent_out=out), target_out)
    out = inputs.agent_out | {"q": inputs.agent_out["q"][..., 1:]}
    with pytest.raises(
        ValueError, match=r"`agent_out\['q'\]` must be \[7, 3, 4, 31\], got \[7, 3, 4, 30\]; see `rule.outputs"
    ):
        unroll(tiny_rule, dataclasses.replace(inputs, agent_out=out), target_out)


def test_missing_behaviour_logits(tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput) -> None:
    with pytest.raises(ValueError, match=r"`behaviour_agent_out` must hold the 'logits' of the policy that acted, got none"):
        unroll(tiny_rule, dataclasses.replace(inputs, behaviour_agent_out=None), target_out)


@pytest.mark.parametrize("missing", ["z", "pi"])
def test_losses_with_missing_outputs_or_targets(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput, missing: str
) -> None:
    targets, _ = unroll(tiny_rule, inputs, target_out)
    (targets if missing == "pi" else inputs.agent_out).pop(missing)
    with pytest.raises(ValueError, match=f"{missing!r} is missing"):
        tiny_rule.agent_loss(inputs, targets)


@pytest.mark.parametrize("name", ["is_truncated", "resets"])
def test_masks_of_another_length(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput, name: str
) -> None:
    bad = dataclasses.replace(inputs, **{name: torch.zeros(5, 3, dtype=torch.bool)})
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        unroll(tiny_rule, bad, target_out)
