"""PPO as a rule: its advantages by identity and by hand, its clipped loss, and what the steps that do not count change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from disco_torch.rules import PPO, PPOHyperParams, clipped_surrogate_loss, entropy, policy_gradient_loss
from disco_torch.types import Targets, UpdateRuleInputs

A = 4
MakeInputs = Callable[..., UpdateRuleInputs]


def unused(*_: object) -> None:
    raise AssertionError("PPO keeps no slow copy of the agent to run")


@pytest.fixture
def inputs(make_inputs: MakeInputs) -> UpdateRuleInputs:
    """With steps that do not count: those after the two ends."""
    inputs = dataclasses.replace(make_inputs(PPO().outputs(A)), extra_from_rule=None)
    mask = torch.ones_like(inputs.rewards)
    mask[3, 0] = mask[5, 1] = 0.0
    return dataclasses.replace(inputs, loss_mask=mask)


def targets_of(inputs: UpdateRuleInputs, hyper: Any = None) -> Targets:
    targets, state = PPO().unroll_meta_net(inputs, {}, {}, unused, hyper)
    assert state == {}
    return targets


def ratio_of(inputs: UpdateRuleInputs, t: int, b: int) -> float:
    """pi(a) / mu(a) of a step."""
    pi, mu = (torch.softmax(x[t, b], -1) for x in (inputs.agent_out["logits"], inputs.behaviour_logits()))
    return float(pi[inputs.actions[t, b]] / mu[inputs.actions[t, b]])


def test_it_asks_for_logits_and_a_scalar_value() -> None:
    spec = PPO().outputs(7)
    assert dict(spec.flat) == {"logits": 7, "v": 1} and not spec.per_action


def test_with_lambda_1_on_policy_advantages_are_the_return_minus_the_value(inputs: UpdateRuleInputs) -> None:
    inputs = dataclasses.replace(inputs, behaviour_agent_out={"logits": inputs.agent_out["logits"]})
    targets = targets_of(inputs, {"gae_lambda": 1.0, "discount_factor": 0.9})
    values = inputs.agent_out["v"].squeeze(-1)
    returns, total = torch.zeros_like(inputs.rewards), values[-1]
    for t in reversed(range(returns.shape[0])):
        total = returns[t] = inputs.rewards[t] + 0.9 * (~inputs.is_terminal[t]) * total
    torch.testing.assert_close(targets["advs"], returns - values[:-1])
    torch.testing.assert_close(targets["value_target"], returns)


@pytest.mark.parametrize("cut", [False, True])
def test_advantages_by_hand(inputs: UpdateRuleInputs, cut: bool) -> None:
    truncated = torch.zeros_like(inputs.is_terminal)
    truncated[1, 2] = cut
    targets = targets_of(dataclasses.replace(inputs, is_truncated=truncated), PPOHyperParams(0.9, 0.7))
    values = inputs.agent_out["v"].squeeze(-1)
    T, B = inputs.rewards.shape
    for b in range(B):
        following = 0.0
        for t in reversed(range(T)):
            going = 0.0 if inputs.is_terminal[t, b] else 0.9
            delta = inputs.rewards[t, b] + going * values[t + 1, b] - values[t, b]  # a time limit bootstraps
            advantage = delta + going * 0.7 * (0.0 if truncated[t, b] else following)
            following = min(ratio_of(inputs, t, b), 1.0) * advantage
            torch.testing.assert_close(targets["advs"][t, b], advantage)
            torch.testing.assert_close(targets["value_target"][t, b], values[t, b] + following)
    assert (targets["advs"] != targets_of(inputs, PPOHyperParams(0.9, 0.7))["advs"]).any() == cut


def test_advantages_are_normalised_over_the_steps_that_count(inputs: UpdateRuleInputs) -> None:
    targets, mask = targets_of(inputs), inputs.loss_mask
    assert mask is not None
    counted = targets["normalized_advs"][mask > 0]
    torch.testing.assert_close(counted.mean(), torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(counted.std(correction=0), torch.ones((), dtype=torch.float64))
    everything = targets_of(dataclasses.replace(inputs, loss_mask=None))["normalized_advs"]
    torch.testing.assert_close(everything.std(correction=0), torch.ones((), dtype=torch.float64))
    assert not torch.allclose(everything[mask > 0], counted)


def test_advantages_that_are_little_but_noise_are_not_blown_up(inputs: UpdateRuleInputs) -> None:
    mask = inputs.loss_mask
    assert mask is not None
    advs = targets_of(inputs)["advs"]
    deviation = float(advs[mask > 0].std(correction=0))
    for least in (0.5 * deviation, 2.0 * deviation):
        counted = targets_of(inputs, {"least_deviation": least})["normalized_advs"][mask > 0]
        torch.testing.assert_close(float(counted.std(correction=0)), min(1.0, deviation / least))
        torch.testing.assert_close(counted.mean(), torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("masked", [True, False])
def test_advantages_are_normalised_over_the_steps_of_all_processes(inputs: UpdateRuleInputs, masked: bool) -> None:
    inputs = inputs if masked else dataclasses.replace(inputs, loss_mask=None)
    plain, mask = targets_of(inputs), inputs.loss_mask
    counts = torch.ones_like(inputs.rewards) if mask is None else mask
    calls: list[Tensor] = []

    def mean(sums: Tensor) -> Tensor:
        """With a second process that has three steps, of advantages 1, 2 and 6."""
        theirs = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
        if calls:
            theirs = torch.square(theirs - (calls[0][0] + 9.0) / (calls[0][1] + 3.0))
        calls.append(sums)
        return (sums + torch.stack([theirs.sum(), torch.tensor(3.0, dtype=torch.float64)])) / 2.0

    split = PPO().unroll_meta_net(inputs, {}, {}, unused, mean_across_processes=mean)[0]
    everything = torch.cat([plain["advs"][counts > 0], torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)])
    wanted = (plain["advs"] - everything.mean()) / (everything.std(correction=0) + 1e-8)
    torch.testing.assert_close(split["normalized_advs"], wanted)
    assert len(calls) == 2  # the mean and the variance of the advantages


def loss_by_hand(inputs: UpdateRuleInputs, targets: Targets, hyper: PPOHyperParams) -> Tensor:
    """The loss of every step with loops instead of tensors."""
    loss = torch.zeros_like(inputs.rewards)
    for t in range(loss.shape[0]):
        for b in range(loss.shape[1]):
            pi, ratio = torch.softmax(inputs.agent_out["logits"][t, b], -1), ratio_of(inputs, t, b)
            adv = float(targets["normalized_advs"][t, b])
            clipped = min(max(ratio, 1 - hyper.clip_range), 1 + hyper.clip_range)
            error = float(targets["value_target"][t, b] - inputs.agent_out["v"][t, b, 0])
            bonus = float(-(pi * pi.log()).sum())
            loss[t, b] = -min(ratio * adv, clipped * adv) + hyper.value_cost * error**2 - hyper.entropy_cost * bonus
    return loss


@pytest.mark.parametrize("hyper", [PPOHyperParams(), PPOHyperParams(0.9, 0.5, 0.05, 2.0, 0.3)])
def test_loss_by_hand(inputs: UpdateRuleInputs, hyper: PPOHyperParams) -> None:
    targets = targets_of(inputs, hyper)
    loss, logs = PPO().agent_loss(inputs, targets, hyper)
    torch.testing.assert_close(loss, loss_by_hand(inputs, targets, hyper))
    mask = inputs.loss_mask
    assert mask is not None
    torch.testing.assert_close(logs["entropy"], entropy(inputs.agent_out["logits"][:-1])[mask > 0].mean())
    log_ratio = torch.log_softmax(inputs.agent_out["logits"][:-1], -1) - torch.log_softmax(
        inputs.behaviour_logits()[:-1], -1
    )
    ratio = log_ratio.gather(-1, inputs.actions[:-1, :, None]).squeeze(-1).exp()[mask > 0]
    torch.testing.assert_close(logs["clip_fraction"], ((ratio - 1).abs() > hyper.clip_range).double().mean())
    torch.testing.assert_close(logs["approx_kl"], (ratio - 1 - ratio.log()).mean())
    assert 0 < float(logs["clip_fraction"]) < 1 and float(logs["approx_kl"]) > 0


def test_explained_variance_is_1_for_exact_values_and_0_for_constant_ones(inputs: UpdateRuleInputs) -> None:
    targets = targets_of(inputs)
    exact = targets | {"values": targets["value_target"]}
    constant = targets | {"values": torch.ones_like(targets["values"])}
    assert float(PPO().agent_loss(inputs, exact)[1]["explained_variance"]) == pytest.approx(1.0)
    assert float(PPO().agent_loss(inputs, constant)[1]["explained_variance"]) == pytest.approx(0.0, abs=1e-6)


def test_at_a_ratio_of_1_the_gradient_is_the_policy_gradient(inputs: UpdateRuleInputs) -> None:
    logits = inputs.behaviour_logits()[:-1].clone().requires_grad_()
    actions, advantages = inputs.actions[:-1], inputs.rewards
    log_pi = torch.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    clipped = clipped_surrogate_loss(log_pi - log_pi.detach(), advantages, 0.2)
    (got,) = torch.autograd.grad(clipped.sum(), logits, retain_graph=True)
    (want,) = torch.autograd.grad(policy_gradient_loss(logits, actions, advantages).sum(), logits)
    torch.testing.assert_close(got, want)
    assert (want != 0).any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.3, 1.0, False), (1.3, -1.0, True), (0.7, 1.0, True), (0.7, -1.0, False), (1.1, 1.0, True), (0.9, -1.0, True)],
)
def test_the_loss_is_flat_where_the_policy_has_moved_far_enough(ratio: float, advantage: float, moves: bool) -> None:
    log_ratio = torch.full((1, 1), ratio).log().requires_grad_()
    loss = clipped_surrogate_loss(log_ratio, torch.full((1, 1), advantage), 0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    assert (gradient != 0).item() == moves


def test_gradients_flow_to_the_agents_outputs_and_to_nothing_in_the_targets(inputs: UpdateRuleInputs) -> None:
    out = {name: x.clone().requires_grad_() for name, x in inputs.agent_out.items()}
    inputs = dataclasses.replace(inputs, agent_out=out)
    joined, _ = PPO().agent_loss(inputs, targets_of(inputs))
    apart, _ = PPO().agent_loss(inputs, {name: x.detach() for name, x in targets_of(inputs).items()})
    for got, want in zip(*(torch.autograd.grad(x.sum(), list(out.values())) for x in (joined, apart)), strict=True):
        torch.testing.assert_close(got, want)
        assert (want[:-1] != 0).any() and (want[-1] == 0).all()


def test_bad_input(inputs: UpdateRuleInputs) -> None:
    with pytest.raises(ValueError, match=r"`agent_out` must hold \['logits', 'v'\], got \['logits'\]; 'v' is missing"):
        targets_of(dataclasses.replace(inputs, agent_out={"logits": inputs.agent_out["logits"]}))
    with pytest.raises(ValueError, match=r"'advs' is missing in `meta_out`, got \[\]; pass what `unroll_meta_net` returned"):
        PPO().agent_loss(inputs, {})
    with pytest.raises(ValueError, match=r"`discount_factor` must lie in \[0.0, 1.0\], got 1.1"):
        PPOHyperParams(discount_factor=1.1)
    with pytest.raises(ValueError, match=r"`gae_lambda` must lie in \[0.0, 1.0\], got -1.0"):
        PPOHyperParams(gae_lambda=-1.0)
    with pytest.raises(ValueError, match=r"`clip_range` must be greater than 0, got 0.0"):
        PPOHyperParams(clip_range=0.0)
    with pytest.raises(ValueError, match=r"`least_deviation` must be at least 0.0, got -0.1"):
        PPOHyperParams(least_deviation=-0.1)
    with pytest.raises(ValueError, match=r"`advantages` must be \[6, 3\], got \[5, 3\]; one advantage for each step"):
        clipped_surrogate_loss(inputs.rewards, inputs.rewards[1:], 0.2)
