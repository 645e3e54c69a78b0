"""Meta-gradients in mixed mode: the same gradient as the plain one, with the memory of one update instead of all.

In the forward pass the updates run without a graph; of each are saved its parameters, the rule's state and a vector of
Adam's. In the backward pass each update is recomputed on its own. Its inner gradient g = grad_theta L(theta, tau) must be
differentiated again, along the cotangent g_bar that Adam passes back:

    (d g / d theta)^T g_bar = d^2 L / d theta^2  g_bar,        (d g / d tau)^T g_bar = d^2 L / (d tau d theta)  g_bar

Both are ONE forward-mode derivative of (grad_theta L, grad_tau L) in the direction g_bar of theta, since second derivatives
commute: no backward pass through a backward pass, whose graph is what takes memory and time. What is left, the rule's
targets tau(eta, theta, state), is differentiated once, by a plain backward pass. "Scalable meta-learning via mixed-mode
differentiation", ICML 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp

from disco_torch.data import memory_resets
from disco_torch.discovery.meta_gradient import MetaGradient
from disco_torch.discovery.meta_loss import MetaLossWeights, meta_logs, target_regularizer, validation_loss
from disco_torch.optim import adam_backward, adam_gains
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, Targets, ValueOuts, tree_dataclass, tree_map

LEARNED_TARGETS = ("pi", "y", "z")


@tree_dataclass
class Cotangent:
    """The gradient of the meta-loss with respect to a learner's state; the second moments get none."""

    params: Params
    mu: Params
    meta_state: Any


@tree_dataclass
class SavedUpdate:
    """What the backward pass needs of an update.

    Attributes:
      params: the agent's parameters before each of the update's gradient steps.
      meta_state: the rule's state before the update.
      gains: Adam's gains (`adam_gains`) of each gradient step.
    """

    params: list[Params]
    meta_state: Any
    gains: list[Tensor]


