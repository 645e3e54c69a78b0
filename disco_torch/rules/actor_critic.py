"""Actor-critic with V-trace, as a rule."""

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
)
from disco_torch.rules.losses import entropy, policy_gradient_loss
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
    estimate_values,
    importance_weights,
    normalize_estimates,
    scalar_values,
)


@dataclass(frozen=True)
class ActorCriticHyperParams:
    """Weights of the losses and constants of the returns; the defaults are the reference's."""

    discount_factor: float = 0.997
    vtrace_lambda: float = 0.95
    entropy_cost: float = 0.2
    pg_cost: float = 1.0
    value_cost: float = 0.5

    def __post_init__(self) -> None:
        check_between("discount_factor", self.discount_factor, 0.0, 1.0)
        check_between("vtrace_lambda", self.vtrace_lambda, 0.0, 1.0)


@dataclass(frozen=True)
class ActorCriticConfig:
    """The value's form and what is normalised; the defaults are the reference's settings.

    Attributes:
      num_bins: 1 for a scalar value, else a categorical one.
      max_abs_value: the range of the bins.
      nonlinear_value_transform: whether values live in the signed hyperbolic's space.
      normalize_adv, normalize_td: divide by a moving deviation.
      center_adv: also subtract the moving mean from normalised advantages. With replayed data this pushes down, where the
        mean is above 0, every action that the policy hardly takes any more: its importance weight, and so its advantage,
        is near 0.
    """

    num_bins: int = 601
    max_abs_value: float = 300.0
    nonlinear_value_transform: bool = True
    normalize_adv: bool = False
    normalize_td: bool = False
    moving_average_decay: float = 0.99
    moving_average_eps: float = 1e-6
    center_adv: bool = True

    def __post_init__(self) -> None:
        if self.normalize_td and self.num_bins != 1:
            raise ValueError(
                f"`normalize_td` needs a scalar value, `num_bins` = 1, got {self.num_bins}: "
                "a normalised TD error does not lie in the range of the bins."
            )


@tree_dataclass
class ActorCriticState:
    """Moments of advantages and of value errors."""

    adv_ema_state: EmaState
    td_ema_state: EmaState


class ActorCritic(UpdateRule):
    """Policy gradient with V-trace advantages, a value loss and an entropy bonus. Espeholt et al., "IMPALA" (2018)."""

    hyper_params_type: ClassVar[type] = ActorCriticHyperParams

    def __init__(self, config: ActorCriticConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or ActorCriticConfig()
        self.encoding = ValueEncoding(config.num_bins, config.max_abs_value, config.nonlinear_value_transform)
        self.average = MovingAverage(config.moving_average_decay, config.moving_average_eps)

    def outputs(self, num_actions: int) -> OutputSpec:
        return OutputSpec(flat={"logits": num_actions, "v": self.config.num_bins})

    def init_meta_state(self, agent_params: Params) -> ActorCriticState:
        like = next(iter(agent_params.values()))
        states = (self.average.init_state(like.device, like.dtype) for _ in range(2))
        return ActorCriticState(*states)

    def unroll_meta_net(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: ActorCriticState,
        unroll_fn: UnrollFn,
        hyper_params: Mapping[str, float] | ActorCriticHyperParams | None = None,
        *,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[Targets, ActorCriticState]:
        """Advantages and TD errors; there is no network in it."""
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(ActorCriticHyperParams, hyper_params)
        logits, actions = rollout.agent_out["logits"], rollout.actions[:-1]
        check_outputs(rollout.agent_out, self.outputs(logits.shape[-1]))
        values, _ = scalar_values(self.encoding, logits, rollout.agent_out["v"], None)
        outs = estimate_values(
            values,
            rollout.rewards,
            hyper.discount_factor * rollout.continues(),
            importance_weights(logits[:-1], rollout.behaviour_logits()[:-1], actions),
            rollout.lambdas(hyper.vtrace_lambda),
        )
        states = (meta_state.adv_ema_state, meta_state.td_ema_state)
        outs, adv_state, td_state = normalize_estimates(outs, *states, self.average, mean_across_processes)
        targets: Targets = {
            "raw_advs": outs.adv,
            "normalized_advs": self._normalized(outs.adv, adv_state),
            "value_target": outs.value_target,
            "values": outs.value,
            "tds": outs.td,
            "normalized_tds": outs.normalized_td,
        }
        return targets, ActorCriticState(adv_state, td_state)

    def _normalized(self, advs: Tensor | None, state: EmaState) -> Tensor:
        assert advs is not None
        return self.average.normalize(advs, state, subtract_mean=self.config.center_adv)

    def agent_loss(
        self,
        rollout: UpdateRuleInputs,
        meta_out: Targets,
        hyper_params: Mapping[str, float] | ActorCriticHyperParams | None = None,
        backprop: bool = False,
    ) -> tuple[Tensor, Logs]:
        """c_pg (-log pi(a) A) + c_v L_value - c_H H(pi), [T, B]. Gradients flow to `logits` and `v`."""
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(ActorCriticHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]))
        check_targets(meta_out, ("raw_advs", "normalized_advs", "tds", "normalized_tds", "values"))
        logits = rollout.agent_out["logits"][:-1]
        advs = meta_out["normalized_advs" if self.config.normalize_adv else "raw_advs"]
        tds = meta_out["normalized_tds" if self.config.normalize_td else "tds"]
        # detached: returns are constants of the losses that use them. The error is added to the value that it was an error
        # of, so that several gradient steps on the same targets have one goal.
        value_target = (meta_out["values"][:-1] + tds).detach()
        value_loss = self.encoding.loss_from_target(rollout.agent_out["v"][:-1], value_target)
        pg_loss = policy_gradient_loss(logits, rollout.actions[:-1], advs)
        policy_entropy = entropy(logits)
        loss = hyper.pg_cost * pg_loss + hyper.value_cost * value_loss - hyper.entropy_cost * policy_entropy
        with torch.no_grad():
            logs = {
                "logits": logits.mean(),
                "entropy": policy_entropy.mean(),
                "pg_advs": advs.mean(),
                "raw_advs": meta_out["raw_advs"].mean(),
                "avg_value": meta_out["values"].mean(),
                "pg_loss": pg_loss.mean(),
                "value_loss": value_loss.mean(),
            }
        return loss, logs
