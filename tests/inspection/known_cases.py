"""Cases of rules whose answers are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from disco_torch.inspection import RuleCase
from disco_torch.rules import (
    PPO,
    ActorCritic,
    ActorCriticConfig,
    ActorCriticHyperParams,
    DiscoHyperParams,
    DiscoUpdateRule,
    PPOHyperParams,
    UpdateRule,
    policy_gradient_loss,
)
from disco_torch.types import OutputSpec, UpdateRuleInputs

A = 4
PARAMS = {"scale": torch.ones((), dtype=torch.float64)}
MakeInputs = Callable[..., UpdateRuleInputs]


def actor_critic_case(make_inputs: MakeInputs, T: int = 12, B: int = 10, **hyper_params: float) -> RuleCase:
    """Plain actor-critic on rollouts of its own policy, without ends: nothing normalised, scalar values."""
    rule = ActorCritic(ActorCriticConfig(num_bins=1, nonlinear_value_transform=False))
    inputs = make_inputs(rule.outputs(A), T=T, B=B, terminals=())
    inputs = dataclasses.replace(inputs, behaviour_agent_out=inputs.agent_out, extra_from_rule=None)
    state = rule.init_meta_state(PARAMS)
    return RuleCase(rule, inputs, PARAMS, state, None, ActorCriticHyperParams(**hyper_params))


def ppo_case(make_inputs: MakeInputs, T: int = 12, B: int = 10, **hyper_params: float) -> RuleCase:
    """PPO on rollouts of another policy, without ends."""
    rule = PPO()
    inputs = dataclasses.replace(make_inputs(rule.outputs(A), T=T, B=B, terminals=()), extra_from_rule=None)
    return RuleCase(rule, inputs, PARAMS, {}, None, PPOHyperParams(**hyper_params))


def disco_case(rule: DiscoUpdateRule, make_inputs: MakeInputs, T: int = 6, B: int = 5) -> RuleCase:
    """A Disco rule at the beginning of a life, on random outputs of agent, slow copy and behaviour."""
    inputs = dataclasses.replace(make_inputs(rule.outputs(A), T=T, B=B), extra_from_rule=None)
    slow = make_inputs(rule.outputs(A), T=T, B=B, seed=1).agent_out
    return RuleCase(rule, inputs, PARAMS, rule.init_meta_state(PARAMS), slow, DiscoHyperParams())


class OwnRewards(UpdateRule):
    """Policy gradient with the step's own reward in place of an advantage: it reads nothing else."""

    hyper_params_type = ActorCriticHyperParams

    def outputs(self, num_actions: int) -> OutputSpec:
        return OutputSpec(flat={"logits": num_actions, "y": 3})

    def init_meta_state(self, agent_params: Any) -> dict[str, Tensor]:
        return {}

    def unroll_meta_net(self, rollout: Any, agent_params: Any, meta_state: Any, *args: Any, **kwargs: Any) -> Any:
        return {"rewards": rollout.rewards}, meta_state

    def agent_loss(self, rollout: Any, meta_out: Any, hyper_params: Any = None, backprop: bool = False) -> Any:
        logits, actions = rollout.agent_out["logits"][:-1], rollout.actions[:-1]
        return policy_gradient_loss(logits, actions, meta_out["rewards"]), {}


def own_rewards_case(make_inputs: MakeInputs, T: int = 6, B: int = 5) -> RuleCase:
    rule = OwnRewards()
    inputs = dataclasses.replace(make_inputs(rule.outputs(A), T=T, B=B, terminals=()), extra_from_rule=None)
    return RuleCase(rule, inputs, PARAMS, {}, None, ActorCriticHyperParams())
