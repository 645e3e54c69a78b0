"""Policy improvement: from a policy and estimated advantages to a better policy."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.checks import check_rank, check_shape
from disco_torch.values import importance_weights, select_action


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


def doubly_robust_push(
    logits: Tensor,
    behaviour_logits: Tensor,
    actions: Tensor,
    action_advantages: Tensor,
    taken_advantages: Tensor,
    clip_range: float = 0.2,
    clip: float = 3.0,
) -> Tensor:
    """What estimated advantages add to a policy, as a target: pi + push is the better policy.

        push(b) = pi(b) (Q(b) - sum_a pi(a) Q(a)) + w (A - Q(a_t)) (1[b = a_t] - pi(b)),    Q(b) = q(b) - v
        w = min(pi(a_t) / mu(a_t), 1 + clip_range), and 0 where that ratio is out of 1 +- clip_range on the side of the push

    The first term is the exact gradient of sum_a pi(a) Q(a) in the logits, the second corrects it by what was observed of
    the taken action: the mean over actions is right if either the action values or the weights are. Jiang and Li, "Doubly
    robust off-policy value evaluation" (2016). It is linear in A, so noise of mean 0 moves a policy nowhere on average; an
    exponential of advantages, as in `improved_logits`, pulls it towards the uniform one. So pi + push may be negative for
    some actions: it is the mean of many targets that is to be a policy. The rule for w is that of PPO's clip.

    Args:
      logits: [T, B, A], of the policy to improve.
      behaviour_logits: [T, B, A], of the policy that acted.
      actions: [T, B].
      action_advantages: [T, B, A], q - v, divided by the deviation of advantages.
      taken_advantages: [T, B], what was observed of the taken actions, divided by the same.
      clip_range: how far the ratio may leave 1 before a step no longer counts.
      clip: largest absolute value of an advantage.

    Returns:
      [T, B, A], which sums to 0 over actions; a constant.
    """
    check_shape("action_advantages", action_advantages, logits.shape, "it must match `logits`")
    check_shape("taken_advantages", taken_advantages, logits.shape[:2], "one for each row")
    with torch.no_grad():  # a target
        policy = torch.softmax(logits, dim=-1)
        ratio = importance_weights(logits, behaviour_logits, actions)
        surprise = (taken_advantages - select_action(action_advantages, actions)).clamp(-clip, clip)
        spent = torch.where(surprise > 0.0, ratio > 1.0 + clip_range, ratio < 1.0 - clip_range)
        weight = torch.where(spent, 0.0, ratio.clamp(max=1.0 + clip_range) * surprise).unsqueeze(-1)  # [T, B, 1]
        expected = action_advantages.clamp(-clip, clip)
        expected = policy * (expected - (policy * expected).sum(dim=-1, keepdim=True))
        return (expected - weight * policy).scatter_add(-1, actions.long().unsqueeze(-1), weight)
