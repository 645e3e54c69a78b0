"""Scalar transforms and the two-hot encoding of scalars on symmetric bins."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.checks import check_floating, check_positive, check_tensor

HYPERBOLIC_EPSILON = 1e-3
TWO_HOT_EPSILON = 1e-5


def signed_log(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|)."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def signed_exp(x: Tensor) -> Tensor:
    """sign(x) (exp(|x|) - 1), the inverse of `signed_log`."""
    return torch.sign(x) * torch.expm1(torch.abs(x))


def signed_hyperbolic(x: Tensor) -> Tensor:
    """sign(x) (sqrt(|x| + 1) - 1) + eps x, with eps = 1e-3.

    Pohlen et al., "Observe and look further: achieving consistent performance on Atari" (2018).
    """
    return torch.sign(x) * (torch.sqrt(torch.abs(x) + 1.0) - 1.0) + HYPERBOLIC_EPSILON * x


def signed_parabolic(x: Tensor) -> Tensor:
    """The inverse of `signed_hyperbolic`.

    sign(x) (z^2 - 1) with z = (sqrt(1 + 4 eps (eps + 1 + |x|)) - 1) / (2 eps)
    """
    eps = HYPERBOLIC_EPSILON
    z = (torch.sqrt(1.0 + 4.0 * eps * (eps + 1.0 + torch.abs(x))) - 1.0) / (2.0 * eps)
    return torch.sign(x) * (torch.square(z) - 1.0)


def check_bins(num_bins: int, max_abs_value: float) -> None:
    check_positive("max_abs_value", max_abs_value, "it is the largest value that the bins can stand for")
    if num_bins < 2:
        raise ValueError(f"`num_bins` must be at least 2, got {num_bins}.")


def two_hot_bins(x: Tensor, num_bins: int, max_abs_value: float) -> tuple[Tensor, Tensor, Tensor]:
    """Where a scalar lies between the bins, which are spread evenly over [-max_abs_value, max_abs_value].

    With l <= x <= u the neighbouring bin values, the lower bin's share is (u - x) / (u - l + 1e-5). The small constant is
    part of the definition: it leaves a value that is exactly on a bin there as a whole.

    Args:
      x: [...], clipped to the range.

    Returns:
      Indices of the lower and the upper bin, and the lower bin's share, [...] each; the upper bin has the rest.
      Gradients flow from the share to `x`.
    """
    check_floating("x", check_tensor("x", x))
    check_bins(num_bins, max_abs_value)
    span = 2.0 * max_abs_value
    x = torch.clamp(x, -max_abs_value, max_abs_value)
    position = (x + max_abs_value) / span * (num_bins - 1)
    lower, upper = torch.floor(position), torch.ceil(position)
    lower_value = lower / (num_bins - 1) * span - max_abs_value
    upper_value = upper / (num_bins - 1) * span - max_abs_value
    share = (upper_value - x) / (upper_value - lower_value + TWO_HOT_EPSILON)
    # Kept in range: a value that is not finite has no bins, and an index out of range would end the process on a GPU.
    return lower.long().clamp(0, num_bins - 1), upper.long().clamp(0, num_bins - 1), share


def two_hot(x: Tensor, num_bins: int, max_abs_value: float) -> Tensor:
    """Two-hot probabilities of scalars, [...] -> [..., num_bins]; see `two_hot_bins`. Gradients flow to `x`."""
    lower, upper, share = (part.unsqueeze(-1) for part in two_hot_bins(x, num_bins, max_abs_value))
    bins = torch.arange(num_bins, device=x.device)
    return (bins == lower) * share + (bins == upper) * (1.0 - share)


def bin_values(num_bins: int, max_abs_value: float, like: Tensor) -> Tensor:
    """What the bins stand for, [num_bins], in the dtype of `like`, but at least 32 bits, and on its device."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.linspace(-max_abs_value, max_abs_value, num_bins, dtype=dtype, device=like.device)


def from_two_hot(probs: Tensor, max_abs_value: float) -> Tensor:
    """The mean of the bin values under `probs`, [..., num_bins] -> [...]."""
    check_floating("probs", check_tensor("probs", probs))
    check_bins(probs.shape[-1], max_abs_value)
    return torch.sum(probs * bin_values(probs.shape[-1], max_abs_value, probs), dim=-1)
