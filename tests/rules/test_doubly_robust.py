"""Policy improvement as a rule: the push by hand, its identities, and the same inside of a discovered rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from disco_calls import A, agent_params, make_unroll
from disco_calls import unroll as unroll_disco

from disco_torch.rules import (
    DiscoUpdateRule,
    DoublyRobust,
    DoublyRobustConfig,
    DoublyRobustHyperParams,
    doubly_robust_push,
    improved_logits,
)
from disco_torch.rules.improvement import advantages_of_all
from disco_torch.types import Targets, UpdateRuleInputs
from disco_torch.values import MovingAverage, estimate_q_values, expected_q, importance_weights

MakeInputs = Callable[..., UpdateRuleInputs]


@pytest.fixture(params=[1, 21], ids=["scalar", "bins"])
def rule(request: pytest.FixtureRequest) -> DoublyRobust:
    return DoublyRobust(DoublyRobustConfig(num_bins=request.param))


@pytest.fixture
def inputs(rule: DoublyRobust, make_inputs: MakeInputs) -> UpdateRuleInputs:
    return dataclasses.replace(make_inputs(rule.outputs(A)), extra_from_rule=None)


def targets_of(rule: DoublyRobust, inputs: UpdateRuleInputs, **hyper: float) -> Targets:
    params = agent_params()
    unroll = make_unroll(inputs.agent_out)
    return rule.unroll_meta_net(inputs, params, rule.init_meta_state(params), unroll, hyper)[0]


def random_rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def push_of(logits: torch.Tensor, *args: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Where the policy has acted itself, unless a behaviour is given."""
    return doubly_robust_push(logits, settings.pop("behaviour", logits), *args, **settings)


