"""disco-torch: reinforcement learning whose update rule was itself learned."""

from disco_torch.agents import Agent, AgentConfig
from disco_torch.checks import checking, set_checking
from disco_torch.data import InputConfig, Replay, collect, collect_rollout, init_actor
from disco_torch.discovery import DiscoverConfig, DiscoverResult, discover
from disco_torch.envs import BinActions, Environment, EnvironmentFailure, make_env, register_env
from disco_torch.inspection import inspect_rule
from disco_torch.optim import AdamConfig, ClippedAdam
from disco_torch.reports import make_report
from disco_torch.rules import (
    PPO,
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
    PPOHyperParams,
    RuleInput,
    RuleView,
    UpdateRule,
)
from disco_torch.runs import Callback, RunStatus
from disco_torch.sharing import push_to_hub
from disco_torch.training import (
    PRESETS,
    DiscoTrainer,
    Learner,
    LearnerState,
    TrainConfig,
    ValueFunction,
    ValueFunctionConfig,
    default_config,
    evaluate,
    load_run,
    train,
)
from disco_torch.types import EmaState, OutputSpec, Rollout, UpdateRuleInputs, ValueOuts
from disco_torch.weights import (
    TransformConfig,
    download_disco103_weights,
    list_rules,
    load_disco103_weights,
    load_rule,
    register_rule,
    save_rule,
)

__version__ = "0.1.0"

__all__ = [
    "PPO",
    "PRESETS",
    "ActorCritic",
    "ActorCriticConfig",
    "ActorCriticHyperParams",
    "AdamConfig",
    "Agent",
    "AgentConfig",
    "BinActions",
    "Callback",
    "ClippedAdam",
    "DiscoConfig",
    "DiscoHyperParams",
    "DiscoTrainer",
    "DiscoUpdateRule",
    "DiscoverConfig",
    "DiscoverResult",
    "EmaState",
    "Environment",
    "EnvironmentFailure",
    "InputConfig",
    "Learner",
    "LearnerState",
    "MetaNetConfig",
    "MetaNetInputOption",
    "MetaRNNConfig",
    "OutputSpec",
    "PPOHyperParams",
    "PolicyGradient",
    "PolicyGradientHyperParams",
    "Replay",
    "Rollout",
    "RuleInput",
    "RuleView",
    "RunStatus",
    "TrainConfig",
    "TransformConfig",
    "UpdateRule",
    "UpdateRuleInputs",
    "ValueFunction",
    "ValueFunctionConfig",
    "ValueOuts",
    "checking",
    "collect",
    "collect_rollout",
    "default_config",
    "discover",
    "download_disco103_weights",
    "evaluate",
    "init_actor",
    "inspect_rule",
    "list_rules",
    "load_disco103_weights",
    "load_rule",
    "load_run",
    "make_env",
    "make_report",
    "push_to_hub",
    "register_env",
    "register_rule",
    "save_rule",
    "set_checking",
    "train",
]
