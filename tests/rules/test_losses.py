"""The losses that rules are made of: by hand, by identity, and where their gradients flow."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from disco_torch.rules import categorical_kl, entropy, policy_gradient_loss

ACTIONS = torch.zeros(3, 2, dtype=torch.long)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_kl_by_hand() -> None:
    p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    want = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert float(categorical_kl(torch.log(p), torch.log(q))) == pytest.approx(want, abs=1e-6)


@given(st.integers(0, 10**6), st.floats(-50.0, 50.0))
def test_kl_is_0_between_equals_positive_otherwise_and_blind_to_shifts(seed: int, shift: float) -> None:
    p, q = draw(4, 5, seed=seed), draw(4, 5, seed=seed + 1)
    torch.testing.assert_close(categorical_kl(p, p + shift), torch.zeros(4).double(), rtol=0, atol=1e-12)
    assert (categorical_kl(p, q) > 0).all()


def test_kl_is_cross_entropy_less_entropy_and_its_gradient_the_difference_of_distributions() -> None:
    p, q = draw(4, 5), draw(4, 5, seed=1).requires_grad_()
    cross_entropy = -torch.sum(torch.softmax(p, -1) * torch.log_softmax(q, -1), -1)
    kl = categorical_kl(p, q)
    torch.testing.assert_close(kl, cross_entropy - entropy(p))
    (gradient,) = torch.autograd.grad(kl.sum(), q)
    torch.testing.assert_close(gradient, (torch.softmax(q, -1) - torch.softmax(p, -1)).detach())


def test_kl_lets_gradients_flow_to_both() -> None:
    p, q = draw(4, 5).requires_grad_(), draw(4, 5, seed=1).requires_grad_()
    for gradient in torch.autograd.grad(categorical_kl(p, q).sum(), (p, q)):
        assert (gradient != 0).all()


def test_entropy_of_a_uniform_and_of_a_certain_choice() -> None:
    got = entropy(torch.tensor([[0.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(got, torch.tensor([math.log(4.0), 0.0]))


def test_policy_gradient_loss_by_hand() -> None:
    logits, actions, advantages = draw(3, 2, 4).requires_grad_(), torch.tensor([[0, 1], [2, 3], [1, 1]]), draw(3, 2, seed=1)
    loss = policy_gradient_loss(logits, actions, advantages)
    one_hot = torch.nn.functional.one_hot(actions, 4).double()
    torch.testing.assert_close(loss, -torch.sum(one_hot * torch.log_softmax(logits, -1), -1) * advantages)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, (advantages.unsqueeze(-1) * (torch.softmax(logits, -1) - one_hot)).detach())


@pytest.mark.parametrize("backprop", [False, True])
def test_advantages_get_a_gradient_only_when_asked(backprop: bool) -> None:
    logits, advantages = draw(3, 2, 4).requires_grad_(), draw(3, 2, seed=1).requires_grad_()
    loss = policy_gradient_loss(logits, ACTIONS, advantages, backprop=backprop)
    (gradient,) = torch.autograd.grad(loss.sum(), advantages, allow_unused=True)
    if backprop:
        torch.testing.assert_close(gradient, -torch.log_softmax(logits, -1)[..., 0].detach())
    else:
        assert gradient is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: categorical_kl(draw(4, 5), draw(4, 6)),
            r"`q_logits` must be \[4, 5\], got \[4, 6\]; it must match `p_logits`",
        ),
        (lambda: policy_gradient_loss(draw(3, 2), ACTIONS, draw(3, 2)), r"`logits` must be \[T, B, A\], of 3 dimensions"),
        (
            lambda: policy_gradient_loss(draw(3, 2, 4), ACTIONS[1:], draw(3, 2)),
            r"`actions` must be \[3, 2\], got \[2, 2\]; one action for each row of `logits`",
        ),
        (
            lambda: policy_gradient_loss(draw(3, 2, 4), ACTIONS, draw(4, 2)),
            r"`advantages` must be \[3, 2\], got \[4, 2\]; one advantage for each row of `logits`",
        ),
        (lambda: policy_gradient_loss(draw(3, 2, 4), ACTIONS + 4, draw(3, 2)), r"`actions` must lie in 0 \.\. 3, got 4"),
        (lambda: policy_gradient_loss(draw(3, 2, 4), ACTIONS.double(), draw(3, 2)), r"`actions` must be integers"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