def every_action(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A row, [A], repeated so that each action is taken once: [1, A, A], and the actions, [1, A]."""
    return logits.expand(1, A, A), torch.arange(A).unsqueeze(0)


@pytest.mark.parametrize("wrong", [0.0, 1.0], ids=["right values", "wrong values"])
def test_on_average_the_push_is_that_of_the_true_advantages_whatever_the_values_say(wrong: float) -> None:
    """Over the actions that the policy takes, by their probabilities, errors of the action values cancel."""
    logits, true = random_rows(0, A), 0.3 * random_rows(1, A)
    policy = torch.softmax(logits, -1)
    true = true - (policy * true).sum()
    rows, actions = every_action(logits)
    of_all = (true + 0.2 * wrong * random_rows(2, A)).expand(1, A, A)
    push = push_of(rows, actions, of_all, true.unsqueeze(0))[0]
    torch.testing.assert_close((policy.unsqueeze(-1) * push).sum(0), policy * true)


def test_noise_of_mean_zero_moves_no_policy() -> None:
    """The push is linear in what was observed; an exponential is not, and its mean is a more uniform policy."""
    logits = torch.tensor([2.0, 0.0, -1.0, 0.5], dtype=torch.float64)
    rows, actions = every_action(logits)
    policy, none = torch.softmax(logits, -1), torch.zeros_like(rows)
    up, down = (push_of(rows, actions, none, torch.full((1, A), x, dtype=torch.float64)) for x in (2.0, -2.0))
    torch.testing.assert_close(up, -down)
    seen = [none.scatter(-1, actions.unsqueeze(-1), x) for x in (1.0, -1.0)]
    improved = torch.stack([torch.softmax(improved_logits(rows, x, 2.0), -1)[0] for x in seen]).mean(0)
    entropies = [float(-(p * p.log()).sum()) for p in ((policy.unsqueeze(-1) * improved).sum(0), policy)]
    assert entropies[0] > entropies[1] + 0.05


def test_the_push_sums_to_zero_and_improves() -> None:
    logits, of_all = random_rows(0, 50, 3, A), random_rows(1, 50, 3, A)
    actions = torch.randint(A, (50, 3), generator=torch.Generator().manual_seed(2))
    of_taken = of_all.gather(-1, actions.unsqueeze(-1)).squeeze(-1)  # nothing but what the values said
    push = push_of(logits, actions, of_all, of_taken)
    torch.testing.assert_close(push.sum(-1), torch.zeros(50, 3, dtype=torch.float64))
    assert bool(((push * of_all).sum(-1) > 0).all())


def test_the_push_by_hand() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.3, 0.2]]], dtype=torch.float64))
    behaviour = torch.log(torch.tensor([[[0.5, 0.4, 0.1]]], dtype=torch.float64))
    of_all = torch.tensor([[[1.0, 0.0, -1.0]]], dtype=torch.float64)  # mean 0.3 under the policy
    values_say = [0.5 * 0.7, 0.3 * -0.3, 0.2 * -1.3]

    def check(action: int, observed: float, correction: list[float]) -> None:
        taken = torch.tensor([[observed]], dtype=torch.float64)
        push = push_of(logits, torch.tensor([[action]]), of_all, taken, behaviour=behaviour)[0, 0].tolist()
        assert push == pytest.approx([x + y for x, y in zip(values_say, correction, strict=True)])

    check(1, 0.0, [0.0, 0.0, 0.0])  # no surprise
    w = 0.75 * 0.4
    check(1, 0.4, [w * -0.5, w * 0.7, w * -0.2])  # the ratio is 0.75: upwards the step counts
    check(1, -0.4, [0.0, 0.0, 0.0])  # downwards it is spent
    w = 1.2 * -0.5
    check(2, -1.5, [w * -0.5, w * -0.3, w * 0.8])  # the ratio is 2, bounded by 1.2: downwards the step counts
    check(2, 1.5, [0.0, 0.0, 0.0])
    check(0, 100.0, [3.0 * 0.5, 3.0 * -0.3, 3.0 * -0.2])  # the surprise of 99 is clipped


def test_targets_come_from_retrace(rule: DoublyRobust, inputs: UpdateRuleInputs) -> None:
    targets = targets_of(rule, inputs, push=2.0, td_lambda=0.7, discount_factor=0.9)
    q_values, logits, actions = (
        rule.encoding.to_scalar(inputs.agent_out["q"]),
        inputs.agent_out["logits"],
        inputs.actions[:-1],
    )
    behaviour = inputs.behaviour_logits()[:-1]
    rho = importance_weights(logits[:-1], behaviour, actions)
    values, discounts = expected_q(logits, q_values), 0.9 * inputs.continues()
    outs = estimate_q_values(values, q_values, actions, inputs.rewards, discounts, rho, inputs.lambdas(0.7))
    assert outs.adv is not None and outs.qv_adv is not None and outs.q_target is not None
    torch.testing.assert_close(targets["q_target"], outs.q_target)
    average = MovingAverage()
    state = average.update_state(outs.adv, average.init_state(dtype=torch.float64))
    of_all, of_taken = (average.normalize(x, state, False, 0.1) for x in (outs.qv_adv[:-1], outs.adv))
    torch.testing.assert_close(targets["push"], 2.0 * doubly_robust_push(logits[:-1], behaviour, actions, of_all, of_taken))
    torch.testing.assert_close(torch.softmax(targets["pi"], -1), torch.softmax(logits[:-1], -1))


def test_the_loss_moves_the_policy_to_the_target_and_the_values_of_taken_actions(
    rule: DoublyRobust, inputs: UpdateRuleInputs
) -> None:
    targets = targets_of(rule, inputs)
    later = random_rows(5, *inputs.agent_out["logits"].shape)  # the policy after some gradient steps
    out = {name: x.clone().requires_grad_() for name, x in (inputs.agent_out | {"logits": later}).items()}
    loss, _ = rule.agent_loss(dataclasses.replace(inputs, agent_out=out), targets)
    grads = dict(zip(out, torch.autograd.grad(loss.sum(), list(out.values())), strict=True))
    want = torch.softmax(later[:-1], -1) - torch.softmax(targets["pi"], -1) - targets["push"]
    torch.testing.assert_close(grads["logits"][:-1], want)
    is_taken = torch.nn.functional.one_hot(inputs.actions[:-1].long(), A).bool()
    assert not bool(grads["logits"][-1].any()) and not bool(grads["q"][-1].any())
    assert not bool(grads["q"][:-1][~is_taken].any()) and bool(grads["q"][:-1][is_taken].any())


def test_small_advantages_are_not_blown_up(rule: DoublyRobust, inputs: UpdateRuleInputs) -> None:
    """Where a task is solved, advantages are little but noise, and are not divided by their own small deviation."""
    out = inputs.agent_out | {"q": 0.0 * inputs.agent_out["q"]}
    calm = dataclasses.replace(inputs, rewards=1e-5 * inputs.rewards, agent_out=out)
    assert float(targets_of(rule, calm)["push"].abs().max()) < 1e-2
    assert float(targets_of(rule, calm, least_deviation=0.0)["push"].abs().max()) > 0.1


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"push": 0.0}, "`push` must be"),
        ({"clip": -1.0}, "`clip` must be"),
        ({"clip_range": 0.0}, "`clip_range` must be"),
        ({"td_lambda": 1.5}, "td_lambda"),
        ({"least_deviation": -0.1}, "least_deviation"),
    ],
)
def test_hyper_params_out_of_range_are_refused(hyper: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DoublyRobustHyperParams(**hyper)


def test_a_discovered_rule_can_correct_the_push(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    """With a correction of 0, targets and the policy's loss are those of the rule by hand."""
    tiny_rule.config = dataclasses.replace(tiny_rule.config, advantage_push=1.5)
    for param in tiny_rule.meta_net.pi_head.parameters():
        torch.nn.init.zeros_(param)
    inputs = dataclasses.replace(make_inputs(tiny_rule.outputs(A)), extra_from_rule=None)
    targets, _ = unroll_disco(tiny_rule, inputs, make_inputs(tiny_rule.outputs(A), seed=1).agent_out)
    by_hand = DoublyRobust(DoublyRobustConfig(tiny_rule.config.num_bins, tiny_rule.config.max_abs_value))
    own = dataclasses.replace(inputs, agent_out={name: inputs.agent_out[name] for name in ("logits", "q")})
    want = targets_of(by_hand, own, push=1.5, discount_factor=tiny_rule.config.value_discount)
    for name in ("push", "q_target", "q_td"):
        torch.testing.assert_close(targets[name], want[name])
    grads = []
    for each, seen, aims in ((tiny_rule, inputs, targets), (by_hand, own, want)):
        logits = random_rows(7, *inputs.agent_out["logits"].shape).requires_grad_()
        out = seen.agent_out | {"logits": logits}
        loss, _ = each.agent_loss(dataclasses.replace(seen, agent_out=out), aims)
        grads.append(torch.autograd.grad(loss.sum(), logits)[0])
    torch.testing.assert_close(*grads)


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"improvement": -1.0}, "`improvement` must be at least 0, got -1"),
        ({"advantage_push": -1.0}, "`advantage_push` must be at least 0, got -1"),
        ({"advantage_push": 1.0, "improvement": 2.0}, "`improvement` must be 0 with an `advantage_push`"),
    ],
)
def test_factors_out_of_range_are_refused(tiny_rule: DiscoUpdateRule, changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(tiny_rule.config, **changes)
