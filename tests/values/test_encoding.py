"""How outputs stand for values: scalar and categorical, with and without the transform."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from disco_torch.values import (
    ValueEncoding,
    signed_hyperbolic,
    signed_parabolic,
    two_hot,
)

ENCODINGS = [ValueEncoding(bins, 10.0, nonlinear) for bins in (1, 31) for nonlinear in (False, True)]
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS, ids=str)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_equal(got: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_a_scalar_output_is_its_value() -> None:
    out = draw(4, 3, 1)
    assert_equal(ValueEncoding(1).to_scalar(out), out[..., 0])
    assert_equal(ValueEncoding(1, nonlinear=True).to_scalar(out), signed_parabolic(out[..., 0]))


@given(st.floats(-9.0, 9.0))
def test_a_two_hot_distribution_decodes_to_what_it_was_made_of(value: float) -> None:
    x = torch.tensor([value], dtype=torch.float64)
    logits = torch.log(two_hot(x, 31, 10.0).clamp(min=0.0))  # log 0 is a probability of 0
    assert_equal(ValueEncoding(31, 10.0).to_scalar(logits), x, 1.1e-5)
    assert_equal(ValueEncoding(31, 10.0, nonlinear=True).to_scalar(logits), signed_parabolic(x), 1e-4)


@pytest.mark.parametrize("nonlinear", [False, True])
@given(seed=st.integers(0, 10**6), scale=st.floats(0.1, 1e3))
def test_categorical_loss_is_the_dense_cross_entropy(nonlinear: bool, seed: int, scale: float) -> None:
    encoding = ValueEncoding(31, 10.0, nonlinear)
    out, target = draw(4, 3, 31, seed=seed), scale * draw(4, 3, seed=seed + 1)
    code = two_hot(signed_hyperbolic(target) if nonlinear else target, 31, 10.0)
    want = -torch.sum(code * torch.log_softmax(out, -1), -1)
    assert_equal(encoding.loss_from_target(out, target), want)


def test_scalar_loss_is_half_the_squared_error_in_the_networks_space() -> None:
    out, target = draw(4, 3, 1), draw(4, 3, seed=1)
    assert_equal(ValueEncoding(1).loss_from_target(out, target), 0.5 * (out[..., 0] - target) ** 2)
    squashed = signed_hyperbolic(target)
    assert_equal(ValueEncoding(1, nonlinear=True).loss_from_target(out, target), 0.5 * (out[..., 0] - squashed) ** 2)


@every_encoding
def test_loss_from_target_lets_gradients_flow_to_both(encoding: ValueEncoding) -> None:
    out, target = draw(4, encoding.num_bins).requires_grad_(), draw(4, seed=1).requires_grad_()
    gradients = torch.autograd.grad(encoding.loss_from_target(out, target).sum(), (out, target))
    assert all((gradient.abs().flatten(1).sum(-1) > 0).all() for gradient in (gradients[0], gradients[1].unsqueeze(-1)))


@every_encoding
def test_loss_from_td_is_the_loss_towards_the_constant_value_plus_td(encoding: ValueEncoding) -> None:
    out, td = draw(4, 3, encoding.num_bins).requires_grad_(), draw(4, 3, seed=1).requires_grad_()
    loss = encoding.loss_from_td(out, td)
    target = (encoding.to_scalar(out) + td).detach()
    want = encoding.loss_from_target(out, target)
    assert_equal(loss, want)
    got_gradient, td_gradient = torch.autograd.grad(loss.sum(), (out, td), allow_unused=True)
    assert td_gradient is None
    assert_equal(got_gradient, torch.autograd.grad(want.sum(), out)[0])


def test_gradient_of_loss_from_td_by_hand() -> None:
    out, td = draw(4, 3, 1).requires_grad_(), draw(4, 3, seed=1)
    (gradient,) = torch.autograd.grad(ValueEncoding(1).loss_from_td(out, td).sum(), out)
    assert_equal(gradient[..., 0], -td)  # v - (v + td)
    out = draw(4, 3, 31).requires_grad_()
    encoding = ValueEncoding(31, 10.0, nonlinear=True)
    (gradient,) = torch.autograd.grad(encoding.loss_from_td(out, td).sum(), out)
    code = two_hot(signed_hyperbolic(encoding.to_scalar(out) + td), 31, 10.0)
    assert_equal(gradient, (torch.softmax(out, -1) - code).detach())


def test_a_td_of_0_leaves_a_scalar_output_alone() -> None:
    out = draw(4, 3, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(ValueEncoding(1).loss_from_td(out, torch.zeros(4, 3)).sum(), out)
    assert_equal(gradient, torch.zeros_like(out))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ValueEncoding(0), r"`num_bins` must be at least 2, got 0"),
        (lambda: ValueEncoding(31, -1.0), r"`max_abs_value` must be greater than 0, got -1.0"),
        (lambda: ENCODINGS[2].to_scalar(torch.zeros(4, 3, 30)), r"`net_out` must be \[..., 31\], got \[4, 3, 30\]; build"),
        (lambda: ENCODINGS[0].to_scalar(torch.zeros(4, 3)), r"`net_out` must be \[..., 1\], got \[4, 3\]"),
        (
            lambda: ENCODINGS[2].loss_from_target(torch.zeros(4, 3, 31), torch.zeros(4)),
            r"`target` must be \[4, 3\], got \[4\]",
        ),
        (lambda: ENCODINGS[2].loss_from_target(torch.zeros(4, 31), torch.zeros(4).long()), r"`x` must be floating point"),
        (lambda: ENCODINGS[2].loss_from_td(torch.zeros(4, 3, 31), torch.zeros(5, 4, 3)), r"`target` must be \[4, 3\]"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
