"""Other rules on the same agent and the same rollouts, to stand beside the one that is looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from disco_torch.inspection.case import RuleCase
from disco_torch.inspection.edits import fresh_rule
from disco_torch.rules import (
    ActorCritic,
    ActorCriticHyperParams,
    DoublyRobust,
    DoublyRobustConfig,
    DoublyRobustHyperParams,
    UpdateRule,
    discount_of,
)
from disco_torch.types import AgentOutput
from disco_torch.weights import default_hyper_params
from disco_torch.weights.registry import SCALAR_ACTOR_CRITIC


@dataclass(frozen=True)
class Peer:
    """A rule beside another.

    Attributes:
      name: for tables.
      rule, hyper_params: the rule.
      outputs: what it sees of the agent's outputs.
      has_slow_copy: whether it keeps a slow copy of the agent.
    """

    name: str
    rule: UpdateRule
    hyper_params: Any
    outputs: Callable[[RuleCase], AgentOutput]
    has_slow_copy: bool = True

    def case(self, case: RuleCase, meta_state: Any = None) -> RuleCase:
        """The case with this rule, at the beginning of an agent's life or with a state of its own."""
        state = self.rule.init_meta_state(case.params) if meta_state is None else meta_state
        slow = case.target_out if self.has_slow_copy else None
        changes = {"rule": self.rule, "hyper_params": self.hyper_params, "meta_state": state, "target_out": slow}
        own = dataclasses.replace(case, **changes)
        return own.with_inputs(agent_out=self.outputs(case))


def peers_of(case: RuleCase, seed: int = 0) -> Iterator[Peer]:
    """The same rule with fresh weights, and rules by hand that can work with the agent's outputs.

    Actor-critic reads the agent's values, or the means of its action values under its policy; doubly-robust its action
    values. A rule has no peer of its own kind.
    """
    if any(True for _ in case.rule.parameters()):
        fresh = fresh_rule(case.rule, seed)
        yield Peer("random weights", fresh, case.hyper_params, lambda case: case.inputs.agent_out)
    discount = discount_of(case.rule, case.hyper_params)
    if case.values is not None and not isinstance(case.rule, ActorCritic):
        settings = default_hyper_params("actor-critic") | {"discount_factor": discount}
        rule = ActorCritic(SCALAR_ACTOR_CRITIC)
        yield Peer("actor-critic", rule, ActorCriticHyperParams(**settings), _with_scalar_value, has_slow_copy=False)
    if case.action_values is not None and not isinstance(case.rule, DoublyRobust):
        config = DoublyRobustConfig(num_bins=case.encoding.num_bins, max_abs_value=case.encoding.max_abs_value)
        hyper_params = DoublyRobustHyperParams(discount_factor=discount)
        yield Peer("doubly-robust", DoublyRobust(config), hyper_params, _with_action_values, has_slow_copy=False)


def _with_scalar_value(case: RuleCase) -> AgentOutput:
    assert case.values is not None
    return {"logits": case.inputs.agent_out["logits"], "v": case.values.unsqueeze(-1)}


def _with_action_values(case: RuleCase) -> AgentOutput:
    return {name: case.inputs.agent_out[name] for name in ("logits", "q")}
