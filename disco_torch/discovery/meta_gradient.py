"""The gradient of the meta-loss through one agent's updates, with respect to the rule's parameters: its definition.

A discovery computes the same for a population, batched and in mixed mode (`inner_loop.meta_update`), and is checked against
this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from disco_torch.data import memory_resets
from disco_torch.discovery.meta_loss import MetaLossWeights, meta_logs, target_regularizer, validation_loss
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, ValueOuts, tree_map


@dataclass(frozen=True)
class MetaGradient:
    """What one agent contributes to a meta-update."""

    grads: Params
    learner_state: LearnerState
    value_state: ValueFunctionState
    value_out: ValueOuts
    logs: Logs


@dataclass(frozen=True)
class PlainMetaGradient:
    """Autograd through all inner updates: simple, and its memory grows with the activations of all of them."""

    learner: Learner
    value_function: ValueFunction
    weights: MetaLossWeights = field(default_factory=MetaLossWeights)

    def __call__(
        self,
        rule_params: Params,
        learner_state: LearnerState,
        value_state: ValueFunctionState,
        train: Sequence[Rollout],
        valid: Rollout,
        learning_rate: float | torch.Tensor | None = None,
    ) -> MetaGradient:
        """One inner update a training rollout, then the meta-loss on the validation rollout.

        Args:
          rule_params: as `rule.named_parameters()` names them.
          learner_state: the agent before the updates.
          value_state: the value function before the updates; each update of the agent is followed by one of it.
          train: N rollouts.
          valid: the rollout on which the final agent's meta-loss is computed.
          learning_rate: the agent's learning rate; defaults to its optimiser's.
        """
        # detached: the gradient is of these updates alone; what came before is constant.
        rule_params = {name: param.detach().requires_grad_() for name, param in rule_params.items()}
        state = tree_map(torch.Tensor.detach, learner_state)
        regularizers, regularizer_logs = [], []
        agent = self.learner.agent
        with torch.enable_grad():
            for rollout in train:
                state, _, targets, out = self.learner.differentiable_update(
                    state, rollout, rule_params, learning_rate=learning_rate
                )
                with torch.no_grad():
                    value_state, _, _ = self.value_function.update(value_state, rollout, out["logits"])
                regularizer, parts = target_regularizer(targets, self.weights)
                regularizers.append(regularizer)
                regularizer_logs.append(parts)
            out, _ = agent.unroll(state.params, valid.observations, memory_resets(valid), valid.first_state)
            with torch.no_grad():
                value_out, *_ = self.value_function.estimate(value_state, valid, out["logits"])
            validation, validation_logs = validation_loss(valid, out, value_out, self.weights)
            regularizer = torch.stack(regularizers).mean()
            gradients = torch.autograd.grad(
                validation + regularizer, list(rule_params.values()), allow_unused=True, materialize_grads=True
            )
        grads = dict(zip(rule_params, gradients, strict=True))
        logs = meta_logs(validation, validation_logs, regularizer, regularizer_logs)
        state = tree_map(torch.Tensor.detach, state)
        return MetaGradient(grads, state, value_state, value_out, logs)
