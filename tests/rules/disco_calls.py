"""How the tests of the discovered rule call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from disco_torch.rules import DiscoState, DiscoUpdateRule
from disco_torch.types import (
    AgentOutput,
    Params,
    Targets,
    UpdateRuleInputs,
)

A = 4


def make_unroll(target_out: AgentOutput) -> Callable[..., AgentOutput]:
    """An agent whose outputs are these, scaled by its one parameter."""
    return lambda params, observations, should_reset: {name: params["scale"] * x for name, x in target_out.items()}


def agent_params(scale: float = 1.0) -> Params:
    return {"scale": torch.tensor(scale, dtype=torch.float64)}


def unroll(
    rule: DiscoUpdateRule, inputs: UpdateRuleInputs, target_out: AgentOutput, **kwargs: Any
) -> tuple[Targets, DiscoState]:
    params = agent_params()
    return rule.unroll_meta_net(inputs, params, rule.init_meta_state(params), make_unroll(target_out), **kwargs)
