"""Discovery: finding rules by gradient descent on how well agents learn with them."""

from disco_torch.discovery.meta_gradient import MetaGradient, PlainMetaGradient
from disco_torch.discovery.meta_loss import MetaLossWeights, meta_loss

__all__ = ["MetaGradient", "MetaLossWeights", "PlainMetaGradient", "meta_loss"]
