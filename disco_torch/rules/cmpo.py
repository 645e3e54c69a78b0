"""Clipped policy improvement (CMPO), as a rule: the target is a slow policy, improved by clipped, normalised advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from disco_torch.checks import check_between
from disco_torch.rules.base import (
    UpdateRule,
    check_outputs,
    check_rule_inputs,
    check_targets,
    resolve_hyper_params,
    retrace_estimates,
    taken,
    unrolled,
)
from disco_torch.rules.improvement import advantages_of_all, improved_logits
from disco_torch.rules.losses import entropy_of_logs, kl_of_logs
from disco_torch.types import (
    EmaState,
    Logs,
    MeanAcrossProcesses,
    OutputSpec,
    Params,
    Targets,
    UnrollFn,
    UpdateRuleInputs,
    tree_dataclass,
)
from disco_torch.values import (
    MovingAverage,
    ValueEncoding,
    normalize_estimates,
)


@dataclass(frozen=True)
class CMPOHyperParams:
    """Weights of the losses and constants of the targets.

    Attributes:
      improvement: factor of the clipped advantages; a larger one changes the policy faster.
      clip: largest absolute value of a normalised advantage.
      entropy_cost: weight of the entropy bonus.
      value_cost: weight of the action values' loss.
      target_params_coeff: share of the slow parameters that stays at each update.
      td_lambda: trace parameter of Retrace.
      discount_factor: discount of the returns.
    """

    improvement: float = 4.0
    clip: float = 1.0
    entropy_cost: float = 0.0
    value_cost: float = 0.5
    target_params_coeff: float = 0.9
    td_lambda: float = 0.95
    discount_factor: float = 0.99

    def __post_init__(self) -> None:
        for name in ("target_params_coeff", "td_lambda", "discount_factor"):
            check_between(name, getattr(self, name), 0.0, 1.0)
        for name in ("improvement", "clip"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"`{name}` must be greater than 0, got {getattr(self, name)}; at 0 no policy improves.")


@dataclass(frozen=True)
class CMPOConfig:
    """The action values' form, and how advantages are normalised."""

    num_bins: int = 51
    max_abs_value: float = 10.0
    moving_average_decay: float = 0.99
    moving_average_eps: float = 1e-6


@tree_dataclass
class CMPOState:
    """The slow copy of the agent, and what is known of the scale of its advantages."""

    adv_ema_state: EmaState
    td_ema_state: EmaState
    target_params: Params


class CMPO(UpdateRule):
    """The policy improvement of Muesli. Hessel et al., "Muesli: Combining improvements in policy optimization" (2021).

        target(a) ~ pi'(a) exp(c clip(A(a) / sigma, -clip, clip)),    L = KL(target || pi) + c_q L_q - c_H H(pi)

    with pi' the policy of a slow copy of the agent. A is Retrace's estimate at the taken action and q - v at the others;
    sigma is a moving deviation of the advantages. The action values learn from Retrace.
    """

    hyper_params_type: ClassVar[type] = CMPOHyperParams

    def __init__(self, config: CMPOConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or CMPOConfig()
        self.encoding = ValueEncoding(config.num_bins, config.max_abs_value, nonlinear=config.num_bins > 1)
        self.average = MovingAverage(config.moving_average_decay, config.moving_average_eps)

    def outputs(self, num_actions: int) -> OutputSpec:
        return OutputSpec(flat={"logits": num_actions}, per_action={"q": self.config.num_bins})

    def init_meta_state(self, agent_params: Params) -> CMPOState:
        like = next(iter(agent_params.values()))
        adv_state, td_state = (self.average.init_state(like.device, like.dtype) for _ in range(2))
        return CMPOState(adv_state, td_state, {name: param.detach().clone() for name, param in agent_params.items()})

    def unroll_meta_net(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: CMPOState,
        unroll_fn: UnrollFn,
        hyper_params: Mapping[str, float] | CMPOHyperParams | None = None,
        *,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[Targets, CMPOState]:
        """The improved policy, `pi` [T, B, A] as logits, and Retrace's errors; there is no network in it."""
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(CMPOHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]))
        slow = unrolled(unroll_fn(meta_state.target_params, rollout.observations, rollout.should_reset_mask_fwd)).outputs
        q_values, slow_q_values = self.encoding.to_scalar(rollout.agent_out["q"]), self.encoding.to_scalar(slow["q"])
        outs = retrace_estimates(rollout, q_values, slow_q_values, hyper.discount_factor, hyper.td_lambda)
        states = (meta_state.adv_ema_state, meta_state.td_ema_state)
        outs, adv_state, td_state = normalize_estimates(outs, *states, self.average, mean_across_processes)
        assert outs.adv is not None and outs.qv_adv is not None and outs.q_td is not None
        advantages = advantages_of_all(outs.qv_adv[:-1], outs.adv, rollout.actions[:-1])  # [T, B, A]
        scaled = self.average.normalize(advantages, adv_state, subtract_mean=False)
        improved = improved_logits(slow["logits"][:-1], scaled, hyper.improvement, hyper.clip)
        share = 1.0 - hyper.target_params_coeff
        target_params = {name: old.lerp(agent_params[name], share) for name, old in meta_state.target_params.items()}
        targets: Targets = {"pi": improved, "q_td": outs.q_td, "q_target": outs.q_target, "adv": outs.adv}
        targets["normalized_adv"] = outs.normalized_adv
        return targets, CMPOState(adv_state, td_state, target_params)

    def agent_loss(
        self,
        rollout: UpdateRuleInputs,
        meta_out: Targets,
        hyper_params: Mapping[str, float] | CMPOHyperParams | None = None,
        backprop: bool = False,
    ) -> tuple[Tensor, Logs]:
        """KL(target || pi) + c_q L_q - c_H H(pi), [T, B]. Gradients flow to `logits` and to `q` of the taken actions."""
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(CMPOHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]), rollout.taken_out)
        check_targets(meta_out, ("pi", "q_td", "q_target"))
        log_pi = torch.log_softmax(rollout.agent_out["logits"][:-1], dim=-1)
        # detached: targets are constants of the losses that use them.
        pi_loss = kl_of_logs(torch.log_softmax(meta_out["pi"].detach(), dim=-1), log_pi)
        q_loss = self.encoding.loss_from_target(taken(rollout, "q"), meta_out["q_target"].detach())
        entropy = entropy_of_logs(log_pi)
        with torch.no_grad():
            logs = {
                "entropy": entropy.mean(),
                "pi_loss": pi_loss.mean(),
                "q_loss": q_loss.mean(),
                "td": meta_out["q_td"].mean(),
                "pi_hat_entropy": entropy_of_logs(torch.log_softmax(meta_out["pi"], dim=-1)).mean(),
            }
        return pi_loss + hyper.value_cost * q_loss - hyper.entropy_cost * entropy, logs
