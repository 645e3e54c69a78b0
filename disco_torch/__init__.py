"""disco-torch: reinforcement learning whose update rule was itself learned."""

from disco_torch.agents import Agent, AgentConfig
from disco_torch.checks import checking, set_checking
from disco_torch.optim import AdamConfig, ClippedAdam
from disco_torch.rules import (
    ActorCritic,
    ActorCriticConfig,
    ActorCriticHyperParams,
    DiscoConfig,
    DiscoHyperParams,
    DiscoUpdateRule,
    MetaNetConfig,
    MetaNetInputOption,
    MetaRNNConfig,
    PolicyGradient,
    PolicyGradientHyperParams,
    TransformConfig,
    UpdateRule,
)
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionConfig
from disco_torch.types import EmaState, OutputSpec, Rollout, UpdateRuleInputs, ValueOuts
from disco_torch.weights import download_disco103_weights, list_rules, load_disco103_weights, load_rule, save_rule

__version__ = "0.1.0"

__all__ = [
    "ActorCritic",
    "ActorCriticConfig",
    "ActorCriticHyperParams",
    "AdamConfig",
    "Agent",
    "AgentConfig",
    "ClippedAdam",
    "DiscoConfig",
    "DiscoHyperParams",
    "DiscoUpdateRule",
    "EmaState",
    "Learner",
    "LearnerState",
    "MetaNetConfig",
    "MetaNetInputOption",
    "MetaRNNConfig",
    "OutputSpec",
    "PolicyGradient",
    "PolicyGradientHyperParams",
    "Rollout",
    "TransformConfig",
    "UpdateRule",
    "UpdateRuleInputs",
    "ValueFunction",
    "ValueFunctionConfig",
    "ValueOuts",
    "checking",
    "download_disco103_weights",
    "list_rules",
    "load_disco103_weights",
    "load_rule",
    "save_rule",
    "set_checking",
]