@dataclass(frozen=True)
class MixedModeMetaGradient:
    """The interface of `PlainMetaGradient`; memory grows with the updates by their states alone.

    Three pure functions, which can be batched over agents and recorded: `inner_update` forward, `meta_loss_and_grad` at the
    end, and `backward_inner_update` backward.
    """

    learner: Learner
    value_function: ValueFunction
    weights: MetaLossWeights = field(default_factory=MetaLossWeights)

    @torch.no_grad()
    def __call__(
        self,
        rule_params: Params,
        learner_state: LearnerState,
        value_state: ValueFunctionState,
        train: Sequence[Rollout],
        valid: Rollout,
        learning_rate: float | Tensor | None = None,
    ) -> MetaGradient:
        """See `PlainMetaGradient`."""
        rule_params = {name: param.detach() for name, param in rule_params.items()}
        state: LearnerState = tree_map(Tensor.detach, learner_state)
        saved_updates = []
        for rollout in train:
            state, saved, logits, _ = self.inner_update(rule_params, state, rollout, learning_rate)
            value_state, _, _ = self.value_function.update(value_state, rollout, logits)
            saved_updates.append(saved)
        final = state
        value_out, *_ = self.value_function.estimate(value_state, valid, self._logits(final.params, valid))
        cotangent, validation, validation_logs = self.meta_loss_and_grad(final, valid, value_out)
        grads = {name: torch.zeros_like(param) for name, param in rule_params.items()}
        regularizers, regularizer_logs = [], []
        for n in range(len(train) - 1, -1, -1):
            # Popped: its memory can be freed.
            rule_bar, cotangent, regularizer, logs = self.backward_inner_update(
                rule_params, saved_updates.pop(), train[n], cotangent, 1.0 / len(train), learning_rate
            )
            grads = {name: total + rule_bar[name] for name, total in grads.items()}
            regularizers.append(regularizer)
            regularizer_logs.append(logs)
        logs = meta_logs(validation, validation_logs, torch.stack(regularizers).mean(), regularizer_logs)
        return MetaGradient(grads, final, value_state, value_out, logs)

    def inner_update(
        self, rule_params: Params, state: LearnerState, rollout: Rollout, learning_rate: float | Tensor | None = None
    ) -> tuple[LearnerState, SavedUpdate, Tensor, Logs]:
        """One update of the agent.

        Returns:
          The state after it, what the backward pass needs of it, the policy's logits before it, and logs.
        """
        states, logs, _, out = self.learner.differentiable_steps(state, rollout, rule_params, learning_rate=learning_rate)
        gains = [adam_gains(each.opt_state, self.learner.optimizer) for each in states]
        params = [each.params for each in (state, *states[:-1])]
        return states[-1], SavedUpdate(params, state.meta_state, gains), out["logits"], logs

    def meta_loss_and_grad(
        self, state: LearnerState, valid: Rollout, value_out: ValueOuts
    ) -> tuple[Cotangent, Tensor, Logs]:
        """The meta-loss on the validation rollout, without the regularisers of targets, and its gradient.

        Returns:
          The gradient with respect to the state, the loss, and logs.
        """

        def loss_fn(params: Params) -> tuple[Tensor, tuple[Tensor, Logs]]:
            out, _ = self.learner.agent.unroll(params, valid.observations, memory_resets(valid), valid.first_state)
            loss, logs = validation_loss(valid, out, value_out, self.weights)
            return loss, (loss.detach(), logs)

        params_bar, (loss, logs) = grad(loss_fn, has_aux=True)(state.params)
        zeros = tree_map(torch.zeros_like, (state.opt_state.mu, state.meta_state))
        return Cotangent(params_bar, *zeros), loss, logs

    def backward_inner_update(
        self,
        rule_params: Params,
        saved: SavedUpdate,
        rollout: Rollout,
        cotangent: Cotangent,
        regularizer_weight: float,
        learning_rate: float | Tensor | None = None,
    ) -> tuple[Params, Cotangent, Tensor, Logs]:
        """The backward pass through one update, from the cotangent of the state after it.

        Args:
          rule_params: those of the update.
          saved: of the update, from `inner_update`.
          rollout: that it learned from.
          cotangent: of the state after it.
          regularizer_weight: the weight of this update's regulariser in the meta-loss.
          learning_rate: of the update.

        Returns:
          The cotangents of the rule and of the state before the update, the regulariser and its logs.
        """
        targets_bar, cotangent = self._backward_step(rule_params, saved, rollout, cotangent, learning_rate)
        return self._backward_targets(rule_params, saved, rollout, targets_bar, cotangent, regularizer_weight)

    def _logits(self, params: Params, rollout: Rollout) -> Tensor:
        """The policy's alone; all outputs together are large."""
        out, _ = self.learner.agent.unroll(params, rollout.observations, memory_resets(rollout), rollout.first_state)
        return out["logits"]

    def _targets(self, rule_params: Params, params: Params, meta_state: Any, rollout: Rollout) -> tuple[Targets, Any]:
        agent_out, _ = self.learner.agent.unroll(params, rollout.observations, memory_resets(rollout), rollout.first_state)
        return self.learner.targets(params, meta_state, rollout, self.learner.inputs(rollout, agent_out), rule_params)

    def _backward_step(
        self,
        rule_params: Params,
        saved: SavedUpdate,
        rollout: Rollout,
        cotangent: Cotangent,
        learning_rate: float | Tensor | None,
    ) -> tuple[Params, Cotangent]:
        """From the cotangent of the state after an update to that of its targets, and of the state before it.

        Of the latter, `params` still lack the part that comes through the targets, and `meta_state` is passed on unchanged.
        """
        # Computed once more, without a graph: saved in the forward pass they would grow with the number of updates.
        with torch.no_grad():
            targets, _ = self._targets(rule_params, saved.params[0], saved.meta_state, rollout)
        targets.pop("target_out")  # large, and the losses do not read it

        def loss_fn(params: Params, learned: Params) -> Tensor:
            return self.learner.loss_of_params(params, rollout, targets | learned)[0]

        learned = {name: targets[name] for name in LEARNED_TARGETS}
        targets_bar = {name: torch.zeros_like(target) for name, target in learned.items()}
        for before, gains in zip(reversed(saved.params), reversed(saved.gains), strict=True):
            grads_bar, mu_bar, params_bar = adam_backward(
                cotangent.params, cotangent.mu, gains, self.learner.optimizer, learning_rate
            )
            pushed: Any = jvp(lambda params: grad(loss_fn, argnums=(0, 1))(params, learned), (before,), (grads_bar,))
            _, (curvature, from_step) = pushed
            targets_bar = {name: bar + from_step[name] for name, bar in targets_bar.items()}
            params_bar = {name: bar + curvature[name] for name, bar in params_bar.items()}
            cotangent = Cotangent(params_bar, mu_bar, cotangent.meta_state)
        return targets_bar, cotangent

    def _backward_targets(
        self,
        rule_params: Params,
        saved: SavedUpdate,
        rollout: Rollout,
        targets_bar: Params,
        cotangent: Cotangent,
        regularizer_weight: float,
    ) -> tuple[Params, Cotangent, Tensor, Logs]:
        """From the cotangents of the targets and of the rule's next state to those of the rule and of the state before."""

        def targets_fn(rule_params: Params, params: Params, meta_state: Any) -> tuple[Any, tuple[Tensor, Logs]]:
            targets, next_state = self._targets(rule_params, params, meta_state, rollout)
            regularizer, logs = target_regularizer(targets, self.weights)
            learned = {name: targets[name] for name in LEARNED_TARGETS}
            return (learned, next_state, regularizer_weight * regularizer), (regularizer.detach(), logs)

        pulled: Any = vjp(targets_fn, rule_params, saved.params[0], saved.meta_state, has_aux=True)
        _, pull_back, (regularizer, logs) = pulled
        one = torch.ones_like(regularizer)
        rule_bar, from_targets, meta_bar = pull_back((targets_bar, cotangent.meta_state, one))
        params_bar = {name: bar + from_targets[name] for name, bar in cotangent.params.items()}
        return rule_bar, Cotangent(params_bar, cotangent.mu, meta_bar), regularizer, logs
