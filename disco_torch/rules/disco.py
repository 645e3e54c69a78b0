"""The discovered rule: targets from a meta-network, losses that pull the agent towards them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from disco_torch.checks import check_between, check_shape
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
from disco_torch.rules.improvement import advantages_of_all, doubly_robust_push, improved_logits
from disco_torch.rules.losses import entropy_of_logs, kl_of_logs
from disco_torch.rules.meta_net import MetaNet, MetaNetConfig, MetaRNNState
from disco_torch.types import (
    ActionSummary,
    AgentOutput,
    EmaState,
    LearningOutputs,
    Logs,
    MeanAcrossProcesses,
    OutputSpec,
    Params,
    RuleEstimates,
    Summarizer,
    Targets,
    UnrollFn,
    UpdateRuleInputs,
    ValueOuts,
    tree_dataclass,
)
from disco_torch.values import (
    MovingAverage,
    ValueEncoding,
    normalize_estimates,
)

LEAST_DEVIATION = 0.1
"""Least deviation that an `advantage_push` divides advantages by. Once a task is solved they are little but noise."""


@dataclass(frozen=True)
class DiscoHyperParams:
    """Weights of the losses and constants of the targets; the defaults are the reference's."""

    pi_cost: float = 1.0
    y_cost: float = 1.0
    z_cost: float = 1.0
    value_cost: float = 0.2
    aux_policy_cost: float = 1.0
    target_params_coeff: float = 0.9
    value_fn_td_lambda: float = 0.95
    discount_factor: float = 0.997
    """Kept beside the others as in the reference; the rule discounts with its own `value_discount`, part of what it is."""

    def __post_init__(self) -> None:
        check_between("target_params_coeff", self.target_params_coeff, 0.0, 1.0)
        check_between("value_fn_td_lambda", self.value_fn_td_lambda, 0.0, 1.0)
        check_between("discount_factor", self.discount_factor, 0.0, 1.0)


@dataclass(frozen=True)
class DiscoConfig:
    """What a discovered rule is besides its weights; the defaults are Disco103's."""

    net: MetaNetConfig = field(default_factory=MetaNetConfig)
    value_discount: float = 0.997
    num_bins: int = 601
    max_abs_value: float = 300.0
    moving_average_decay: float = 0.99
    moving_average_eps: float = 1e-6
    improvement: float = field(default=0.0, metadata={"later": True})
    """Factor of the policy improvement that the meta-network corrects, see `improved_logits`; at 0, as in the paper, the
    meta-network makes the whole policy target. With a `policy_target_stddev` of 0 the correction is 0 at first."""

    advantage_push: float = field(default=0.0, metadata={"later": True})
    """Factor of what advantages add to the policy target by themselves, see `doubly_robust_push`; at 0, as in the paper,
    nothing. The meta-network then corrects the present policy, and estimates are the agent's, not those of its slow copy."""

    def __post_init__(self) -> None:
        check_between("value_discount", self.value_discount, 0.0, 1.0)
        if self.advantage_push < 0.0:
            raise ValueError(f"`advantage_push` must be at least 0, got {self.advantage_push}; 0 leaves it out.")
        if self.advantage_push and self.improvement:
            raise ValueError("`improvement` must be 0 with an `advantage_push`, got both; choose one of them.")
        if self.improvement < 0.0:
            raise ValueError(f"`improvement` must be at least 0, got {self.improvement}; 0 leaves it out.")


@tree_dataclass
class DiscoState:
    """What a discovered rule remembers of one agent's life."""

    rnn_state: MetaRNNState
    adv_ema_state: EmaState
    td_ema_state: EmaState
    target_params: Params


