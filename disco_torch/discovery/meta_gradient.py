"""The gradient of the meta-loss through an agent's updates, with respect to the rule's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from disco_torch.data import memory_resets
from disco_torch.discovery.meta_loss import MetaLossWeights, meta_loss
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, Targets, ValueOuts, tree_map


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
    ) -> MetaGradient:
        """One inner update a training rollout, then the meta-loss on the validation rollout.

        Args:
          rule_params: as `rule.named_parameters()` names them.
          learner_state: the agent before the updates.
          value_state: the value function before its updates, one beside each of the agent's.
          train: N rollouts.
          valid: the rollout to judge the final agent on.
        """
        # detached: the gradient is of these updates alone; what came before is history.
        eta = {name: param.detach().requires_grad_() for name, param in rule_params.items()}
        state = tree_map(torch.Tensor.detach, learner_state)
        all_targets: list[Targets] = []
        agent = self.learner.agent
        with torch.enable_grad():
            for rollout in train:
                with torch.no_grad():
                    out, _ = agent.unroll(state.params, rollout.observations, memory_resets(rollout), rollout.first_state)
                    value_state, _, _ = self.value_function.update(value_state, rollout, out["logits"])
                state, _, targets = self.learner.differentiable_update(state, rollout, eta)
                all_targets.append(targets)
            out, _ = agent.unroll(state.params, valid.observations, memory_resets(valid), valid.first_state)
            with torch.no_grad():
                value_out, *_ = self.value_function.estimate(value_state, valid, out["logits"])
            loss, logs = meta_loss(valid, out, value_out, all_targets, self.weights)
            grads = torch.autograd.grad(loss, list(eta.values()), allow_unused=True, materialize_grads=True)
        state = tree_map(torch.Tensor.detach, state)
        return MetaGradient(dict(zip(eta, grads, strict=True)), state, value_state, value_out, logs)
