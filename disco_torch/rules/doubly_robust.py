"""Doubly robust policy improvement, as a rule: the target is the present policy, moved by estimates of all advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from disco_torch.checks import check_between, check_least, check_positive
from disco_torch.rules.base import (
    UpdateRule,
    check_outputs,
    check_rule_inputs,
    check_targets,
    resolve_hyper_params,
    retrace_estimates,
    taken,
)
from disco_torch.rules.improvement import doubly_robust_push
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
from disco_torch.values import MovingAverage, ValueEncoding


@dataclass(frozen=True)
class DoublyRobustHyperParams:
    """Weights of the losses and constants of the targets."""

    push: float = 1.0
    """Factor of what advantages add to the policy; a larger one changes it faster."""
    clip_range: float = 0.2
    """How far pi/mu may leave 1 before a step no longer counts, as in PPO."""
    clip: float = 3.0
    """Largest absolute value of an advantage, in deviations."""
    least_deviation: float = 0.1
    """Advantages are divided by their moving deviation, or by this where it is larger."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""
    value_cost: float = 0.5
    """Weight of the action values' loss."""
    td_lambda: float = 0.95
    """Trace parameter of Retrace."""
    discount_factor: float = 0.99
    """Discount of the returns."""

    def __post_init__(self) -> None:
        for name in ("td_lambda", "discount_factor"):
            check_between(name, getattr(self, name), 0.0, 1.0)
        for name in ("push", "clip_range", "clip"):
            check_positive(name, getattr(self, name))
        check_least("least_deviation", self.least_deviation, 0.0)


@dataclass(frozen=True)
class DoublyRobustConfig:
    """The action values' form, and the average that their advantages are normalised with.

    One output for a value, by default: agents with distributions over bins start to explore later where rewards are rare.
    """

    num_bins: int = 1
    max_abs_value: float = 10.0
    moving_average_decay: float = 0.99
    moving_average_eps: float = 1e-6


@tree_dataclass
class DoublyRobustState:
    """What is known of the scale of an agent's advantages."""

    adv_ema_state: EmaState


class DoublyRobust(UpdateRule):
    """Policy improvement by action values, corrected by what was observed: see `doubly_robust_push`.

        L = KL(pi_old || pi) - sum_a push(a) log pi(a) + c_q L_q - c_H H(pi)

    whose minimum over many steps is the mean of pi_old + push. Action values learn from Retrace. It is meant for several
    gradient steps on the same targets: see `Learner.epochs` and `Learner.minibatches`.
    """

    hyper_params_type: ClassVar[type] = DoublyRobustHyperParams

    def __init__(self, config: DoublyRobustConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DoublyRobustConfig()
        self.encoding = ValueEncoding(config.num_bins, config.max_abs_value, nonlinear=config.num_bins > 1)
        self.average = MovingAverage(config.moving_average_decay, config.moving_average_eps)

    def outputs(self, num_actions: int) -> OutputSpec:
        return OutputSpec(flat={"logits": num_actions}, per_action={"q": self.config.num_bins})

    def init_meta_state(self, agent_params: Params) -> DoublyRobustState:
        like = next(iter(agent_params.values()))
        return DoublyRobustState(self.average.init_state(like.device, like.dtype))

    def unroll_meta_net(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: DoublyRobustState,
        unroll_fn: UnrollFn,
        hyper_params: Mapping[str, float] | DoublyRobustHyperParams | None = None,
        *,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[Targets, DoublyRobustState]:
        """The present policy `pi` as logits and the `push` on it, [T, B, A] each, and Retrace's returns; all constants."""
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(DoublyRobustHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]))
        q_values = self.encoding.to_scalar(rollout.agent_out["q"]).detach()  # detached: they make targets
        outs = retrace_estimates(rollout, q_values, q_values, hyper.discount_factor, hyper.td_lambda)
        assert outs.adv is not None and outs.qv_adv is not None and outs.q_td is not None
        adv_state = self.average.update_state(outs.adv, meta_state.adv_ema_state, mean_across_processes)
        of_all, of_taken = (
            self.average.normalize(each, adv_state, subtract_mean=False, least_deviation=hyper.least_deviation)
            for each in (outs.qv_adv[:-1], outs.adv)
        )
        logits, behaviour = rollout.agent_out["logits"][:-1].detach(), rollout.behaviour_logits()[:-1]
        push = doubly_robust_push(logits, behaviour, rollout.actions[:-1], of_all, of_taken, hyper.clip_range, hyper.clip)
        targets: Targets = {"pi": logits, "push": hyper.push * push, "q_td": outs.q_td, "q_target": outs.q_target}
        return targets | {"adv": outs.adv, "normalized_adv": of_taken}, DoublyRobustState(adv_state)

    def agent_loss(
        self,
        rollout: UpdateRuleInputs,
        meta_out: Targets,
        hyper_params: Mapping[str, float] | DoublyRobustHyperParams | None = None,
        backprop: bool = False,
    ) -> tuple[Tensor, Logs]:
        """KL(pi_old || pi) - sum_a push(a) log pi(a) + c_q L_q - c_H H(pi), [T, B].

        Gradients flow to `logits` and to `q` of the taken actions.
        """
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(DoublyRobustHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]), rollout.taken_out)
        check_targets(meta_out, ("pi", "push", "q_td", "q_target"))
        log_pi = torch.log_softmax(rollout.agent_out["logits"][:-1], dim=-1)
        # detached: targets are constants of the losses that use them.
        kl = kl_of_logs(torch.log_softmax(meta_out["pi"].detach(), dim=-1), log_pi)
        pi_loss = kl - torch.sum(meta_out["push"].detach() * log_pi, dim=-1)
        q_loss = self.encoding.loss_from_target(taken(rollout, "q"), meta_out["q_target"].detach())
        entropy = entropy_of_logs(log_pi)
        with torch.no_grad():
            logs = {
                "entropy": entropy.mean(),
                "kl": kl.mean(),
                "pi_loss": pi_loss.mean(),
                "q_loss": q_loss.mean(),
                "td": meta_out["q_td"].mean(),
            }
        return pi_loss + hyper.value_cost * q_loss - hyper.entropy_cost * entropy, logs
