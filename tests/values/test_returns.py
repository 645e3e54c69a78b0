"""V-trace and Retrace by identity: what they must equal where the answer is known otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from disco_torch.values import (
    importance_weights,
    log_prob,
    retrace,
    select_action,
    vtrace,
)
from disco_torch.values.returns import backward_sums


@dataclass(frozen=True)
class Steps:
    """A random rollout; the discounts are gamma, no step ends an episode."""

    values: Tensor  # [T+1, B]
    q_taken: Tensor  # [T, B]
    rewards: Tensor  # [T, B]
    discounts: Tensor  # [T, B]
    rho: Tensor  # [T, B]

    def vtrace_targets(self, lambda_: float | Tensor = 1.0) -> Tensor:
        return vtrace(self.values, self.rewards, self.discounts, self.rho, lambda_).errors + self.values[:-1]

    def vtrace_advantages(self, lambda_: float | Tensor = 1.0) -> Tensor:
        return vtrace(self.values, self.rewards, self.discounts, self.rho, lambda_).advantages

    def retrace(self, lambda_: float | Tensor = 1.0) -> Tensor:
        return retrace(self.values, self.q_taken, self.rewards, self.discounts, self.rho, lambda_)

    def all(self, lambda_: float | Tensor = 1.0) -> list[Tensor]:
        return [self.vtrace_targets(lambda_), self.vtrace_advantages(lambda_), self.retrace(lambda_)]

    def cut(self, start: int, stop: int) -> Steps:
        """Steps `start` to `stop` alone."""
        parts = (x[start:stop] for x in (self.q_taken, self.rewards, self.discounts, self.rho))
        return Steps(self.values[start : stop + 1], *parts)


def make_steps(seed: int, T: int, B: int = 2, gamma: float = 0.9) -> Steps:
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> Tensor:
        return torch.randn(rows, B, generator=generator, dtype=torch.float64)

    return Steps(draw(T + 1), draw(T), draw(T), torch.full((T, B), gamma, dtype=torch.float64), torch.exp(draw(T)))


steps = st.builds(make_steps, st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3), st.floats(0.1, 1.0))
lambdas = st.floats(0.0, 1.0)


def assert_equal(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def monte_carlo(s: Steps) -> Tensor:
    """The discounted sum of rewards to the end of the rollout, and the last value."""
    returns, after = [], s.values[-1]
    for t in reversed(range(s.rewards.shape[0])):
        after = s.rewards[t] + s.discounts[t] * after
        returns.append(after)
    return torch.stack(returns[::-1])


@given(steps)
def test_on_policy_vtrace_with_lambda_1_is_the_monte_carlo_return(s: Steps) -> None:
    s = replace(s, rho=torch.ones_like(s.rho))
    assert_equal(s.vtrace_targets(1.0), monte_carlo(s))
    assert_equal(s.vtrace_advantages(1.0), monte_carlo(s) - s.values[:-1])


@given(steps)
def test_on_policy_retrace_with_lambda_1_is_the_monte_carlo_return(s: Steps) -> None:
    # With one action, q(a) is the value and Retrace's correction telescopes.
    s = replace(s, rho=torch.ones_like(s.rho), q_taken=s.values[:-1])
    assert_equal(s.retrace(1.0), monte_carlo(s))


@given(steps)
def test_retrace_counts_each_later_surprise_once(s: Steps) -> None:
    # On policy, the correction replaces each later q(a) by its return: G = r + d (v' - q'(a')) + d G'.
    s = replace(s, rho=torch.ones_like(s.rho))
    shifted = s.rewards.clone()
    shifted[:-1] += s.discounts[:-1] * (s.values[1:-1] - s.q_taken[1:])
    assert_equal(s.retrace(1.0), monte_carlo(replace(s, rewards=shifted)))


@given(steps, lambdas)
def test_vtrace_is_its_definition_as_a_sum(s: Steps, lambda_: float) -> None:
    T = s.rewards.shape[0]
    clipped = s.rho.clamp(max=1.0)
    deltas = clipped * (s.rewards + s.discounts * s.values[1:] - s.values[:-1])
    wanted = []
    for start in range(T):
        total, weight = s.values[start].clone(), torch.ones_like(s.values[0])
        for t in range(start, T):
            total = total + weight * deltas[t]
            weight = weight * s.discounts[t] * lambda_ * clipped[t]
        wanted.append(total)
    assert_equal(s.vtrace_targets(lambda_), torch.stack(wanted))


@given(steps, lambdas, st.data())
def test_a_terminal_step_cuts_the_future_off(s: Steps, lambda_: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, s.rewards.shape[0] - 1))
    discounts = s.discounts.clone()
    discounts[k] = 0.0
    s = replace(s, discounts=discounts)
    other = make_steps(1, *s.rewards.shape)

    def mix(ours: Tensor, theirs: Tensor) -> Tensor:
        return torch.cat([ours[: k + 1], theirs[k + 1 :]])

    changed = Steps(*(mix(getattr(s, name), getattr(other, name)) for name in s.__dataclass_fields__))
    for got, want in zip(changed.all(lambda_), s.all(lambda_), strict=True):
        torch.testing.assert_close(got[: k + 1], want[: k + 1], rtol=0, atol=0)


def test_without_a_terminal_step_the_future_counts() -> None:
    s = make_steps(0, 5)
    changed = replace(s, rewards=torch.cat([s.rewards[:-1], s.rewards[-1:] + 1.0]))
    for got, before in zip(changed.all(), s.all(), strict=True):
        assert (got != before).all()


@given(steps, lambdas)
def test_discount_0_leaves_the_reward(s: Steps, lambda_: float) -> None:
    s = replace(s, discounts=torch.zeros_like(s.discounts))
    assert_equal(s.retrace(lambda_), s.rewards)
    assert_equal(replace(s, rho=torch.ones_like(s.rho)).vtrace_targets(lambda_), s.rewards)


@given(steps)
def test_lambda_0_looks_one_step_ahead(s: Steps) -> None:
    one_step = s.rewards + s.discounts * s.values[1:]
    clipped = s.rho.clamp(max=1.0)
    assert_equal(s.retrace(0.0), one_step)
    assert_equal(s.vtrace_targets(0.0), s.values[:-1] + clipped * (one_step - s.values[:-1]))
    assert_equal(s.vtrace_advantages(0.0), clipped * (one_step - s.values[:-1]))


@given(steps, lambdas, st.data())
def test_a_lambda_of_0_at_a_step_splits_the_rollout_after_it(s: Steps, lambda_: float, data: st.DataObject) -> None:
    T = s.rewards.shape[0]
    k = data.draw(st.integers(0, T - 1))
    lambdas = torch.full_like(s.rewards, lambda_)
    lambdas[k] = 0.0
    parts = [s.cut(0, k + 1).all(lambda_)] + ([s.cut(k + 1, T).all(lambda_)] if k + 1 < T else [])
    for got, *want in zip(s.all(lambdas), *parts, strict=True):
        assert_equal(got, torch.cat(want))


@given(steps, lambdas)
def test_one_lambda_and_the_same_for_each_step_are_equal(s: Steps, lambda_: float) -> None:
    for form in (torch.tensor(lambda_, dtype=torch.float64), torch.full_like(s.rewards, lambda_)):
        for got, want in zip(s.all(form), s.all(lambda_), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)


@given(steps, lambdas)
def test_weights_above_1_count_as_1(s: Steps, lambda_: float) -> None:
    clipped = replace(s, rho=s.rho.clamp(max=1.0))
    for got, want in zip(s.all(lambda_), clipped.all(lambda_), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_weight_0_trusts_nothing_that_the_behaviour_did() -> None:
    s = make_steps(0, 5)
    s = replace(s, rho=torch.zeros_like(s.rho))
    assert_equal(s.vtrace_targets(), s.values[:-1])
    assert_equal(s.vtrace_advantages(), torch.zeros_like(s.rewards))
    assert_equal(s.retrace(), s.rewards + s.discounts * s.values[1:])


def test_no_gradient_flows_through_targets() -> None:
    s = make_steps(0, 4)
    values, q_taken = s.values.clone().requires_grad_(), s.q_taken.clone().requires_grad_()
    errors, advantages = vtrace(values, s.rewards, s.discounts, s.rho, 0.7)
    (of_errors,) = torch.autograd.grad(errors.sum(), values)
    want = torch.full_like(s.values, -1.0)  # target - v with a constant target
    want[-1] = 0.0
    assert_equal(of_errors, want)
    (of_advantages,) = torch.autograd.grad(advantages.sum(), values)
    clipped = s.rho.clamp(max=1.0)
    want = torch.zeros_like(s.values)
    want[:-1] -= clipped
    mixing = torch.tensor([0.3, 0.3, 0.3, 1.0], dtype=torch.float64).unsqueeze(-1)  # 1 - lambda, and the last row alone
    want[1:] += clipped * s.discounts * mixing
    assert_equal(of_advantages, want)
    assert not retrace(values, q_taken, s.rewards, s.discounts, s.rho, 0.7).requires_grad


def test_importance_weights_by_hand_and_without_gradient() -> None:
    pi = torch.log(torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]])).requires_grad_()
    mu = torch.log(torch.tensor([[[0.25, 0.75]], [[0.6, 0.4]]])).requires_grad_()
    weights = importance_weights(pi, mu, torch.tensor([[0], [1]]))
    torch.testing.assert_close(weights, torch.tensor([[2.0], [0.25]]))
    assert not weights.requires_grad
    torch.testing.assert_close(importance_weights(pi, pi, torch.tensor([[1], [0]])), torch.ones(2, 1))


def test_select_action_takes_the_entry_of_each_row() -> None:
    table = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).float()
    actions = torch.tensor([[0, 3, 1], [2, 2, 0]], dtype=torch.int32)
    got = select_action(table, actions)
    for t in range(2):
        for b in range(3):
            assert torch.equal(got[t, b], table[t, b, actions[t, b]])
    assert torch.equal(select_action(table[..., 0], actions), got[..., 0])


def test_log_prob_is_the_log_softmax_of_the_taken_action() -> None:
    logits = torch.tensor([[[1.0, 2.0, 4.0]]])
    got = log_prob(logits, torch.tensor([[1]]))
    torch.testing.assert_close(got, torch.log(torch.softmax(logits, -1)[..., 1]))


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 3), st.booleans())
def test_backward_sums_are_a_loop_from_the_last_step(seed: int, T: int, B: int, ends: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    terms = torch.randn(T, B, generator=generator, dtype=torch.float64)
    decays = 1.2 * torch.rand(T, B, generator=generator, dtype=torch.float64)
    if ends:
        decays = decays * (torch.rand(T, B, generator=generator) > 0.3)
    kept = terms.clone(), decays.clone()
    wanted, after = [], torch.zeros(B, dtype=torch.float64)
    for t in reversed(range(T)):
        after = terms[t] + decays[t] * after
        wanted.append(after)
    assert_equal(backward_sums(terms, decays), torch.stack(wanted[::-1]))
    assert torch.equal(terms, kept[0]) and torch.equal(decays, kept[1])


def test_backward_sums_can_be_differentiated() -> None:
    s = make_steps(0, 6)
    terms, decays = s.rewards.requires_grad_(), s.rho.requires_grad_()
    assert torch.autograd.gradcheck(backward_sums, (terms, decays))


ROWS, STEPS = torch.zeros(4, 2), torch.zeros(3, 2)
LOGITS = torch.zeros(3, 2, 5)
ACTIONS = torch.zeros(3, 2, dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((STEPS, STEPS, STEPS, STEPS), r"`values` must be \[4, 2\], got \[3, 2\]; it needs one row more than `rewards`"),
        ((ROWS, STEPS[0], STEPS, STEPS), r"`rewards` must be \[T, B\], of 2 dimensions, got shape \[2\]; time comes first"),
        ((ROWS, STEPS.long(), STEPS, STEPS), r"`rewards` must be floating point, got torch.int64; convert .*\.float\(\)"),
        ((ROWS, STEPS.tolist(), STEPS, STEPS), r"`rewards` must be a torch.Tensor, got list"),
        ((ROWS[:, :0], STEPS[:, :0], STEPS[:, :0], STEPS[:, :0]), r"`rewards` is empty, shape \[3, 0\]; at least one step"),
        ((ROWS, STEPS, ROWS, STEPS), r"`discounts` must be \[3, 2\], got \[4, 2\]; it must match `rewards`"),
        ((ROWS, STEPS, STEPS, ROWS), r"`rho` must be \[3, 2\], got \[4, 2\]; it must match `rewards`"),
        ((ROWS, STEPS, STEPS, STEPS, ROWS), r"`lambda_` must be \[3, 2\], got \[4, 2\]; one number, or one for each step"),
    ],
)
def test_bad_steps(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vtrace(*arguments)
    with pytest.raises(ValueError, match=message):
        retrace(arguments[0], STEPS, *arguments[1:])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: retrace(ROWS, ROWS, STEPS, STEPS, STEPS), r"`q_taken` must be \[3, 2\], got \[4, 2\]; it must match"),
        (lambda: importance_weights(LOGITS[0], LOGITS[0], ACTIONS), r"`pi_logits` must be \[T, B, A\], of 3 dimensions"),
        (
            lambda: importance_weights(LOGITS, LOGITS[1:], ACTIONS),
            r"`behaviour_logits` must be \[3, 2, 5\], got \[2, 2, 5\]",
        ),
        (lambda: importance_weights(LOGITS, LOGITS, ACTIONS[1:]), r"`actions` must be \[3, 2\], got \[2, 2\]; one action"),
        (lambda: importance_weights(LOGITS, LOGITS, ACTIONS + 5), r"`actions` must lie in 0 \.\. 4, got 5 at \[0, 0\]"),
        (
            lambda: log_prob(LOGITS, ACTIONS - 1),
            r"`actions` must lie in 0 \.\. 4, got -1 at \[0, 0\]; the number of actions",
        ),
        (
            lambda: select_action(LOGITS, STEPS),
            r"`actions` must be integers, got torch.float32; convert it with `\.long\(\)`",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("actions", [ACTIONS[1:], ACTIONS[0]])
def test_actions_of_another_shape(actions: Tensor) -> None:
    with pytest.raises(ValueError, match="`actions` must be"):
        select_action(LOGITS, actions)
