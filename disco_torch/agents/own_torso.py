"""A torso that the user brings: any module from a tree of observations to features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from disco_torch.types import Observations, tree_map

HIDDEN_STATE = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
)
"""Layers that an update cannot be a function of its arguments with: they change, or draw, something of their own."""


class OwnTorso(nn.Module):
    """A user's module, `f(observations) -> [T, B, F]`, behind what a torso is. Observations in bytes become 0 .. 1 first.

    It learns from the weights that it has: of other layers than those of this package nothing is drawn anew.

    Args:
      module: takes a tree of [T, B, ...] float32.
      example: one observation without leading dimensions.
    """

    def __init__(self, module: nn.Module, example: Observations) -> None:
        super().__init__()
        for name, layer in module.named_modules():
            if isinstance(layer, HIDDEN_STATE):
                raise ValueError(
                    f"`torso` must be a function of its parameters and observations, got {type(layer).__name__} in "
                    f"{name or 'it'!r}, which keeps or draws something of its own; use nn.LayerNorm, or leave it out."
                )
        self.module = module
        self.out_features = self._dry_run(example)

    def forward(self, observations: Observations) -> Tensor:
        """Tree of [T, B, ...] -> [T, B, F]."""
        features: Tensor = self.module(tree_map(_as_numbers, observations))
        return features

    def _dry_run(self, example: Observations) -> int:
        """Number of features, of 2 rows of 3 observations of zeros."""
        device = next((param.device for param in self.module.parameters()), torch.device("cpu"))
        rows = tree_map(lambda x: torch.zeros(2, 3, *x.shape, dtype=x.dtype, device=device), example)
        with torch.no_grad():
            try:
                features = self.forward(rows)
            except Exception as error:  # whatever the user's module raises
                shapes = tree_map(lambda x: list(x.shape), rows)
                raise ValueError(
                    f"`torso` must take observations [T, B, ...], here {shapes}, got {type(error).__name__}: {error}; "
                    "flatten time and batch first where a layer takes one leading dimension."
                ) from error
        if not isinstance(features, Tensor) or features.ndim != 3 or features.shape[:2] != (2, 3):
            got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"`torso` must return features [T, B, F], here [2, 3, F], got {got}.")
        return features.shape[2]


def _as_numbers(x: Tensor) -> Tensor:
    return x.float() / 255.0 if x.dtype == torch.uint8 else x
