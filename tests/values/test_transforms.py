"""Scalar transforms and the two-hot code: inverses, exact cases, and the reference's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from disco_torch.values import (
    from_two_hot,
    signed_exp,
    signed_hyperbolic,
    signed_log,
    signed_parabolic,
    two_hot,
)
from disco_torch.values.transforms import TWO_HOT_EPSILON, two_hot_bins


def floats(bound: float) -> st.SearchStrategy[Tensor]:
    """Vectors in float64; 0, tiny and large numbers come up by themselves."""
    values = st.floats(-bound, bound, allow_nan=False, allow_subnormal=False)
    return st.lists(values, min_size=1, max_size=8).map(lambda xs: torch.tensor(xs, dtype=torch.float64))


def assert_close(got: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@given(floats(1e6))
def test_signed_exp_inverts_signed_log(x: Tensor) -> None:
    assert_close(signed_exp(signed_log(x)), x)


@given(floats(20.0))
def test_signed_log_inverts_signed_exp(x: Tensor) -> None:
    assert_close(signed_log(signed_exp(x)), x)


# Its inverse subtracts two numbers near 1 and divides by 2e-3, which costs three of sixteen digits.
@given(floats(1e6))
def test_signed_parabolic_inverts_signed_hyperbolic(x: Tensor) -> None:
    assert_close(signed_parabolic(signed_hyperbolic(x)), x, 1e-10)


@given(floats(1e3))
def test_signed_hyperbolic_inverts_signed_parabolic(x: Tensor) -> None:
    assert_close(signed_hyperbolic(signed_parabolic(x)), x, 1e-10)


@pytest.mark.parametrize("transform", [signed_log, signed_exp, signed_hyperbolic, signed_parabolic])
@given(x=floats(10.0))
def test_transforms_are_odd_and_grow(transform, x: Tensor) -> None:
    torch.testing.assert_close(transform(-x), -transform(x), rtol=0, atol=0)
    x = torch.cat([x, x + 0.1]).sort().values
    assert (transform(x).diff() >= 0).all()


def test_transforms_by_hand() -> None:
    x = torch.tensor([0.0, 3.0, -3.0], dtype=torch.float64)
    assert_close(signed_log(x), torch.tensor([0.0, np.log(4.0), -np.log(4.0)], dtype=torch.float64))
    assert_close(signed_hyperbolic(x), torch.tensor([0.0, 1.003, -1.003], dtype=torch.float64))


@given(x=floats(30.0), num_bins=st.integers(2, 40), max_abs_value=st.floats(0.5, 20.0))
def test_two_hot_is_a_distribution_on_neighbours_that_decodes_to_the_clipped_value(
    x: Tensor, num_bins: int, max_abs_value: float
) -> None:
    probs = two_hot(x, num_bins, max_abs_value)
    assert probs.shape == (*x.shape, num_bins) and (probs >= -1e-12).all()
    assert_close(probs.sum(-1), torch.ones_like(x))
    for row in probs:
        places = (row > 1e-9).nonzero().flatten()
        assert len(places) <= 2 and places[-1] - places[0] <= 1
    decoded = from_two_hot(probs, max_abs_value)
    # The constant in the share's denominator pulls the value up, by as much as itself at the lower bin.
    error = decoded - x.clamp(-max_abs_value, max_abs_value)
    assert (error >= -1e-9).all() and (error <= TWO_HOT_EPSILON + 1e-9).all()


@pytest.mark.parametrize(("num_bins", "max_abs_value"), [(2, 1.0), (5, 2.0), (33, 16.0)])
def test_two_hot_of_a_bin_value_is_one_hot(num_bins: int, max_abs_value: float) -> None:
    bins = torch.linspace(-max_abs_value, max_abs_value, num_bins, dtype=torch.float64)
    torch.testing.assert_close(
        two_hot(bins, num_bins, max_abs_value), torch.eye(num_bins, dtype=torch.float64), rtol=0, atol=0
    )
    torch.testing.assert_close(from_two_hot(two_hot(bins, num_bins, max_abs_value), max_abs_value), bins, rtol=0, atol=0)


def test_two_hot_puts_values_beyond_the_range_on_the_outermost_bins() -> None:
    probs = two_hot(torch.tensor([-7.0, 1e9]), 3, 1.0)
    torch.testing.assert_close(probs, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), rtol=0, atol=0)


def test_two_hot_share_by_hand() -> None:
    # Bins -1, 0, 1; 0.25 lies between 0 and 1.
    share = 0.75 / (1.0 + 1e-5)
    want = torch.tensor([0.0, share, 1.0 - share], dtype=torch.float64)
    assert_close(two_hot(torch.tensor(0.25, dtype=torch.float64), 3, 1.0), want, 1e-15)


def test_gradient_of_the_share_flows_to_values_within_the_range() -> None:
    x = torch.tensor([0.25, -0.5, 2.0], dtype=torch.float64, requires_grad=True)
    share = two_hot_bins(x, 3, 1.0)[2]
    (gradient,) = torch.autograd.grad(share.sum(), x)
    slope = -1.0 / (1.0 + 1e-5)
    assert_close(gradient, torch.tensor([slope, slope, 0.0], dtype=torch.float64))


def test_transforms_against_the_reference(golden: Path) -> None:
    data = np.load(golden / "values.npz")
    x = torch.as_tensor(data["input/x"])
    got = {
        "signed_log": signed_log(x),
        "signed_hyperbolic": signed_hyperbolic(x),
        "signed_parabolic": signed_parabolic(0.05 * x),  # the reference file has it of a smaller range
        "two_hot": two_hot(x, 601, 300.0),
    }
    for name, value in got.items():
        assert_close(value, torch.as_tensor(data[f"transforms/{name}"]), 1e-11)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: two_hot(torch.tensor([1, 2]), 3, 1.0), r"`x` must be floating point, got torch.int64.*\.float\(\)"),
        (lambda: two_hot([0.5], 3, 1.0), r"`x` must be a torch.Tensor, got list.*torch.as_tensor"),
        (lambda: two_hot(torch.zeros(2), 1, 1.0), r"`num_bins` must be at least 2, got 1"),
        (lambda: two_hot(torch.zeros(2), 3, 0.0), r"`max_abs_value` must be greater than 0, got 0.0.*largest value"),
        (lambda: from_two_hot(torch.ones(2, 3).long(), 1.0), r"`probs` must be floating point, got torch.int64"),
        (lambda: from_two_hot(torch.ones(2, 1), 1.0), r"`num_bins` must be at least 2, got 1"),
        (lambda: from_two_hot(torch.ones(2, 3), -1.0), r"`max_abs_value` must be greater than 0, got -1.0"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
