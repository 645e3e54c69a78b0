"""Proximal policy optimisation, as a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from disco_torch.checks import check_between, check_least, check_positive
from disco_torch.rules.base import (
    UpdateRule,
    check_outputs,
    check_rule_inputs,
    check_targets,
    resolve_hyper_params,
)
from disco_torch.rules.losses import clipped_surrogate_loss, entropy_of_logs
from disco_torch.types import (
    Logs,
    MeanAcrossProcesses,
    OutputSpec,
    Params,
    Targets,
    UnrollFn,
    UpdateRuleInputs,
)
from disco_torch.values import importance_weights, log_prob, select_action, vtrace

EPSILON = 1e-8
"""Added to the deviation that advantages are divided by."""


@dataclass(frozen=True)
class PPOHyperParams:
    """Weights of the losses and constants of the returns; the defaults are those of Stable-Baselines3."""

    discount_factor: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    least_deviation: float = 0.0
    """Advantages are divided by their deviation, or by this where it is larger. Once a task is solved, advantages are little
    but noise, and a division by their deviation would make large steps of it."""

    def __post_init__(self) -> None:
        check_between("discount_factor", self.discount_factor, 0.0, 1.0)
        check_between("gae_lambda", self.gae_lambda, 0.0, 1.0)
        check_positive("clip_range", self.clip_range)
        check_least("least_deviation", self.least_deviation, 0.0)


class PPO(UpdateRule):
    """Clipped policy gradient with generalised advantages and a value loss.

    Schulman et al., "Proximal policy optimization algorithms" (2017). It is meant for several gradient steps on each
    rollout: see `Learner.epochs` and `Learner.minibatches`.
    """

    hyper_params_type: ClassVar[type] = PPOHyperParams

    def outputs(self, num_actions: int) -> OutputSpec:
        return OutputSpec(flat={"logits": num_actions, "v": 1})

    def init_meta_state(self, agent_params: Params) -> dict[str, Any]:
        return {}

    def unroll_meta_net(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: dict[str, Any],
        unroll_fn: UnrollFn,
        hyper_params: Mapping[str, float] | PPOHyperParams | None = None,
        *,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[Targets, dict[str, Any]]:
        """Advantages, value targets and the log-probabilities of the policy that acted, all constants.

            A_t = delta_t + gamma_t lambda_t c_{t+1} A_{t+1},    delta_t = r_t + gamma_t v_{t+1} - v_t
            target_t = v_t + c_t A_t,    c_t = min(pi(a_t) / mu(a_t), 1)

        On what the present policy has collected c is 1, and these are generalised advantages: Schulman et al.,
        "High-dimensional continuous control using generalized advantage estimation" (2016). On replayed steps they are those
        of V-trace: Espeholt et al., "IMPALA" (2018). The advantages of the policy loss have mean 0 and deviation 1 over the
        steps that count in the loss.
        """
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(PPOHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]))
        logits, behaviour, actions = rollout.agent_out["logits"][:-1], rollout.behaviour_logits()[:-1], rollout.actions[:-1]
        values = rollout.agent_out["v"].squeeze(-1).detach()  # [T+1, B]; detached: they make targets
        discounts, lambdas = hyper.discount_factor * rollout.continues(), rollout.lambdas(hyper.gae_lambda)
        rho = importance_weights(logits, behaviour, actions)
        errors = vtrace(values, rollout.rewards, discounts, rho, lambdas).errors  # c_t A_t
        following = torch.cat([errors[1:], torch.zeros_like(errors[:1])])
        advs = rollout.rewards + discounts * (values[1:] + lambdas * following) - values[:-1]
        targets: Targets = {
            "advs": advs,
            "normalized_advs": _normalized(advs, rollout.loss_mask, hyper.least_deviation, mean_across_processes),
            "value_target": errors + values[:-1],
            "values": values[:-1],
            "old_log_prob": log_prob(behaviour, actions),
        }
        return targets, meta_state

    def agent_loss(
        self,
        rollout: UpdateRuleInputs,
        meta_out: Targets,
        hyper_params: Mapping[str, float] | PPOHyperParams | None = None,
        backprop: bool = False,
    ) -> tuple[Tensor, Logs]:
        """L_clip + c_v (target - v)^2 - c_H H(pi), [T, B]. Gradients flow to `logits` and `v`."""
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(PPOHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]))
        check_targets(meta_out, ("advs", "normalized_advs", "value_target", "values", "old_log_prob"))
        log_pi = torch.log_softmax(rollout.agent_out["logits"][:-1], dim=-1)  # [T, B, A]
        log_ratio = select_action(log_pi, rollout.actions[:-1]) - meta_out["old_log_prob"].detach()
        policy_loss = clipped_surrogate_loss(log_ratio, meta_out["normalized_advs"], hyper.clip_range)
        # detached: returns are constants of the losses that use them.
        value_target = meta_out["value_target"].detach()
        value_loss = torch.square(value_target - rollout.agent_out["v"][:-1].squeeze(-1))
        policy_entropy = entropy_of_logs(log_pi)
        loss = policy_loss + hyper.value_cost * value_loss - hyper.entropy_cost * policy_entropy
        with torch.no_grad():
            mask, ratio = rollout.loss_mask, log_ratio.exp()
            unexplained = _variance(value_target - meta_out["values"], mask)
            logs = {
                "entropy": _mean(policy_entropy, mask),
                "policy_loss": _mean(policy_loss, mask),
                "value_loss": _mean(value_loss, mask),
                "clip_fraction": _mean(((ratio - 1.0).abs() > hyper.clip_range).to(ratio.dtype), mask),
                "approx_kl": _mean(ratio - 1.0 - log_ratio, mask),
                "advs": _mean(meta_out["advs"], mask),
                "avg_value": _mean(meta_out["values"], mask),
                "explained_variance": 1.0 - unexplained / (_variance(value_target, mask) + EPSILON),
            }
        return loss, logs


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the steps that count; 0 where none does."""
    return x.mean() if mask is None else torch.sum(x * mask) / torch.sum(mask).clamp(min=1.0)


def _variance(x: Tensor, mask: Tensor | None) -> Tensor:
    return _mean(torch.square(x - _mean(x, mask)), mask)


def _normalized(
    advs: Tensor, mask: Tensor | None, least_deviation: float, mean_across_processes: MeanAcrossProcesses | None
) -> Tensor:
    """Advantages with mean 0 and deviation 1, or less where it was below the least, over the steps that count, [T, B].

    These are the steps of all processes.
    """

    def mean_of(x: Tensor) -> Tensor:
        if mean_across_processes is None:
            return _mean(x, mask)
        counts = torch.ones_like(x) if mask is None else mask
        # Processes may count different numbers of steps: a mean of their means would be another one.
        total, count = mean_across_processes(torch.stack([torch.sum(x * counts), torch.sum(counts)]))
        return total / torch.where(count > 0, count, 1.0)

    mean = mean_of(advs)
    deviation = torch.sqrt(mean_of(torch.square(advs - mean)))
    return (advs - mean) / (deviation.clamp(min=least_deviation) + EPSILON)
