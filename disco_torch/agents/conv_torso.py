"""The convolutional torso: a network for each board and image of an observation, and dense layers over all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from disco_torch.agents.convolutions import NETWORKS, BoardNetwork, Network
from disco_torch.kernels import is_wrapped
from disco_torch.layers import MLP, Activation
from disco_torch.types import Observations, tree_leaves

ChannelAxis = Literal["auto", "first", "last"]


class Planes(NamedTuple):
    """How the numbers of a board or an image lie: the sizes, and whether channels come before the sides or after them."""

    channels: int
    height: int
    width: int
    channels_first: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    @property
    def side(self) -> int:
        """Length of the shorter side."""
        return min(self.height, self.width)


def planes_of(shape: Sequence[int], axis: ChannelAxis = "auto") -> Planes | None:
    """The planes that an array is read as; None for one that is neither a board nor an image.

    Two dimensions are one plane. Of three, the channels are the first or the last: the smaller one, or the last if they are
    equal. So Atari's stacks of frames [4, 84, 84] have them first, MinAtar's boards [10, 10, C] and MiniGrid's views
    [7, 7, 3] last. Four dimensions are a stack of such arrays, whose channels are put side by side.

    Args:
      shape: of one observation.
      axis: where the channels are; "auto" decides as above.
    """
    if not 2 <= len(shape) <= 4:
        return None
    if len(shape) == 2:
        return Planes(1, shape[0], shape[1], channels_first=True)
    *stack, first, middle, last = shape
    channels_first = axis == "first" or (axis == "auto" and first < last)
    channels, height, width = (first, middle, last) if channels_first else (last, first, middle)
    return Planes(channels * math.prod(stack), height, width, channels_first)


def to_planes(x: Tensor, planes: Planes, dtype: torch.dtype) -> Tensor:
    """[N, *shape] -> [N, C, H, W] in a dtype; bytes become 0 .. 1."""
    if x.ndim == 3:
        x = x.unsqueeze(1)
    elif not planes.channels_first:
        x = x.movedim(-1, -3)
    x = x.flatten(1, -3)  # [N, C, H, W]
    # Convolutions on a GPU read channels last. As bytes, which are the least to move; `torch.func` knows no such layout.
    if x.device.type == "cuda" and not is_wrapped(x):
        x = x.contiguous(memory_format=torch.channels_last)
    return x.to(dtype) / 255.0 if x.dtype == torch.uint8 else x.to(dtype)


class ConvTorso(nn.Module):
    """Each leaf of the observation that is large enough through a convolutional network of its own, all others flat; the
    features side by side through dense layers.

    A leaf with two to four dimensions is read by the network of the torso; by a `BoardNetwork` if it is too small for it,
    and flat if it is too small for that.

    Args:
      name: of the network, as `NETWORKS` has it.
      example: one observation without leading dimensions.
      dense: sizes of the dense layers. After the last one comes a ReLU, as in the papers, but for boards, where none does,
        as in `MLPTorso`; with the activation `tanh`, a tanh.
      channels: of the network; its own unless given.
      axis: where the channels of images are, see `planes_of`.
      activation: of the dense layers, see `MLP`.
    """

    def __init__(
        self,
        name: str,
        example: Observations,
        dense: Sequence[int],
        channels: Sequence[int] = (),
        axis: ChannelAxis = "auto",
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        kind, leaves = NETWORKS[name], tree_leaves(example)
        self.planes = [planes_of(leaf.shape, axis) for leaf in leaves]
        networks: list[Network | None] = [_network(kind, channels, planes) for planes in self.planes]
        if not any(type(network) is kind for network in networks):
            shapes, least = [list(leaf.shape) for leaf in leaves], kind.least_side(channels)
            others = "`mlp`" if name == "board" else "`board` or `mlp`"
            raise ValueError(
                f"`torso` {name!r} must have an image or board whose sides are at least {least}, got observations of "
                f"{shapes}; use the torso {others}, or set `channel_axis` if the channels were taken for a side."
            )
        self.networks = nn.ModuleDict({str(i): network for i, network in enumerate(networks) if network is not None})
        sizes = [
            leaf.numel() if network is None else network.out_features for leaf, network in zip(leaves, networks, strict=True)
        ]
        self.dense = MLP(sum(sizes), dense, activation=activation)
        self.out_features = self.dense.out_features
        self.ends_with_relu = kind is not BoardNetwork and activation == "relu"

    def forward(self, observations: Observations) -> Tensor:
        """Tree of [T, B, ...] -> [T, B, F]."""
        dtype = next(self.dense.parameters()).dtype
        parts = []
        for i, (leaf, planes) in enumerate(zip(tree_leaves(observations), self.planes, strict=True)):
            rows = leaf.flatten(0, 1)  # [T * B, ...]
            if planes is None or str(i) not in self.networks:
                rows = rows.flatten(1) if rows.ndim > 1 else rows.unsqueeze(1)
                parts.append(rows.to(dtype) / 255.0 if rows.dtype == torch.uint8 else rows.to(dtype))
            else:
                parts.append(self.networks[str(i)](to_planes(rows, planes, dtype)))
        leading = tree_leaves(observations)[0].shape[:2]
        features = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        features = self.dense(features.unflatten(0, leading))  # [T, B, F]
        return torch.relu(features) if self.ends_with_relu else features


def _network(kind: type[Network], channels: Sequence[int], planes: Planes | None) -> Network | None:
    """The network that reads a leaf; None for one that is read flat."""
    if planes is None or min(planes.sizes) == 0:
        return None
    if planes.side >= kind.least_side(channels):
        return kind(planes.sizes, channels)
    return BoardNetwork(planes.sizes) if planes.side >= BoardNetwork.least_side() else None
