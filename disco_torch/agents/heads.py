"""Heads: linear maps from an agent's features to the outputs that a rule asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from disco_torch.layers import MLP, Linear


class Heads(nn.ModuleDict):
    """One linear layer for each output of the state, in the order of their sorted names, as the reference creates them."""

    def __init__(self, in_features: int, sizes: Mapping[str, int], stddev: float | None) -> None:
        super().__init__({name: MLP(in_features, (sizes[name],), stddev=stddev) for name in sorted(sizes)})

    def linears(self) -> list[Linear]:
        """Their layers: all read the same features, so that they can be computed by one matmul."""
        heads: Any = self.values()
        return [head[0] for head in heads]
