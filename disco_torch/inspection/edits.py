"""A rule that reads something else: changed estimates, changed inputs of its meta-network, fresh weights.

The rule that is given is never written to.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from disco_torch.inspection.case import RuleCase
from disco_torch.layers import init_params
from disco_torch.rules import DiscoUpdateRule, MetaNetInputOption, RuleInput, UpdateRule
from disco_torch.types import ValueOuts

WATCHED = 50
"""Number of times that a rule which the agent has not learned with sees the rollout, so that its state settles."""


def with_estimates(case: RuleCase, change: Callable[[ValueOuts], ValueOuts]) -> RuleCase | None:
    """The case with changed value estimates, whatever reads them; None for a rule that has no `estimate` of its own."""
    original = case.rule
    if not isinstance(original, DiscoUpdateRule):
        return None

    def estimate(*args: Any) -> tuple[Any, ...]:
        values, *states = original.estimate(*args)
        return change(values), *states

    rule = copy.copy(original)  # shares the weights
    rule.estimate = estimate  # type: ignore[method-assign, assignment]
    return dataclasses.replace(case, rule=rule)


def with_rule_inputs(case: RuleCase, change: Callable[[str, Tensor], Tensor]) -> RuleCase | None:
    """The case with changed inputs of the meta-network; None for a rule without one.

    Args:
      case: the case.
      change: takes the name of an input and the input, [T, B, ...] or [T, B, A, ...], and returns the one to read instead.
    """
    if not isinstance(case.rule, DiscoUpdateRule):
        return None

    def changed(each: RuleInput) -> RuleInput:
        return RuleInput(each.name, lambda view: change(each.name, each.read(view)), each.needs_action_outputs)

    rule = copy.deepcopy(case.rule)
    for encoder in (rule.meta_net.encoder, rule.meta_net.meta_rnn.encoder):
        option = encoder.option
        encoder.option = MetaNetInputOption(
            [changed(each) for each in option.base], [changed(each) for each in option.action_conditional]
        )
    return dataclasses.replace(case, rule=rule)


def read_rule_inputs(case: RuleCase) -> dict[str, Tensor]:
    """What the meta-network reads, by the names of its inputs, in order; empty for a rule without one."""
    found: dict[str, Tensor] = {}

    def keep(name: str, x: Tensor) -> Tensor:
        found.setdefault(name, x)  # the lifetime encoder, which comes second, has embeddings of its own
        return x

    recording = with_rule_inputs(case, keep)
    if recording is not None:
        recording.look()
    return found


def fresh_rule(rule: UpdateRule, seed: int = 0) -> UpdateRule:
    """The same rule with fresh weights."""
    fresh = copy.deepcopy(rule)
    device = next(rule.parameters()).device
    fresh.load_state_dict(init_params(fresh, torch.Generator(device).manual_seed(seed)), strict=False)
    return fresh


def watching(case: RuleCase, calls: int = WATCHED) -> list[RuleCase]:
    """The case as it is, and after its rule has seen the rollout once, twice and so on: at first it may have no targets."""
    cases = [case]
    for _ in range(calls):
        cases.append(dataclasses.replace(case, meta_state=cases[-1].look()[1]))
    return cases
