"""How a network's outputs stand for scalar values, and the losses that fit them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from disco_torch.checks import check_shape
from disco_torch.kernels import softmax_mean
from disco_torch.values.transforms import (
    bin_values,
    check_bins,
    signed_hyperbolic,
    signed_parabolic,
    two_hot_bins,
)


@dataclass(frozen=True)
class ValueEncoding:
    """Scalar or categorical values, with or without the signed hyperbolic transform.

    Attributes:
      num_bins: 1 for a scalar output; else a distribution over this many bins in [-max_abs_value, max_abs_value].
      max_abs_value: the range of the bins, after the transform if there is one.
      nonlinear: whether the network's values live in the transformed space.
    """

    num_bins: int = 1
    max_abs_value: float = 300.0
    nonlinear: bool = False

    def __post_init__(self) -> None:
        if self.num_bins != 1:
            check_bins(self.num_bins, self.max_abs_value)

    def _check(self, net_out: Tensor) -> None:
        if net_out.shape[-1] != self.num_bins:
            raise ValueError(
                f"`net_out` must be [..., {self.num_bins}], got {list(net_out.shape)}; "
                "build the agent with the outputs that the rule asks for."
            )

    def to_scalar(self, net_out: Tensor) -> Tensor:
        """Scalar values in the space of rewards, [..., num_bins] -> [...]."""
        self._check(net_out)
        if self.num_bins == 1:
            values = net_out.squeeze(-1)
        else:
            values = softmax_mean(net_out, bin_values(self.num_bins, self.max_abs_value, net_out))
        return signed_parabolic(values) if self.nonlinear else values

    def loss_from_target(self, net_out: Tensor, target: Tensor) -> Tensor:
        """Cross entropy with the target's two-hot code, or half the squared error.

        Args:
          net_out: [..., num_bins].
          target: [...], in the space of rewards.

        Returns:
          [...]. Gradients flow to both; detach the target where it is to be a constant.
        """
        self._check(net_out)
        check_shape("target", target, net_out.shape[:-1], "it must match `net_out` without its last dimension")
        if self.nonlinear:
            target = signed_hyperbolic(target)
        if self.num_bins == 1:
            return 0.5 * torch.square(net_out.squeeze(-1) - target)
        lower, upper, share = two_hot_bins(target, self.num_bins, self.max_abs_value)
        # Only two bins have a weight: gather these.
        log_probs = torch.log_softmax(net_out, dim=-1)
        at_bins = torch.gather(log_probs, -1, torch.stack([lower, upper], dim=-1))  # [..., 2]
        return -(share * at_bins[..., 0] + (1.0 - share) * at_bins[..., 1])

    def loss_from_td(self, net_out: Tensor, td: Tensor) -> Tensor:
        """`loss_from_target` towards the constant v + td, with v the network's own value.

        Args:
          net_out: [..., num_bins].
          td: [...], possibly normalised.

        Returns:
          [...]. Gradients flow to `net_out` alone.
        """
        # detached: the target is where the value should go, not something that moves towards the value.
        with torch.no_grad():
            target = (self.to_scalar(net_out.detach()) + td).detach()
        return self.loss_from_target(net_out, target)
