"""One update of an agent: rollout -> outputs -> targets -> losses -> gradients -> parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from disco_torch.agents import Agent
from disco_torch.data import (
    check_rollout,
    loss_mask,
    masked_mean,
    memory_resets,
    rule_inputs,
)
from disco_torch.optim import (
    AdamConfig,
    AdamState,
    adam_init,
    adam_update,
    apply_updates,
    global_norm,
)
from disco_torch.rules import UpdateRule, resolve_hyper_params
from disco_torch.types import (
    Logs,
    MeanAcrossProcesses,
    Observations,
    Params,
    Rollout,
    Targets,
    ValueOuts,
    tree_dataclass,
)


@tree_dataclass
class LearnerState:
    """All that changes when an agent learns: its parameters, the optimiser's moments and the rule's state."""

    params: Params
    opt_state: AdamState
    meta_state: Any


@dataclass(frozen=True)
class Learner:
    """An agent, the rule it learns with and the optimiser: `state = learner.init()`, `state, logs = learner.update(...)`.

    Attributes:
      agent: the architecture.
      rule: how it learns.
      optimizer: constants of Adam.
      hyper_params: the rule's dataclass, a dict, or None for the defaults.
    """

    agent: Agent
    rule: UpdateRule
    optimizer: AdamConfig = field(default_factory=AdamConfig)
    hyper_params: Any = None

    def init(self, generator: torch.Generator | None = None, params: Params | None = None) -> LearnerState:
        """The state at the beginning of a life, from fresh parameters or the given ones."""
        params = self.agent.init(generator) if params is None else params
        return LearnerState(params, adam_init(params), self.rule.init_meta_state(params))

    def update(
        self,
        state: LearnerState,
        rollout: Rollout,
        *,
        value_out: ValueOuts | None = None,
        learning_rate: float | Tensor | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[LearnerState, Logs]:
        """One step of learning from a rollout of [T+1, B] rows. Nothing in the result carries a graph."""
        state, logs, _ = self._update(state, rollout, None, False, value_out, learning_rate, mean_across_processes)
        return state, logs

    def differentiable_update(
        self,
        state: LearnerState,
        rollout: Rollout,
        rule_params: Params,
        *,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[LearnerState, Logs, Targets]:
        """The same step as a function of `rule_params`, for meta-gradients; also returns the targets."""
        return self._update(state, rollout, rule_params, True, None, None, mean_across_processes)

    def _update(
        self,
        state: LearnerState,
        rollout: Rollout,
        rule_params: Params | None,
        backprop: bool,
        value_out: ValueOuts | None,
        learning_rate: float | Tensor | None,
        mean_across_processes: MeanAcrossProcesses | None,
    ) -> tuple[LearnerState, Logs, Targets]:
        check_rollout(rollout)
        hyper = resolve_hyper_params(self.rule.hyper_params_type, self.hyper_params)
        resets, mask = memory_resets(rollout), loss_mask(rollout)

        def unroll(params: Params, observations: Observations, should_reset: Tensor) -> Any:
            return self.agent.unroll(params, observations, should_reset, rollout.first_state)

        def loss_fn(params: Params, targets: Targets) -> tuple[Tensor, Logs]:
            agent_out, _ = unroll(params, rollout.observations, resets)
            inputs = rule_inputs(rollout, agent_out, value_out)
            loss, logs = self.rule.agent_loss(inputs, targets, hyper, backprop)
            loss_no_meta, logs_no_meta = self.rule.agent_loss_no_meta(inputs, targets, hyper)
            total = masked_mean(loss + loss_no_meta, mask)
            return total, {"total_loss": total.detach(), **logs, **logs_no_meta}

        with torch.set_grad_enabled(backprop):
            agent_out, _ = unroll(state.params, rollout.observations, resets)
            targets, meta_state = self.rule.unroll_meta_net(
                rule_inputs(rollout, agent_out, value_out),
                state.params,
                state.meta_state,
                unroll,
                hyper,
                rule_params=rule_params,
                mean_across_processes=mean_across_processes,
            )
            # The targets are an argument that is not differentiated: constants of the inner gradient, yet in the graph of
            # the meta-gradient. Computed inside `loss_fn` they would leak into the agent's gradient.
            grads, logs = grad(loss_fn, has_aux=True)(state.params, targets)
            if mean_across_processes is not None:
                grads = {name: mean_across_processes(g) for name, g in grads.items()}
            changes, opt_state = adam_update(grads, state.opt_state, state.params, self.optimizer, learning_rate)
            params = apply_updates(state.params, changes)
        with torch.no_grad():
            logs |= {
                "global_gradient_norm": global_norm(grads.values()),
                "global_update_norm": global_norm(changes.values()),
            }
        return LearnerState(params, opt_state, meta_state), logs, targets
