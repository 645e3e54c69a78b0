"""Policy improvement by clipped advantages: a policy that is better than the one it starts from, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.checks import check_rank, check_shape


def advantages_of_all(action_advantages: Tensor, taken_advantages: Tensor, actions: Tensor) -> Tensor:
    """The advantage of every action: what was observed of the taken one, what is predicted of the others.

    Args:
      action_advantages: [T, B, A], q - v.
      taken_advantages: [T, B], such as Retrace's.
      actions: [T, B].

    Returns:
      [T, B, A]. Gradients flow to both.
    """
    check_rank("action_advantages", action_advantages, 3, "[T, B, A]")
    check_shape("taken_advantages", taken_advantages, action_advantages.shape[:2], "one for each row")
    check_shape("actions", actions, action_advantages.shape[:2], "one action for each row")
    return action_advantages.scatter(-1, actions.long().unsqueeze(-1), taken_advantages.unsqueeze(-1))


def improved_logits(logits: Tensor, advantages: Tensor, factor: float, clip: float = 1.0) -> Tensor:
    """Logits of the improved policy.

        pi'(a) ~ pi(a) exp(factor clip(A(a), -clip, clip))

    The policy of clipped maximum a posteriori policy optimisation (CMPO). Hessel et al., "Muesli: Combining improvements in
    policy optimization" (2021).

    Args:
      logits: [T, B, A], of the policy to improve.
      advantages: [T, B, A], divided by their deviation.
      factor: how far to go.
      clip: largest absolute value of an advantage, so that no estimate can turn the policy over.

    Returns:
      [T, B, A]. Gradients flow to both.
    """
    check_shape("advantages", advantages, logits.shape, "it must match `logits`")
    return torch.log_softmax(logits, dim=-1) + factor * advantages.clamp(-clip, clip)