class DiscoUpdateRule(UpdateRule):
    """Oh et al., "Discovering state-of-the-art reinforcement learning algorithms", Nature 648 (2025).

    The agent has a policy, two free-form predictions y(s) and z(s, a), an action value q and a prediction of the next
    step's policy. The meta-network reads all of them along a rollout and returns targets for the first three; the fourth
    learns from Retrace, the fifth from the policy itself.
    """

    hyper_params_type: ClassVar[type] = DiscoHyperParams

    def __init__(self, config: DiscoConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DiscoConfig()
        self.encoding = ValueEncoding(config.num_bins, config.max_abs_value, nonlinear=config.num_bins > 1)
        self.average = MovingAverage(config.moving_average_decay, config.moving_average_eps)
        self.meta_net = MetaNet(config.net, config.num_bins)

    def outputs(self, num_actions: int) -> OutputSpec:
        size = self.config.net.prediction_size
        return OutputSpec(
            flat={"logits": num_actions, "y": size},
            per_action={"z": size, "aux_pi": num_actions, "q": self.config.num_bins},
        )

    def init_meta_state(self, agent_params: Params) -> DiscoState:
        """A new life: empty averages, and target parameters equal to the agent's."""
        like = self.meta_net.state_gate.weight
        return DiscoState(
            rnn_state=self.meta_net.initial_meta_rnn_state(),
            adv_ema_state=self.average.init_state(like.device, like.dtype),
            td_ema_state=self.average.init_state(like.device, like.dtype),
            target_params={name: param.detach().clone() for name, param in agent_params.items()},
        )

    def summarizer(self) -> Summarizer | None:
        return None if self.meta_net.needs_action_outputs else Summarizer(("z", "q"), self._summarize)

    def _summarize(self, outputs: AgentOutput) -> ActionSummary:
        z = outputs["z"]
        z_means = z.mean(dim=-1, dtype=self.meta_net.state_gate.weight.dtype)
        return ActionSummary(self.encoding.to_scalar(outputs["q"]), z_means, *self.meta_net.embed_z(z))

    def _q_values(self, out: LearningOutputs) -> Tensor:
        return self.encoding.to_scalar(out.outputs["q"]) if out.summary is None else out.summary.q_values

    def estimate(
        self,
        rollout: UpdateRuleInputs,
        target: LearningOutputs,
        meta_state: DiscoState,
        td_lambda: float,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[ValueOuts, EmaState, EmaState]:
        """Retrace estimates from the online and the target network's action values, under the online policy."""
        agent = LearningOutputs(rollout.agent_out, summary=rollout.agent_summary)
        q_values = self._q_values(agent)  # [T+1, B, A]
        target_q_values = q_values if self.config.advantage_push else self._q_values(target)
        outs = retrace_estimates(rollout, q_values, target_q_values, self.config.value_discount, td_lambda)
        states = (meta_state.adv_ema_state, meta_state.td_ema_state)
        return normalize_estimates(outs, *states, self.average, mean_across_processes)

    def unroll_meta_net(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: DiscoState,
        unroll_fn: UnrollFn,
        hyper_params: Mapping[str, float] | DiscoHyperParams | None = None,
        *,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[Targets, DiscoState]:
        """Targets `pi`, `y`, `z` and the value estimates; see `UpdateRule.unroll_meta_net`.

        The target parameters move towards `agent_params`, which are those before the coming update.
        """
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(DiscoHyperParams, hyper_params)
        asked = self.outputs(rollout.agent_out["logits"].shape[-1])
        # A summary takes the place of the outputs per action.
        check_outputs(rollout.agent_out, asked if rollout.agent_summary is None else OutputSpec(asked.flat, {}))
        target = unrolled(unroll_fn(meta_state.target_params, rollout.observations, rollout.should_reset_mask_fwd))
        values, adv_state, td_state = self.estimate(
            rollout, target, meta_state, hyper.value_fn_td_lambda, mean_across_processes
        )
        estimates = RuleEstimates(
            v_scalar=values.value,
            adv=values.adv,
            normalized_adv=values.normalized_adv,
            q=values.target_q_value,
            qv_adv=values.qv_adv,
            normalized_qv_adv=values.normalized_qv_adv,
            target_out=target.outputs,
            target_summary=target.summary,
        )
        inputs = dataclasses.replace(rollout, extra_from_rule=estimates)
        net_params: Params = {} if rule_params is None else net_part(rule_params)
        args = (inputs, meta_state.rnn_state, mean_across_processes)
        targets, rnn_state = functional_call(self.meta_net, net_params, args)
        if self.config.improvement:
            targets["pi"] = targets["pi"] + self._improved(rollout.actions[:-1], values, target, adv_state)
        if self.config.advantage_push:
            logits, behaviour = rollout.agent_out["logits"][:-1], rollout.behaviour_logits()[:-1]
            targets["pi"] = targets["pi"] + torch.log_softmax(logits, dim=-1)
            push = self._push(logits, behaviour, rollout.actions[:-1], values, adv_state)
            targets["push"] = self.config.advantage_push * push
        targets |= {
            "q_target": values.q_target,
            "adv": values.adv,
            "normalized_adv": values.normalized_adv,
            "qv_adv": values.qv_adv,
            "normalized_qv_adv": values.normalized_qv_adv,
            "q_value": values.q_value,
            "q_td": values.q_td,
            "normalized_q_td": values.normalized_q_td,
            "target_out": target.outputs,
        }
        share = 1.0 - hyper.target_params_coeff
        target_params = {name: old.lerp(agent_params[name], share) for name, old in meta_state.target_params.items()}
        return targets, DiscoState(rnn_state, adv_state, td_state, target_params)

    def _improved(self, actions: Tensor, values: ValueOuts, target: LearningOutputs, adv_state: EmaState) -> Tensor:
        """Logits of the target network's policy, improved by the estimated advantages, [T, B, A]."""
        assert values.adv is not None and values.qv_adv is not None
        advantages = advantages_of_all(values.qv_adv[:-1], values.adv, actions)
        scaled = self.average.normalize(advantages, adv_state, subtract_mean=False)
        return improved_logits(target.outputs["logits"][:-1], scaled, self.config.improvement)

    def _push(self, logits: Tensor, behaviour: Tensor, actions: Tensor, values: ValueOuts, adv_state: EmaState) -> Tensor:
        """What the estimated advantages add to the policy target, [T, B, A], a constant."""
        assert values.adv is not None and values.qv_adv is not None
        of_all, of_taken = (
            self.average.normalize(each, adv_state, subtract_mean=False, least_deviation=LEAST_DEVIATION)
            for each in (values.qv_adv[:-1], values.adv)
        )
        return doubly_robust_push(logits, behaviour, actions, of_all, of_taken)

    def agent_loss(
        self,
        rollout: UpdateRuleInputs,
        meta_out: Targets,
        hyper_params: Mapping[str, float] | DiscoHyperParams | None = None,
        backprop: bool = False,
    ) -> tuple[Tensor, Logs]:
        """KL from the targets to the agent's policy and predictions, and from the next policy to its prediction.

            L_t = c_pi KL(pi^ || pi) + c_y KL(y^ || y) + c_z KL(z^ || z(a)) + c_aux KL(pi_{t+1} || p(a)) [not terminal]

        With an `advantage_push` the policy's part is KL(pi^ || pi) - sum_a push(a) log pi(a).

        Args:
          rollout: with the outputs of the agent that is to learn.
          meta_out: from `unroll_meta_net`.
          hyper_params: costs.
          backprop: let meta-gradients flow to the targets; otherwise they are constants.

        Returns:
          [T, B] and logs. Gradients flow to the agent's outputs (`logits` of rows 1 to T, as a target, excepted).
        """
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(DiscoHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]), rollout.taken_out)
        check_targets(meta_out, ("pi", "y", "z"))
        T = rollout.rewards.shape[0]
        logits, y = rollout.agent_out["logits"][:-1], rollout.agent_out["y"][:-1]
        z, aux_pi = taken(rollout, "z"), taken(rollout, "aux_pi")  # [T, B, Y], [T, B, A]
        pi_hat, y_hat, z_hat = (meta_out[name] for name in ("pi", "y", "z"))
        if not backprop:
            # detached: outside of meta-training nothing learns through the targets.
            pi_hat, y_hat, z_hat = pi_hat.detach(), y_hat.detach(), z_hat.detach()
        # detached: the next policy is what is to be predicted, not moved.
        next_logits = rollout.agent_out["logits"][1:].detach()
        # Each logarithm is used by a loss and, below, by its log.
        log_pi, log_y, log_z, log_aux, log_pi_hat, log_next = (
            torch.log_softmax(x, dim=-1) for x in (logits, y, z, aux_pi, pi_hat, next_logits)
        )
        pi_loss = kl_of_logs(log_pi_hat, log_pi)
        if "push" in meta_out:
            pi_loss = pi_loss - torch.sum(meta_out["push"] * log_pi, dim=-1)
        y_loss = kl_of_logs(torch.log_softmax(y_hat, dim=-1), log_y)
        z_loss = kl_of_logs(torch.log_softmax(z_hat, dim=-1), log_z)
        aux_loss = kl_of_logs(log_next, log_aux) * rollout.continues()
        loss = hyper.pi_cost * pi_loss + hyper.y_cost * y_loss + hyper.z_cost * z_loss + hyper.aux_policy_cost * aux_loss
        summary = rollout.agent_summary
        with torch.no_grad():
            all_z = rollout.agent_out.get("z", z) if summary is None else summary.z_means
            logs = {
                "logits": logits.mean(),
                "y": y.mean(),
                "z": all_z[:T].mean(),
                "entropy": entropy_of_logs(log_pi).mean(),
                "y_entropy": entropy_of_logs(log_y).mean(),
                "z_entropy": entropy_of_logs(log_z).mean(),
                "pi_loss": pi_loss.mean(),
                "y_loss": y_loss.mean(),
                "z_loss": z_loss.mean(),
                "aux_kl_loss": aux_loss.mean(),
                "pi_hat": pi_hat.mean(),
                "y_hat": y_hat.mean(),
                "z_hat": z_hat.mean(),
                "pi_hat_entropy": entropy_of_logs(log_pi_hat).mean(),
                "aux_policy_entropy": entropy_of_logs(log_aux).mean(),
                "aux_target_entropy": entropy_of_logs(log_next).mean(),
            }
        return loss, logs

    def agent_loss_no_meta(
        self,
        rollout: UpdateRuleInputs,
        meta_out: Targets,
        hyper_params: Mapping[str, float] | DiscoHyperParams | None = None,
    ) -> tuple[Tensor, Logs]:
        """The action value's loss towards its Retrace target, [T, B]. Gradients flow to `q` of the taken actions."""
        hyper = resolve_hyper_params(DiscoHyperParams, hyper_params)
        check_outputs(rollout.agent_out, self.outputs(rollout.agent_out["logits"].shape[-1]), rollout.taken_out)
        check_targets(meta_out, ("q_td", "q_target", "q_value", "normalized_q_td"))
        q_taken = taken(rollout, "q")  # [T, B, V]
        check_shape("meta_out['q_td']", meta_out["q_td"], q_taken.shape[:2])
        # detached: the agent's value must not learn to please the meta-loss. Not `loss_from_td`: with several gradient steps
        # on the same targets, a target that is the present value plus the first error would run ahead of the value.
        q_loss = self.encoding.loss_from_target(q_taken, meta_out["q_target"].detach())
        with torch.no_grad():
            logs = {
                "q_target": meta_out["q_target"].mean(),
                "agent_q_mean": meta_out["q_value"].mean(),
                "q_loss": q_loss.mean(),
                "td": meta_out["q_td"].mean(),
                "normalized_td": meta_out["normalized_q_td"].mean(),
            }
        return hyper.value_cost * q_loss, logs


def net_part(rule_params: Params) -> Params:
    """The meta-network's parameters among a rule's, without the prefix that `rule.named_parameters()` puts before them."""
    return {name.removeprefix("meta_net."): param for name, param in rule_params.items()}
