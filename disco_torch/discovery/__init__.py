"""Discovery: finding rules by gradient descent on how well agents learn with them."""

from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.meta_gradient import MetaGradient, PlainMetaGradient
from disco_torch.discovery.meta_loss import MetaLossWeights, target_regularizer, validation_loss
from disco_torch.discovery.mixed_mode import MixedModeMetaGradient
from disco_torch.discovery.presets import PRESETS
from disco_torch.discovery.run import DiscoverResult, discover
from disco_torch.discovery.session import DiscoverySession
from disco_torch.runs import ProcessLost, World

__all__ = [
    "PRESETS",
    "DiscoverConfig",
    "DiscoverResult",
    "DiscoverySession",
    "GroupConfig",
    "HabitatConfig",
    "MetaGradient",
    "MetaLossWeights",
    "MixedModeMetaGradient",
    "PlainMetaGradient",
    "ProcessLost",
    "World",
    "discover",
    "target_regularizer",
    "validation_loss",
]
