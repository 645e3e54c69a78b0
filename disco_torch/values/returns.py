"""Importance weights and the two off-policy returns: V-trace for state values, Retrace for action values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from disco_torch.checks import (
    check_actions,
    check_floating,
    check_not_empty,
    check_rank,
    check_shape,
)

Lambda = float | Tensor
"""Trace parameter, one number or [T, B]; 0 at a step ends its trace, so that the return bootstraps right there."""


def select_action(table: Tensor, actions: Tensor) -> Tensor:
    """The entries of the taken actions, [T, B, A, ...] and [T, B] -> [T, B, ...]."""
    if table.ndim < 3:
        raise ValueError(f"`table` must be [T, B, A, ...], got {list(table.shape)}; time comes first, then the batch.")
    check_shape("actions", actions, table.shape[:2], "one action for each row of the table")
    check_actions("actions", actions, table.shape[2])
    index = actions.long().reshape(*actions.shape, *[1] * (table.ndim - 2))  # [T, B, 1, ...]
    return torch.gather(table, 2, index.expand(*actions.shape, 1, *table.shape[3:])).squeeze(2)


def log_prob(logits: Tensor, actions: Tensor) -> Tensor:
    """log pi(a), [T, B, A] and [T, B] -> [T, B]."""
    return select_action(torch.log_softmax(logits, dim=-1), actions)


def importance_weights(pi_logits: Tensor, behaviour_logits: Tensor, actions: Tensor) -> Tensor:
    """rho = pi(a) / mu(a) of the taken actions, a constant.

    Args:
      pi_logits, behaviour_logits: [T, B, A].
      actions: [T, B].

    Returns:
      [T, B], without gradient.
    """
    check_rank("pi_logits", pi_logits, 3, "[T, B, A]")
    check_shape("behaviour_logits", behaviour_logits, pi_logits.shape, "it must match `pi_logits`")
    check_shape("actions", actions, pi_logits.shape[:2], "one action for each row of `pi_logits`")
    # detached: the weights correct for who acted, they are not something to optimise.
    return torch.exp(log_prob(pi_logits, actions) - log_prob(behaviour_logits, actions)).detach()


class VTrace(NamedTuple):
    """What `vtrace` returns."""

    errors: Tensor  # [T, B] target minus value; gradients flow to the value alone
    advantages: Tensor  # [T, B] for a policy gradient


def _check_steps(rewards: Tensor, discounts: Tensor, rho: Tensor, values: Tensor) -> None:
    check_rank("rewards", rewards, 2, "[T, B]")
    check_floating("rewards", rewards)
    check_not_empty("rewards", rewards)
    T, B = rewards.shape
    check_shape("discounts", discounts, (T, B), "it must match `rewards`")
    check_shape("rho", rho, (T, B), "it must match `rewards`")
    check_shape("values", values, (T + 1, B), "it needs one row more than `rewards`, to bootstrap from")


def _lambdas(lambda_: Lambda, like: Tensor) -> Tensor:
    """One trace parameter for every step, [T, B]."""
    if isinstance(lambda_, Tensor):
        if lambda_.ndim > 0:
            check_shape("lambda_", lambda_, like.shape, "one number, or one for each step")
        return lambda_.to(like.dtype).expand_as(like)
    return torch.full_like(like, lambda_)


def backward_sums(terms: Tensor, decays: Tensor) -> Tensor:
    """x_t = terms_t + decays_t x_{t+1}, from the last step (x_T = 0) to the first, [T, B] each.

    In about log2(T) passes over all steps instead of T small ones: each pass doubles the number of steps summed up.
    """
    reach = 1
    while reach < terms.shape[0]:
        beyond = torch.zeros_like(terms[:reach])
        terms = terms + decays * torch.cat([terms[reach:], beyond])
        decays = decays * torch.cat([decays[reach:], beyond])
        reach *= 2
    return terms


def vtrace(values: Tensor, rewards: Tensor, discounts: Tensor, rho: Tensor, lambda_: Lambda = 1.0) -> VTrace:
    """V-trace errors and advantages, both clips at 1.

        e_t = c_t (r_t + d_t v_{t+1} - v_t) + d_t lambda_t c_t e_{t+1},    c_t = min(rho_t, 1)
        A_t = c_t (r_t + d_t (lambda_t (v_{t+1} + e_{t+1}) + (1 - lambda_t) v_{t+1}) - v_t)

    Espeholt et al., "IMPALA" (2018).

    Args:
      values: [T+1, B]; the last row bootstraps.
      rewards, discounts, rho: [T, B], of the step that leaves row t; a discount of 0 ends the episode.
      lambda_: a number or [T, B].

    Returns:
      Errors and advantages. No gradient flows through the targets v_{t+1} + e_{t+1}.
    """
    _check_steps(rewards, discounts, rho, values)
    clipped = torch.clamp(rho, max=1.0)
    lambdas = _lambdas(lambda_, rewards)
    # detached: the recursion makes targets, which are constants of the loss that uses them.
    fixed = values.detach()
    deltas = clipped * (rewards + discounts * fixed[1:] - fixed[:-1])
    decays = discounts * lambdas * clipped
    targets = torch.cat([backward_sums(deltas, decays) + fixed[:-1], fixed[-1:]])  # [T+1, B]
    # The step before the last row bootstraps from that row alone.
    lambdas = torch.cat([lambdas[:-1], torch.zeros_like(lambdas[-1:])])
    bootstrap = lambdas * targets[1:] + (1.0 - lambdas) * values[1:]
    advantages = clipped * (rewards + discounts * bootstrap - values[:-1])
    return VTrace(errors=targets[:-1] - values[:-1], advantages=advantages)


def retrace(
    values: Tensor, q_taken: Tensor, rewards: Tensor, discounts: Tensor, rho: Tensor, lambda_: Lambda = 1.0
) -> Tensor:
    """Retrace returns of the taken actions.

        G_t = r_t + d_t (v_{t+1} + lambda_t c_{t+1} (G_{t+1} - q_{t+1}(a_{t+1}))),    G_{T-1} = r_{T-1} + d_{T-1} v_T

    with c_t = min(rho_t, 1). Munos et al., "Safe and efficient off-policy reinforcement learning" (2016).

    Args:
      values: [T+1, B], v_t = E_{a ~ pi} q_t(a); the last row bootstraps.
      q_taken: [T, B], q_t(a_t).
      rewards, discounts, rho: [T, B], of the step that leaves row t.
      lambda_: a number or [T, B].

    Returns:
      [T, B], without gradient.
    """
    _check_steps(rewards, discounts, rho, values)
    check_shape("q_taken", q_taken, rewards.shape, "it must match `rewards`")
    with torch.no_grad():  # a return is a target, a constant of the loss that uses it.
        lambdas = _lambdas(lambda_, rewards)
        clipped = torch.clamp(rho, max=1.0)
        traces = torch.cat([lambdas[:-1] * clipped[1:], torch.zeros_like(clipped[-1:])])  # [T, B], none at the last step
        next_q = torch.cat([q_taken[1:], torch.zeros_like(q_taken[-1:])])
        return backward_sums(rewards + discounts * (values[1:] - traces * next_q), discounts * traces)
