"""Inputs of the discovered rule, for the tests that do not make their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from disco_calls import A

from disco_torch.rules import DiscoUpdateRule
from disco_torch.types import AgentOutput, UpdateRuleInputs

MakeInputs = Callable[..., UpdateRuleInputs]


@pytest.fixture
def inputs(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> UpdateRuleInputs:
    return dataclasses.replace(make_inputs(tiny_rule.outputs(A)), extra_from_rule=None)


@pytest.fixture
def target_out(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> AgentOutput:
    return make_inputs(tiny_rule.outputs(A), seed=1).agent_out
