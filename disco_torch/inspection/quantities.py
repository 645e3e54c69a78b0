"""What any rule may read of a rollout, each with a way to put something else in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from disco_torch.inspection.case import RuleCase
from disco_torch.values import ValueEncoding, signed_hyperbolic, two_hot

LEAST_PROBABILITY = 1e-9
"""Of a bin of a value's distribution, so that its logarithm is finite."""


@dataclass(frozen=True)
class Quantity:
    """A tensor that a rule may read.

    Attributes:
      name: for tables.
      get: reads it from a case, [T, B, ...] or [T+1, B, ...]; None where the case has none.
      put: returns the case with another in its place.
    """

    name: str
    get: Callable[[RuleCase], Tensor | None]
    put: Callable[[RuleCase, Tensor], RuleCase]

    def shifted(self, case: RuleCase, amount: Tensor) -> RuleCase:
        """The case with an amount added; `amount` is broadcast to the quantity."""
        x = self.get(case)
        assert x is not None
        return self.put(case, x + amount)


def encode(values: Tensor, encoding: ValueEncoding) -> Tensor:
    """Outputs that stand for scalar values, [...] -> [..., num_bins]; the inverse of `encoding.to_scalar`."""
    values = signed_hyperbolic(values) if encoding.nonlinear else values
    if encoding.num_bins == 1:
        return values.unsqueeze(-1)
    probabilities = two_hot(values, encoding.num_bins, encoding.max_abs_value)
    return torch.log(probabilities.clamp_min(LEAST_PROBABILITY))


def agent_output(name: str, key: str) -> Quantity:
    return Quantity(name, lambda case: case.inputs.agent_out.get(key), lambda case, x: case.with_output(key, x))


def target_output(name: str, key: str) -> Quantity:
    return Quantity(name, lambda case: (case.target_out or {}).get(key), lambda case, x: case.with_target_output(key, x))


def as_values(quantity: Quantity) -> Quantity:
    """The scalar values that an output stands for, in place of the output."""

    def get(case: RuleCase) -> Tensor | None:
        x = quantity.get(case)
        return None if x is None else case.encoding.to_scalar(x)

    return Quantity(quantity.name, get, lambda case, x: quantity.put(case, encode(x, case.encoding)))


def both(name: str, agent: Quantity, target: Quantity) -> Quantity:
    """An output of the agent and of its slow copy, changed by the same amount."""

    def put(case: RuleCase, x: Tensor) -> RuleCase:
        own, slow = agent.get(case), target.get(case)
        assert own is not None
        case = agent.put(case, x)
        return case if slow is None else target.put(case, slow + (x - own))

    return Quantity(name, agent.get, put)


def _behaviour(case: RuleCase) -> Tensor | None:
    return (case.inputs.behaviour_agent_out or {}).get("logits")


def _advantages(case: RuleCase) -> Tensor | None:
    return None if case.inputs.value_out is None else case.inputs.value_out.normalized_adv


def _put_advantages(case: RuleCase, x: Tensor) -> RuleCase:
    assert case.inputs.value_out is not None
    return case.with_inputs(value_out=dataclasses.replace(case.inputs.value_out, adv=x, normalized_adv=x))


REWARD = Quantity("reward", lambda case: case.inputs.rewards, lambda case, x: case.with_inputs(rewards=x))
OUTSIDE_ADVANTAGE = Quantity("advantage from outside", _advantages, _put_advantages)
QUANTITIES = (
    REWARD,
    OUTSIDE_ADVANTAGE,
    agent_output("policy", "logits"),
    Quantity("behaviour policy", _behaviour, lambda case, x: case.with_inputs(behaviour_agent_out={"logits": x})),
    as_values(agent_output("value v", "v")),
    as_values(agent_output("action value q", "q")),
    agent_output("prediction y", "y"),
    agent_output("prediction z", "z"),
    target_output("slow policy", "logits"),
    as_values(target_output("slow q", "q")),
    target_output("slow y", "y"),
    target_output("slow z", "z"),
)
"""What rules of this package read, each by itself; "slow" is of the slow copy of the agent."""

BOOTSTRAPS = (
    REWARD,
    both("value", as_values(agent_output("", "v")), as_values(target_output("", "v"))),
    both("value", as_values(agent_output("", "q")), as_values(target_output("", "q"))),
    both("y", agent_output("", "y"), target_output("", "y")),
    both("z", agent_output("", "z"), target_output("", "z")),
)
"""What a target may bootstrap from, of the agent and its slow copy together; an agent has one of the two kinds of values."""


def present(quantities: tuple[Quantity, ...], case: RuleCase) -> list[Quantity]:
    """Those that a case has."""
    return [each for each in quantities if each.get(case) is not None]
