"""A rule with everything that its targets depend on, and how these targets push the agent."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from disco_torch.data import memory_resets, rule_inputs
from disco_torch.rules import UpdateRule, resolve_hyper_params
from disco_torch.training import Learner
from disco_torch.types import AgentOutput, Params, Rollout, Targets, UpdateRuleInputs, ValueOuts
from disco_torch.values import ValueEncoding, expected_q, select_action

PUSHED = {"logits": "policy", "y": "y", "z": "z", "q": "value", "v": "value"}
"""The agent's outputs that are looked at, and what they are called here. `aux_pi` learns from the policy alone."""

Moves = dict[str, Tensor]
"""How far the target of each output has moved in each step, [T, B], by the names of `PUSHED`."""


@dataclass(frozen=True)
class RuleCase:
    """A rule, and all that its targets for a rollout depend on. A counterfactual is the same case with something replaced.

    Attributes:
      rule: the rule.
      inputs: what it sees of the rollout, [T, B] steps, with the agent's outputs of all actions.
      params: the agent's parameters.
      meta_state: the rule's state.
      target_out: outputs of the slow copy of the agent that the rule keeps, [T+1, B, ...] each; None where it keeps none.
      hyper_params: the rule's dataclass.
    """

    rule: UpdateRule
    inputs: UpdateRuleInputs
    params: Params
    meta_state: Any
    target_out: AgentOutput | None
    hyper_params: Any

    @property
    def counted(self) -> Tensor:
        """[T, B] bool, the steps that the agent learns from."""
        mask = self.inputs.loss_mask
        return torch.ones_like(self.inputs.rewards, dtype=torch.bool) if mask is None else mask > 0

    @property
    def encoding(self) -> ValueEncoding:
        """How the agent's value outputs stand for scalars; as they are, where the rule does not say."""
        return getattr(self.rule, "encoding", ValueEncoding())

    @cached_property
    def targets(self) -> Targets:
        """The rule's targets for the rollout, constants."""
        return self.look()[0]

    def look(self) -> tuple[Targets, Any]:
        """The rule's targets, and its next state."""
        with torch.no_grad():
            return self.rule.unroll_meta_net(
                self.inputs, self.params, self.meta_state, lambda *_: self.target_out, self.hyper_params
            )

    @cached_property
    def pushes(self) -> dict[str, Tensor]:
        """Minus the gradient of each step's loss by the agent's outputs: where the rule pushes them, [T, B, size] each.

        For a loss that is a KL divergence this is the target's probabilities minus the agent's. Of outputs per action these
        are the taken ones, the only ones that learn.
        """
        return self.pushes_towards(self.targets)

    def pushes_towards(self, targets: Targets) -> dict[str, Tensor]:
        """The same for other targets: the agent stays as it is, so that two pushes differ by their targets alone."""
        names = [name for name in PUSHED if name in self.inputs.agent_out]
        outputs = {name: self.inputs.agent_out[name].detach().requires_grad_() for name in names}
        inputs = dataclasses.replace(self.inputs, agent_out=self.inputs.agent_out | outputs)
        with torch.enable_grad():
            loss, _ = self.rule.agent_loss(inputs, targets, self.hyper_params)
            further, _ = self.rule.agent_loss_no_meta(inputs, targets, self.hyper_params)
            gradients = torch.autograd.grad(
                (loss + further).sum(), list(outputs.values()), allow_unused=True, materialize_grads=True
            )
        steps = [-gradient[:-1] for gradient in gradients]  # [T, B, size] or [T, B, A, size]
        taken = [x if x.ndim == 3 else select_action(x, self.inputs.actions[:-1]) for x in steps]
        return {PUSHED[name]: x for name, x in zip(names, taken, strict=True)}

    def moves(self, changed: RuleCase) -> Moves:
        """How far the targets move when the rule reads the changed case instead, while the agent stays as it is.

        For a KL loss of weight 1 the move is the total variation distance between the two targets, from 0 to 1.
        """
        after = self.pushes_towards(changed.targets)
        return {name: half_distance(after[name], push) for name, push in self.pushes.items()}

    @cached_property
    def action_values(self) -> Tensor | None:
        """The agent's action values, [T+1, B, A]; None where it has none."""
        q = self.inputs.agent_out.get("q")
        return None if q is None else self.encoding.to_scalar(q)

    @cached_property
    def values(self) -> Tensor | None:
        """The agent's values of the states, [T+1, B]; None where it has neither values nor action values."""
        v = self.inputs.agent_out.get("v")
        if v is not None:
            return self.encoding.to_scalar(v)
        return None if self.action_values is None else expected_q(self.inputs.agent_out["logits"], self.action_values)

    def with_inputs(self, **changes: Any) -> RuleCase:
        """The case with other fields of its `inputs`."""
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, **changes))

    def with_output(self, name: str, x: Tensor) -> RuleCase:
        """The case with another output of the agent."""
        return self.with_inputs(agent_out=self.inputs.agent_out | {name: x})

    def with_target_output(self, name: str, x: Tensor) -> RuleCase:
        """The case with another output of the agent's slow copy."""
        return dataclasses.replace(self, target_out=(self.target_out or {}) | {name: x})


def half_distance(a: Tensor, b: Tensor) -> Tensor:
    """1/2 ||a - b||_1, [T, B, size] twice -> [T, B]; of two distributions their total variation distance."""
    return 0.5 * (a - b).abs().sum(-1)


def make_case(
    learner: Learner, params: Params, meta_state: Any, rollout: Rollout, value_out: ValueOuts | None = None
) -> RuleCase:
    """The case of an agent at a moment of its life.

    Args:
      learner: agent and rule.
      params: the agent's parameters.
      meta_state: the rule's state.
      rollout: [T+1, B] rows, as the learner would get them.
      value_out: estimates of a value function outside of the rule, for rules that use one.
    """
    asked: list[AgentOutput] = []

    def unroll(params: Params, *_: Any) -> AgentOutput:
        outputs, _ = learner.agent.unroll(params, rollout.observations, memory_resets(rollout), rollout.first_state)
        asked.append(outputs)
        return outputs

    hyper_params = resolve_hyper_params(learner.rule.hyper_params_type, learner.hyper_params)
    with torch.no_grad():
        inputs = rule_inputs(rollout, unroll(params), value_out)
        learner.rule.unroll_meta_net(inputs, params, meta_state, unroll, hyper_params)
    return RuleCase(learner.rule, inputs, params, meta_state, asked[1] if len(asked) > 1 else None, hyper_params)
