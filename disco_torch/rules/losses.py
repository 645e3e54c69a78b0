"""The losses that rules are made of, per step."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.checks import check_rank, check_shape
from disco_torch.values import log_prob


def categorical_kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(p || q) of two categorical distributions, [..., N] twice -> [...]. Gradients flow to both."""
    check_shape("q_logits", q_logits, p_logits.shape, "it must match `p_logits`")
    return kl_of_logs(torch.log_softmax(p_logits, dim=-1), torch.log_softmax(q_logits, dim=-1))


def entropy(logits: Tensor) -> Tensor:
    """-sum p log p, [..., N] -> [...]."""
    return entropy_of_logs(torch.log_softmax(logits, dim=-1))


def kl_of_logs(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`categorical_kl` from the logarithms of the probabilities."""
    check_shape("log_q", log_q, log_p.shape, "it must match `log_p`")
    return torch.sum(torch.exp(log_p) * (log_p - log_q), dim=-1)


def entropy_of_logs(log_p: Tensor) -> Tensor:
    """`entropy` from the logarithms of the probabilities."""
    return -torch.sum(torch.exp(log_p) * log_p, dim=-1)


def policy_gradient_loss(logits: Tensor, actions: Tensor, advantages: Tensor, *, backprop: bool = False) -> Tensor:
    """-log pi(a_t) A_t, whose gradient is the policy gradient's estimate.

    Args:
      logits: [T, B, A].
      actions, advantages: [T, B].
      backprop: let gradients flow to the advantages too.

    Returns:
      [T, B]. Gradients flow to `logits`, and to `advantages` only with `backprop`.
    """
    check_rank("logits", logits, 3, "[T, B, A]")
    check_shape("actions", actions, logits.shape[:2], "one action for each row of `logits`")
    check_shape("advantages", advantages, logits.shape[:2], "one advantage for each row of `logits`")
    if not backprop:
        advantages = advantages.detach()  # an estimate of what the action was worth, a constant of this loss
    return -log_prob(logits, actions) * advantages


def clipped_surrogate_loss(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """-min(rho A, clip(rho, 1 - c, 1 + c) A): the policy gradient's loss, flat where the ratio has moved far enough.

    At a ratio of 1 its gradient is the policy gradient's. Schulman et al., "Proximal policy optimization algorithms" (2017).

    Args:
      log_ratio: [T, B], log pi(a) - log mu(a) of the taken actions, mu being the policy that acted.
      advantages: [T, B].
      clip_range: c.

    Returns:
      [T, B]. Gradients flow to `log_ratio` alone.
    """
    check_shape("advantages", advantages, log_ratio.shape, "one advantage for each step")
    advantages = advantages.detach()  # an estimate of what the action was worth, a constant of this loss
    ratio = torch.exp(log_ratio)
    return -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages)
