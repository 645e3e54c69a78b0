"""Discovery: finding rules by gradient descent on how well agents learn with them."""

from disco_torch.discovery.meta_gradient import MetaGradient, PlainMetaGradient
from disco_torch.discovery.meta_loss import MetaLossWeights, target_regularizer, validation_loss
from disco_torch.discovery.mixed_mode import MixedModeMetaGradient

__all__ = [
    "MetaGradient",
    "MetaLossWeights",
    "MixedModeMetaGradient",
    "PlainMetaGradient",
    "target_regularizer",
    "validation_loss",
]
