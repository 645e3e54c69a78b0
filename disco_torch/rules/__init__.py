"""Rules: how agents learn. The discovered one, those by hand, and the protocol for your own."""

from disco_torch.rules.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    ActorCriticHyperParams,
    ActorCriticState,
)
from disco_torch.rules.base import UpdateRule, discount_of, resolve_hyper_params
from disco_torch.rules.disco import (
    DiscoConfig,
    DiscoHyperParams,
    DiscoState,
    DiscoUpdateRule,
)
from disco_torch.rules.doubly_robust import DoublyRobust, DoublyRobustConfig, DoublyRobustHyperParams, DoublyRobustState
from disco_torch.rules.improvement import doubly_robust_push, improved_logits
from disco_torch.rules.inputs import (
    MetaNetInputOption,
    RuleInput,
    disco_input_option,
    extended_input_option,
)
from disco_torch.rules.losses import categorical_kl, clipped_surrogate_loss, entropy, policy_gradient_loss
from disco_torch.rules.meta_net import (
    MetaNet,
    MetaNetConfig,
    MetaRNNConfig,
    MetaRNNState,
)
from disco_torch.rules.policy_gradient import PolicyGradient, PolicyGradientHyperParams
from disco_torch.rules.ppo import PPO, PPOHyperParams
from disco_torch.rules.view import RuleView

__all__ = [
    "PPO",
    "ActorCritic",
    "ActorCriticConfig",
    "ActorCriticHyperParams",
    "ActorCriticState",
    "DiscoConfig",
    "DiscoHyperParams",
    "DiscoState",
    "DiscoUpdateRule",
    "DoublyRobust",
    "DoublyRobustConfig",
    "DoublyRobustHyperParams",
    "DoublyRobustState",
    "MetaNet",
    "MetaNetConfig",
    "MetaNetInputOption",
    "MetaRNNConfig",
    "MetaRNNState",
    "PPOHyperParams",
    "PolicyGradient",
    "PolicyGradientHyperParams",
    "RuleInput",
    "RuleView",
    "UpdateRule",
    "categorical_kl",
    "clipped_surrogate_loss",
    "disco_input_option",
    "discount_of",
    "doubly_robust_push",
    "entropy",
    "extended_input_option",
    "improved_logits",
    "policy_gradient_loss",
    "resolve_hyper_params",
]
