"""One update of an agent: rollout -> outputs -> targets -> losses -> gradients -> parameters.

Targets are computed once. Usually one gradient step on all steps follows; with `epochs` and `minibatches`, several do, each
on a random part of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from disco_torch.checks import check_least
from disco_torch.data import check_rollout, masked_mean, memory_resets, rule_inputs
from disco_torch.optim import AdamConfig, AdamState, adam_init, adam_update, apply_updates, clip_by_norm, global_norm
from disco_torch.rules import UpdateRule, resolve_hyper_params
from disco_torch.training.learning_agent import LearningAgent
from disco_torch.training.minibatches import (
    StepTable,
    check_gradient_steps,
    draw_orders,
    inputs_of,
    make_table,
    minibatches_of,
    resets_of,
    rows_of,
)
from disco_torch.training.over_processes import over_processes
from disco_torch.types import (
    AgentOutput,
    LearningOutputs,
    Logs,
    MeanAcrossProcesses,
    Observations,
    Params,
    Rollout,
    Summarizer,
    Targets,
    UpdateRuleInputs,
    ValueOuts,
    tree_dataclass,
    tree_map,
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
      epochs: times that an update goes through the steps of its batch, with the same targets.
      minibatches: parts that these steps are divided into at random in each epoch, with a gradient step on each; whole
        trajectories, where the agent has a memory.
      max_gradient_norm: bound on the norm of the gradient, which is scaled down to it; 0 for none.
      burn_in: first steps of each trajectory that only warm up the agent's memory and are left out of the loss. Gradients
        still flow through the memory there, from the steps that count.
    """

    agent: LearningAgent
    rule: UpdateRule
    optimizer: AdamConfig = field(default_factory=AdamConfig)
    hyper_params: Any = None
    epochs: int = 1
    minibatches: int = 1
    max_gradient_norm: float = 0.0
    burn_in: int = 0

    def __post_init__(self) -> None:
        check_gradient_steps(self.epochs, self.minibatches, self.max_gradient_norm)
        check_least("burn_in", self.burn_in, 0)

    @property
    def in_one_step(self) -> bool:
        """Whether an update is one gradient step on all steps of its batch."""
        return self.epochs * self.minibatches == 1

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
        generator: torch.Generator | None = None,
    ) -> tuple[LearnerState, Logs]:
        """One update: targets, and a gradient step towards them or, with epochs and minibatches, several.

        In one step, one pass of the agent serves the rule's inputs, as constants, and the loss. Nothing in the result has a
        graph.

        Args:
          state: before the step.
          rollout: [T+1, B] rows.
          value_out: estimates of a value function beside the agent, for rules that use one.
          learning_rate: replaces the optimiser's, for schedules.
          mean_across_processes: averages statistics and gradients where a batch is split over processes, in parts of the
            same size. The update is that of the whole batch; with minibatches, each is the union of the processes' parts.
          generator: source of the minibatches' order.
        """
        if not self.in_one_step:
            state, table = self.prepare(state, rollout, value_out=value_out, mean_across_processes=mean_across_processes)

            def step(state: LearnerState, part: StepTable) -> tuple[LearnerState, Logs]:
                return self.minibatch_step(state, part, learning_rate, mean_across_processes)

            return self.gradient_steps(state, table, step, generator)
        check_rollout(rollout)
        resets = memory_resets(rollout)
        params = {name: param.detach().requires_grad_() for name, param in state.params.items()}
        summarizer = self.rule.summarizer()
        with torch.enable_grad():
            learning = self.agent.learning_outputs(params, rollout, resets, summarizer)
            inputs = self.inputs(rollout, learning, value_out)
            with torch.no_grad():  # the targets are constants of the agent's gradient
                targets, meta_state = self.targets(
                    state.params, state.meta_state, rollout, inputs, None, mean_across_processes, summarizer
                )
            loss, logs = self.loss(inputs, targets, backprop=False)
            gradients = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            grads, logs = self._of_all(dict(zip(params, gradients, strict=True)), logs, inputs, mean_across_processes)
            new_state, norms = self._step(state, grads, meta_state, learning_rate)
        return tree_map(torch.Tensor.detach, new_state), logs | norms

    def prepare(
        self,
        state: LearnerState,
        rollout: Rollout,
        *,
        value_out: ValueOuts | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[LearnerState, StepTable]:
        """The first half of an update with minibatches: the rule's next state, and all steps with their targets."""
        check_rollout(rollout)
        summarizer = self.rule.summarizer()
        with torch.no_grad():
            learning = self.agent.learning_outputs(state.params, rollout, memory_resets(rollout), summarizer)
            inputs = self.inputs(rollout, learning, value_out)
            targets, meta_state = self.targets(
                state.params, state.meta_state, rollout, inputs, None, mean_across_processes, summarizer
            )
        return LearnerState(state.params, state.opt_state, meta_state), make_table(inputs, targets, rollout.first_state)

    def gradient_steps(
        self,
        state: LearnerState,
        table: StepTable,
        step: Callable[[LearnerState, StepTable], tuple[LearnerState, Logs]],
        generator: torch.Generator | None = None,
    ) -> tuple[LearnerState, Logs]:
        """The second half: a step for each minibatch of each epoch. The logs are means over these steps.

        Args:
          state, table: from `prepare`.
          step: `minibatch_step`, or a recording of it.
          generator: source of the minibatches' order.
        """
        sums: Logs = {}
        for order in draw_orders(self.epochs, table.num_lines, generator, table.inputs.rewards.device):
            for part in minibatches_of(table, order, self.minibatches):
                state, logs = step(state, part)
                sums = {name: sums[name] + value if name in sums else value.clone() for name, value in logs.items()}
        return state, {name: value / (self.epochs * self.minibatches) for name, value in sums.items()}

    def minibatch_step(
        self,
        state: LearnerState,
        table: StepTable,
        learning_rate: float | Tensor | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[LearnerState, Logs]:
        """One gradient step on some steps of a rollout; a pure function, which can be recorded."""
        params = {name: param.detach().requires_grad_() for name, param in state.params.items()}
        with torch.enable_grad():
            inputs, targets = inputs_of(table, self.agent.taken_outputs(params, rows_of(table), resets_of(table)))
            loss, logs = self.loss(inputs, targets, backprop=False)
            gradients = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            grads, logs = self._of_all(dict(zip(params, gradients, strict=True)), logs, inputs, mean_across_processes)
            new_state, norms = self._step(state, grads, state.meta_state, learning_rate)
        return tree_map(torch.Tensor.detach, new_state), logs | norms

    def differentiable_update(
        self,
        state: LearnerState,
        rollout: Rollout,
        rule_params: Params,
        *,
        learning_rate: float | Tensor | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[LearnerState, Logs, Targets, AgentOutput]:
        """The same update as a function of `rule_params` and `state`, for meta-gradients.

        Returns:
          State and logs as `update`, the rule's targets, and the agent's outputs from before the update.
        """
        states, logs, targets, out = self.differentiable_steps(
            state, rollout, rule_params, learning_rate=learning_rate, mean_across_processes=mean_across_processes
        )
        return states[-1], logs, targets, out

    def differentiable_steps(
        self,
        state: LearnerState,
        rollout: Rollout,
        rule_params: Params,
        *,
        learning_rate: float | Tensor | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[list[LearnerState], Logs, Targets, AgentOutput]:
        """`differentiable_update` with the states after each of its gradient steps, of which there are `epochs`.

        Each step is on all of the batch, and the policy whose prediction an agent learns is that of the present parameters;
        in `update` it is that from before the first step.
        """
        if self.minibatches > 1 or self.max_gradient_norm:
            raise ValueError(
                f"`minibatches` must be 1 and `max_gradient_norm` 0 in a differentiable update, got {self.minibatches} and "
                f"{self.max_gradient_norm}; use `epochs` for several gradient steps."
            )
        check_rollout(rollout)
        agent_out, _ = self.agent.unroll(state.params, rollout.observations, memory_resets(rollout), rollout.first_state)
        inputs = self.inputs(rollout, agent_out)
        targets, meta_state = self.targets(
            state.params, state.meta_state, rollout, inputs, rule_params, mean_across_processes
        )
        states: list[LearnerState] = []
        all_logs: list[Logs] = []
        for _ in range(self.epochs):
            # The targets are an argument that is not differentiated: constants of the inner gradient, yet in the graph of
            # the meta-gradient. Computed inside of the loss they would leak into the agent's gradient.
            grads, logs = grad(self.loss_of_params, has_aux=True)(state.params, rollout, targets)
            grads, logs = self._of_all(grads, logs, inputs, mean_across_processes)
            state, norms = self._step(state, grads, meta_state, learning_rate)
            states.append(state)
            all_logs.append(logs | norms)
        if self.epochs > 1:
            all_logs = [{name: torch.stack([each[name] for each in all_logs]).mean(0) for name in all_logs[0]}]
        return states, all_logs[0], targets, agent_out

    def loss_of_params(self, params: Params, rollout: Rollout, targets: Targets) -> tuple[Tensor, Logs]:
        """The loss as a function of the agent's parameters, given targets; outputs per action at the taken actions alone."""
        outputs = self.agent.taken_outputs(params, rollout, memory_resets(rollout))
        return self.loss(self.inputs(rollout, outputs), targets, backprop=True)

    def inputs(
        self, rollout: Rollout, outputs: AgentOutput | LearningOutputs, value_out: ValueOuts | None = None
    ) -> UpdateRuleInputs:
        """What the rule and the losses see of a rollout."""
        return rule_inputs(rollout, outputs, value_out, self.burn_in)

    def targets(
        self,
        params: Params,
        meta_state: Any,
        rollout: Rollout,
        inputs: UpdateRuleInputs,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
        summarizer: Summarizer | None = None,
    ) -> tuple[Targets, Any]:
        """The rule's targets and next state. Gradients flow to the rule's parameters, the inputs and the state.

        With a `summarizer` the rule reads a summary of the target network's outputs of all actions. It is computed with the
        rule's own parameters, so it does not go together with `rule_params`.
        """

        def unroll(params: Params, observations: Observations, should_reset: Tensor) -> LearningOutputs:
            return self.agent.summarized_outputs(params, observations, should_reset, rollout.first_state, summarizer)

        return self.rule.unroll_meta_net(
            inputs,
            params,
            meta_state,
            unroll,
            self._hyper(),
            rule_params=rule_params,
            mean_across_processes=mean_across_processes,
        )

    def loss(self, inputs: UpdateRuleInputs, targets: Targets, *, backprop: bool) -> tuple[Tensor, Logs]:
        """Both losses, averaged over the steps that count. Gradients flow to the agent's outputs in `inputs`."""
        loss, logs = self.rule.agent_loss(inputs, targets, self._hyper(), backprop)
        loss_no_meta, logs_no_meta = self.rule.agent_loss_no_meta(inputs, targets, self._hyper())
        assert inputs.loss_mask is not None  # `rule_inputs` has put it there
        total = masked_mean(loss + loss_no_meta, inputs.loss_mask)
        return total, {"total_loss": total.detach(), **logs, **logs_no_meta}

    def _of_all(
        self, grads: Params, logs: Logs, inputs: UpdateRuleInputs, mean_across_processes: MeanAcrossProcesses | None
    ) -> tuple[Params, Logs]:
        """Gradients and loss over the steps of all processes; the other logs stay those of this one."""
        if mean_across_processes is None:
            return grads, logs
        assert inputs.loss_mask is not None
        grads, loss = over_processes(grads, logs["total_loss"], inputs.loss_mask, mean_across_processes)
        return grads, logs | {"total_loss": loss}

    def _step(
        self, state: LearnerState, grads: Params, meta_state: Any, learning_rate: float | Tensor | None
    ) -> tuple[LearnerState, Logs]:
        with torch.no_grad():
            norms = {"global_gradient_norm": global_norm(grads)}
        if self.max_gradient_norm:
            grads = clip_by_norm(grads, norms["global_gradient_norm"], self.max_gradient_norm)
        changes, opt_state = adam_update(grads, state.opt_state, state.params, self.optimizer, learning_rate)
        with torch.no_grad():
            norms["global_update_norm"] = global_norm(changes)
        return LearnerState(apply_updates(state.params, changes), opt_state, meta_state), norms

    def _hyper(self) -> Any:
        return resolve_hyper_params(self.rule.hyper_params_type, self.hyper_params)
