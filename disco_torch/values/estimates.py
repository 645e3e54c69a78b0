"""Value, advantage and TD estimates along a rollout, from state values (V-trace) or action values (Retrace)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from disco_torch.checks import check_prefix, check_rank, check_shape
from disco_torch.types import EmaState, MeanAcrossProcesses, ValueOuts
from disco_torch.values.encoding import ValueEncoding
from disco_torch.values.moving_average import MovingAverage
from disco_torch.values.returns import Lambda, retrace, select_action, vtrace


def expected_q(pi_logits: Tensor, q_values: Tensor) -> Tensor:
    """v = sum_a pi(a) q(a), [T, B, A] twice -> [T, B]."""
    check_shape("q_values", q_values, pi_logits.shape, "it must match `pi_logits`")
    return torch.sum(torch.softmax(pi_logits, dim=-1) * q_values, dim=-1)


def estimate_values(
    values: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    rho: Tensor,
    lambda_: Lambda,
    *,
    target_values: Tensor | None = None,
) -> ValueOuts:
    """Estimates from state values, with V-trace over the target network's values where they are given.

    Args:
      values, target_values: [T+1, B].
      rewards, discounts, rho: [T, B]; the discount is 0 where the episode ended.
    """
    if target_values is None:
        target_values = values
    check_shape("target_values", target_values, values.shape, "it must match `values`")
    errors, advantages = vtrace(target_values, rewards, discounts, rho, lambda_)
    value_target = errors + target_values[:-1]
    return ValueOuts(
        value=values,
        target_value=target_values,
        rho=rho,
        adv=advantages,
        value_target=value_target,
        td=value_target - values[:-1],
    )


def estimate_q_values(
    values: Tensor,
    q_values: Tensor,
    actions: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    rho: Tensor,
    lambda_: Lambda,
    *,
    target_values: Tensor | None = None,
    target_q_values: Tensor | None = None,
) -> ValueOuts:
    """Estimates from action values, with Retrace over the target network's where they are given.

        adv_t = G_t - v_t,    qv_adv_t(a) = q_t(a) - v_t,    v_target_t = v_t + min(rho_t, 1) (G_t - v_t)

    Args:
      values, target_values: [T+1, B].
      q_values, target_q_values: [T+1, B, A].
      actions: [T, B].
      rewards, discounts, rho: [T, B]; the discount is 0 where the episode ended.
    """
    if (target_values is None) != (target_q_values is None):
        raise ValueError("`target_values` and `target_q_values` must be given together, got one of them.")
    if target_values is None or target_q_values is None:
        target_values, target_q_values = values, q_values
    check_rank("q_values", q_values, 3, "[T+1, B, A]")
    check_shape("target_q_values", target_q_values, q_values.shape, "it must match `q_values`")
    check_shape("values", values, q_values.shape[:2], "it must match `q_values` without the actions")
    check_shape("target_values", target_values, values.shape, "it must match `values`")
    check_shape("actions", actions, rewards.shape, "it must match `rewards`; drop the last row")
    target_q_taken = select_action(target_q_values[:-1], actions)
    q_target = retrace(target_values, target_q_taken, rewards, discounts, rho, lambda_)
    adv = q_target - target_values[:-1]
    value_target = target_values[:-1] + torch.clamp(rho, max=1.0) * adv
    return ValueOuts(
        value=values,
        target_value=target_values,
        rho=rho,
        adv=adv,
        value_target=value_target,
        td=value_target - values[:-1],
        qv_adv=target_q_values - target_values.unsqueeze(-1),
        q_value=q_values,
        target_q_value=target_q_values,
        q_target=q_target,
        q_td=q_target - select_action(q_values[:-1], actions),
    )


def scalar_values(
    encoding: ValueEncoding, pi_logits: Tensor, value_out: Tensor | None, q_out: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """State and action values from network outputs; state values are the policy's mean of q where no network gives them.

    Args:
      pi_logits: [T+1, B, A].
      value_out: [T+1, B, num_bins] or None.
      q_out: [T+1, B, A, num_bins] or None.

    Returns:
      [T+1, B], and [T+1, B, A] or None.
    """
    if value_out is None and q_out is None:
        raise ValueError("one of `value_out` and `q_out` must be given, got None for both.")
    if value_out is not None:
        check_prefix("value_out", value_out, pi_logits.shape[:2], "it must match `pi_logits`")
    if q_out is None:
        assert value_out is not None
        return encoding.to_scalar(value_out), None
    check_prefix("q_out", q_out, pi_logits.shape, "it must match `pi_logits`")
    q_values = encoding.to_scalar(q_out)
    values = expected_q(pi_logits, q_values) if value_out is None else encoding.to_scalar(value_out)
    return values, q_values


def normalize_estimates(
    outs: ValueOuts,
    adv_state: EmaState,
    td_state: EmaState,
    average: MovingAverage,
    mean_across_processes: MeanAcrossProcesses | None = None,
) -> tuple[ValueOuts, EmaState, EmaState]:
    """Takes the advantages and TD errors into their moving averages and adds the normalised forms.

    TD errors (of q where there is one) keep their mean: their sign is the direction of learning.
    """
    assert outs.adv is not None and outs.td is not None
    adv_state = average.update_state(outs.adv, adv_state, mean_across_processes)
    td = outs.td if outs.q_td is None else outs.q_td
    td_state = average.update_state(td, td_state, mean_across_processes)
    normalized_td = average.normalize(td, td_state, subtract_mean=False)
    outs = dataclasses.replace(
        outs,
        normalized_adv=average.normalize(outs.adv, adv_state),
        normalized_qv_adv=None if outs.qv_adv is None else average.normalize(outs.qv_adv, adv_state),
        normalized_td=normalized_td if outs.q_td is None else None,
        normalized_q_td=None if outs.q_td is None else normalized_td,
    )
    return outs, adv_state, td_state
