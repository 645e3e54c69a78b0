"""Torsos: from a tree of observations to one vector of features a row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from disco_torch.layers import MLP, Activation
from disco_torch.types import Observations, tree_leaves


def flatten_observations(observations: Observations, leading: int, dtype: torch.dtype) -> Tensor:
    """All leaves side by side, flat behind their `leading` dimensions; images in bytes become 0 .. 1."""
    flat = []
    for leaf in tree_leaves(observations):
        x = leaf.to(dtype) / 255.0 if leaf.dtype == torch.uint8 else leaf.to(dtype)
        flat.append(x.reshape(*leaf.shape[:leading], -1))
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)


class MLPTorso(MLP):
    """Flattens, concatenates and scales the observations, then an MLP.

    Args:
      example: one observation without leading dimensions.
      dense: sizes of the layers.
      scale: factors of the flat observation, one for all of it or one for each entry; none leaves it as it is.
      activation: of the layers, see `MLP`.
    """

    scale: Tensor

    def __init__(
        self,
        example: Observations,
        dense: Sequence[int],
        scale: Sequence[float] = (),
        activation: Activation = "relu",
    ) -> None:
        size = flatten_observations(example, 0, torch.float32).numel()
        if size == 0:
            raise ValueError("`example` must hold at least one number, got an observation of none; there is nothing to see.")
        super().__init__(size, dense, activation=activation)
        if len(scale) not in (0, 1, size):
            raise ValueError(f"`observation_scale` must hold 1 factor or {size}, one for each entry, got {len(scale)}.")
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32), persistent=False)

    def forward(self, observations: Observations, leading: int = 2) -> Tensor:
        """Tree of [T, B, ...] -> [T, B, F]."""
        flat = flatten_observations(observations, leading, next(self.parameters()).dtype)
        return super().forward(flat * self.scale if self.scale.numel() else flat)
