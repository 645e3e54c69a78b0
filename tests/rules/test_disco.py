"""The discovered rule: the reference's numbers, how it is called, and where gradients flow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disco_calls import A, agent_params, make_unroll, unroll
from torch import Tensor

from disco_torch.agents import Agent, AgentConfig
from disco_torch.data import rule_inputs
from disco_torch.rules import (
    DiscoConfig,
    DiscoHyperParams,
    DiscoState,
    DiscoUpdateRule,
    categorical_kl,
)
from disco_torch.types import (
    AgentOutput,
    Params,
    Rollout,
    UpdateRuleInputs,
    tree_map,
)
from disco_torch.values import expected_q, select_action
from disco_torch.weights.haiku import agent_layers, from_haiku, rule_layers

MakeInputs = Callable[..., UpdateRuleInputs]


def group(data: Any, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): data[name] for name in data.files if name.startswith(prefix)}


def test_three_calls_against_the_reference(golden: Path, golden_config: dict[str, Any], tiny_config: DiscoConfig) -> None:
    data = np.load(golden / "rule_tiny.npz")
    rule = DiscoUpdateRule(tiny_config).double()
    rule.load_state_dict(from_haiku(rule, rule_layers(rule), group(data, "eta/")))
    sizes = golden_config["agent"]
    config = AgentConfig(sizes["dense"], sizes["lstm_size"], sizes["head_mlp_hiddens"])
    agent = Agent(torch.zeros(sizes["observation_size"]), golden_config["A"], rule.outputs(A), config).double()
    params = from_haiku(agent, agent_layers(agent), group(data, "theta/"))
    state = rule.init_meta_state(params)
    state = dataclasses.replace(state, target_params={name: 0.95 * x for name, x in params.items()})
    hyper = golden_config["hyper_params"]
    for call in range(3):
        arrays = group(data, f"call{call}_in/")
        rollout = Rollout(**{f.name: torch.as_tensor(arrays[f.name]) for f in dataclasses.fields(Rollout)[:5]})
        inputs = rule_inputs(rollout, agent.unroll(params, rollout.observations)[0])
        with torch.no_grad():
            targets, state = rule.unroll_meta_net(inputs, params, state, agent.unroll, hyper)
            loss, logs = rule.agent_loss(inputs, targets, hyper)
            loss_no_meta, logs_no_meta = rule.agent_loss_no_meta(inputs, targets, hyper)
        got = {**targets, "loss": loss, "loss_no_meta": loss_no_meta, **rule_state(state)}
        got |= {f"log/{name}": x for name, x in (logs | logs_no_meta).items()}
        wanted = group(data, f"call{call}_out/")
        assert len(wanted) > 30
        for name, want in wanted.items():
            np.testing.assert_allclose(got[name].numpy(), want, rtol=1e-9, atol=1e-9, err_msg=f"call {call}: {name}")


def rule_state(state: DiscoState) -> dict[str, Tensor]:
    adv, td, rnn = state.adv_ema_state, state.td_ema_state, state.rnn_state
    moments = {"adv_m1": adv.moment1, "adv_m2": adv.moment2, "td_m1": td.moment1, "td_m2": td.moment2}
    return moments | {"decay": adv.decay_product, "rnn_h": rnn.hidden, "rnn_c": rnn.cell}


def test_calls_of_the_quick_start(make_inputs: MakeInputs) -> None:
    rule = DiscoUpdateRule().double()
    inputs = make_inputs(rule.outputs(3), T=4, B=2, terminals=())
    state = rule.meta_net.initial_meta_rnn_state()
    with torch.no_grad():
        meta_out, state = rule.meta_net(inputs, state)
    shapes = [tuple(meta_out[name].shape) for name in ("pi", "y", "z")]
    assert shapes == [(4, 2, 3), (4, 2, 600), (4, 2, 600)] and state.hidden.shape == (128,)
    hyper_params = {"pi_cost": 1.0, "value_cost": 0.2, "target_params_coeff": 0.9, "value_fn_td_lambda": 0.95}
    meta_state = rule.init_meta_state(agent_params())
    unroll_fn = make_unroll(inputs.agent_out)
    meta_out, meta_state = rule.unroll_meta_net(inputs, agent_params(), meta_state, unroll_fn, hyper_params)
    loss, logs = rule.agent_loss(inputs, meta_out, hyper_params)
    value_loss, value_logs = rule.agent_loss_no_meta(inputs, meta_out, hyper_params)
    assert loss.shape == value_loss.shape == (4, 2)
    assert torch.isfinite(loss).all() and {"pi_loss", "entropy"} <= logs.keys() and "q_loss" in value_logs


def test_one_call_for_targets_and_losses(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    targets, state = unroll(tiny_rule, inputs, target_out)
    loss = tiny_rule.agent_loss(inputs, targets)[0] + tiny_rule.agent_loss_no_meta(inputs, targets)[0]
    params = agent_params()
    together, after, logs = tiny_rule(inputs, params, tiny_rule.init_meta_state(params), make_unroll(target_out))
    torch.testing.assert_close(together, loss)
    torch.testing.assert_close(after.rnn_state.hidden, state.rnn_state.hidden)
    assert {"pi_loss", "q_loss"} <= logs.keys()


def test_an_unroll_function_may_return_a_state_as_well(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    seen: list[Tensor] = []

    def with_state(params: Params, observations: Tensor, should_reset: Tensor) -> tuple[AgentOutput, None]:
        assert observations is inputs.observations
        seen.append(should_reset)
        return {name: params["scale"] * x for name, x in target_out.items()}, None

    state = tiny_rule.init_meta_state(agent_params())
    targets, _ = tiny_rule.unroll_meta_net(inputs, agent_params(), state, with_state)
    want, _ = unroll(tiny_rule, inputs, target_out)
    torch.testing.assert_close(targets["pi"], want["pi"])
    assert torch.equal(seen[0], inputs.should_reset_mask_fwd)


def test_losses_are_0_where_the_agent_equals_its_targets(tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs) -> None:
    out = dict(inputs.agent_out)
    # Every action's prediction of the next policy is the next policy.
    out["aux_pi"] = torch.cat([out["logits"][1:], out["logits"][:1]]).unsqueeze(2).expand(-1, -1, A, -1)
    inputs = dataclasses.replace(inputs, agent_out=out)
    z = select_action(out["z"][:-1], inputs.actions[:-1])
    targets = {"pi": out["logits"][:-1] + 3.0, "y": out["y"][:-1], "z": z}
    loss, _ = tiny_rule.agent_loss(inputs, targets)
    torch.testing.assert_close(loss, torch.zeros_like(loss), rtol=0, atol=1e-12)
    for name in targets:
        other = targets | {name: targets[name] + torch.linspace(0.0, 1.0, targets[name].shape[-1])}
        assert (tiny_rule.agent_loss(inputs, other)[0] > 1e-4).all()


def test_the_loss_is_the_weighted_sum_of_its_parts(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    targets, _ = unroll(tiny_rule, inputs, target_out)
    out, actions = inputs.agent_out, inputs.actions[:-1]
    parts = {
        "pi_cost": categorical_kl(targets["pi"], out["logits"][:-1]),
        "y_cost": categorical_kl(targets["y"], out["y"][:-1]),
        "z_cost": categorical_kl(targets["z"], select_action(out["z"][:-1], actions)),
        "aux_policy_cost": categorical_kl(out["logits"][1:], select_action(out["aux_pi"][:-1], actions))
        * (~inputs.is_terminal),
    }
    costs = dict(zip(parts, (0.5, 2.0, 3.0, 0.25), strict=True))
    want = sum(cost * parts[name] for name, cost in costs.items())
    torch.testing.assert_close(tiny_rule.agent_loss(inputs, targets, costs)[0], want)
    for name in parts:
        alone = dict.fromkeys(parts, 0.0) | {name: 1.0}
        torch.testing.assert_close(tiny_rule.agent_loss(inputs, targets, DiscoHyperParams(**alone))[0], parts[name])


def test_the_next_policy_is_not_predicted_across_an_end(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    targets, _ = unroll(tiny_rule, inputs, target_out)
    only_aux = {"pi_cost": 0.0, "y_cost": 0.0, "z_cost": 0.0}
    loss, _ = tiny_rule.agent_loss(inputs, targets, only_aux)
    assert torch.equal(loss == 0, inputs.is_terminal) and inputs.is_terminal.any()


@pytest.mark.parametrize("backprop", [False, True])
def test_targets_are_constants_unless_asked(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput, backprop: bool
) -> None:
    targets, _ = unroll(tiny_rule, inputs, target_out)
    targets = {name: x.detach().requires_grad_() if isinstance(x, Tensor) else x for name, x in targets.items()}
    loss = tiny_rule.agent_loss(inputs, targets, backprop=backprop)[0].sum()
    assert loss.requires_grad == backprop
    if backprop:
        gradients = torch.autograd.grad(loss, [targets[name] for name in ("pi", "y", "z")])
        assert all((gradient != 0).any() for gradient in gradients)
    assert not tiny_rule.agent_loss_no_meta(inputs, targets)[0].requires_grad


def test_gradients_of_the_losses_flow_to_what_the_docstrings_say(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    with torch.no_grad():
        targets, _ = unroll(tiny_rule, inputs, target_out)
    out = tree_map(lambda x: x.clone().requires_grad_(), inputs.agent_out)
    inputs = dataclasses.replace(inputs, agent_out=out)
    taken = torch.nn.functional.one_hot(inputs.actions, A).bool()

    def gradients(loss: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(loss.sum(), list(out.values()), allow_unused=True)
        return {name: torch.zeros_like(out[name]) if g is None else g for name, g in zip(out, found, strict=True)}

    of_loss = gradients(tiny_rule.agent_loss(inputs, targets)[0])
    of_value = gradients(tiny_rule.agent_loss_no_meta(inputs, targets)[0])
    for name, gradient in of_loss.items():
        assert (gradient != 0).any() == (name != "q"), name
        assert (gradient[-1] == 0).all(), name  # the last row bootstraps and does not learn
    for name, gradient in of_value.items():
        assert (gradient != 0).any() == (name == "q"), name
    for gradient in (of_loss["z"], of_loss["aux_pi"], of_value["q"]):
        assert (gradient[~taken] == 0).all()
    pi = torch.softmax(out["logits"][:-1], -1) - torch.softmax(targets["pi"], -1)
    torch.testing.assert_close(of_loss["logits"][:-1], pi.detach())  # nothing from being predicted by the step before


def test_outputs_of_the_taken_actions_may_be_given_apart(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    targets, _ = unroll(tiny_rule, inputs, target_out)
    taken = {name: select_action(inputs.agent_out[name][:-1], inputs.actions[:-1]) for name in ("z", "aux_pi", "q")}
    for loss in (tiny_rule.agent_loss, tiny_rule.agent_loss_no_meta):
        want, _ = loss(inputs, targets)
        torch.testing.assert_close(loss(dataclasses.replace(inputs, taken_out=taken), targets)[0], want)
        other = dataclasses.replace(inputs, taken_out={name: x.square() for name, x in taken.items()})
        assert not torch.allclose(loss(other, targets)[0], want)


def test_the_value_loss_pulls_towards_the_retrace_target(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    targets, _ = unroll(tiny_rule, inputs, target_out)
    taken = select_action(inputs.agent_out["q"][:-1], inputs.actions[:-1])
    want = tiny_rule.encoding.loss_from_target(taken, targets["q_target"])
    got, _ = tiny_rule.agent_loss_no_meta(inputs, targets, {"value_cost": 0.5})
    torch.testing.assert_close(got, 0.5 * want)


def test_retrace_bootstraps_from_the_target_network_under_the_online_policy(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    targets, _ = unroll(tiny_rule, inputs, target_out, hyper_params={"value_fn_td_lambda": 0.0})
    value = expected_q(inputs.agent_out["logits"], tiny_rule.encoding.to_scalar(target_out["q"]))
    gamma = tiny_rule.config.value_discount
    one_step = inputs.rewards + gamma * inputs.continues() * value[1:]
    torch.testing.assert_close(targets["q_target"], one_step)
    torch.testing.assert_close(targets["adv"], one_step - value[:-1])
    torch.testing.assert_close(targets["q_value"], tiny_rule.encoding.to_scalar(inputs.agent_out["q"]))


def test_a_cut_step_bootstraps_and_nothing_flows_across(
    tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs, target_out: AgentOutput
) -> None:
    inputs = dataclasses.replace(make_inputs(tiny_rule.outputs(A), terminals=()), extra_from_rule=None)
    cut = torch.zeros_like(inputs.is_terminal)
    cut[2] = True
    inputs = dataclasses.replace(inputs, is_truncated=cut)
    rewards = inputs.rewards.clone()
    rewards[3:] += 10.0
    before, _ = unroll(tiny_rule, inputs, target_out)
    after, _ = unroll(tiny_rule, dataclasses.replace(inputs, rewards=rewards), target_out)
    torch.testing.assert_close(after["q_target"][:3], before["q_target"][:3])
    assert (after["q_target"][3:] != before["q_target"][3:]).all()
    short = dataclasses.replace(
        inputs,
        actions=inputs.actions[:4],
        rewards=inputs.rewards[:3],
        is_terminal=inputs.is_terminal[:3],
        is_truncated=None,
        agent_out={name: x[:4] for name, x in inputs.agent_out.items()},
        behaviour_agent_out={"logits": inputs.behaviour_logits()[:4]},
    )
    alone, _ = unroll(tiny_rule, short, {name: x[:4] for name, x in target_out.items()})
    torch.testing.assert_close(alone["q_target"], before["q_target"][:3])


def test_target_parameters_take_in_the_agents_from_before_the_update(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput
) -> None:
    state = tiny_rule.init_meta_state(agent_params(1.0))
    assert float(state.target_params["scale"]) == 1.0
    seen: list[float] = []

    def unroll_fn(params: Params, observations: Tensor, should_reset: Tensor) -> AgentOutput:
        seen.append(float(params["scale"]))
        return target_out

    now = agent_params(3.0)
    _, state = tiny_rule.unroll_meta_net(inputs, now, state, unroll_fn, {"target_params_coeff": 0.75})
    assert seen == [1.0]  # the targets came from the average before
    assert float(state.target_params["scale"]) == pytest.approx(0.75 * 1.0 + 0.25 * 3.0)
    assert float(now["scale"]) == 3.0


def test_initial_target_parameters_are_copies(tiny_rule: DiscoUpdateRule) -> None:
    params = agent_params()
    state = tiny_rule.init_meta_state(params)
    params["scale"].add_(1.0)
    assert float(state.target_params["scale"]) == 1.0


@pytest.mark.parametrize("prefix", ["", "meta_net."])
def test_given_rule_parameters_replace_the_modules(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput, prefix: str
) -> None:
    rule_params = {prefix + name: 0.5 * x.detach() for name, x in tiny_rule.meta_net.named_parameters()}
    got, _ = unroll(tiny_rule, inputs, target_out, rule_params=rule_params)
    own, _ = unroll(tiny_rule, inputs, target_out)
    assert not torch.allclose(got["pi"], own["pi"])
    tiny_rule.load_state_dict({name: 0.5 * x for name, x in tiny_rule.state_dict().items()})
    torch.testing.assert_close(got["pi"], unroll(tiny_rule, inputs, target_out)[0]["pi"])
