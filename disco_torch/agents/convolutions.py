"""Convolutional networks from planes [N, C, H, W] to features [N, F], for boards and images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from disco_torch.kernels import convolve
from disco_torch.layers import Conv2d


class Convolution(Conv2d):
    """A 3x3 convolution that keeps the sides, [N, C, H, W] -> [N, K, H, W]."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return convolve(self, x)


class BoardNetwork(nn.Sequential):
    """3x3 convolutions that keep the sides of a board, with a ReLU after each: [N, C, H, W] -> [N, channels H W].

    Args:
      planes: channels, height and width of what it reads.
      channels: channels of each convolution; (16,) unless given.
    """

    own_channels: ClassVar = (16,)
    num_channels: ClassVar[int | None] = None

    def __init__(self, planes: tuple[int, int, int], channels: Sequence[int] = ()) -> None:
        before, height, width = planes
        layers: list[nn.Module] = []
        for after in channels or self.own_channels:
            layers += [Convolution(before, after), nn.ReLU()]
            before = after
        super().__init__(*layers, nn.Flatten())
        self.out_features = before * height * width

    @classmethod
    def least_side(cls, channels: Sequence[int] = ()) -> int:
        """Length of the shorter side of the smallest board that it reads."""
        return 3


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), with 3x3 convolutions that keep the sides."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Convolution(channels, channels)
        self.second = Convolution(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + change


class ImpalaNetwork(nn.Sequential):
    """IMPALA's residual network: [N, C, H, W] -> [N, channels H' W'].

    Each section is a 3x3 convolution, a max pooling of 3x3 with stride 2, which halves the sides (rounded up), and two
    residual blocks; a ReLU follows the last section. "IMPALA", Espeholt et al., 2018, figure 3.

    Args:
      planes: channels, height and width of what it reads.
      channels: channels of each section; (16, 32, 32), the paper's, unless given.
    """

    own_channels: ClassVar = (16, 32, 32)
    num_channels: ClassVar[int | None] = None

    def __init__(self, planes: tuple[int, int, int], channels: Sequence[int] = ()) -> None:
        before, height, width = planes
        layers: list[nn.Module] = []
        for after in channels or self.own_channels:
            layers += [Convolution(before, after), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [ResidualBlock(after), ResidualBlock(after)]
            before, height, width = after, (height + 1) // 2, (width + 1) // 2
        super().__init__(*layers, nn.ReLU(), nn.Flatten())
        self.out_features = before * height * width

    @classmethod
    def least_side(cls, channels: Sequence[int] = ()) -> int:
        """Length of the shorter side of the smallest image that it reads: smaller ones would be a point before the end."""
        return 2 ** len(channels or cls.own_channels)


class NatureNetwork(nn.Sequential):
    """The DQN's network, "Human-level control through deep reinforcement learning", Mnih et al., 2015.

    Convolutions of 8x8 with stride 4, 4x4 with stride 2 and 3x3, with a ReLU after each.

    Args:
      planes: channels, height and width of what it reads.
      channels: channels of the three convolutions; (32, 64, 64), the paper's, unless given.
    """

    own_channels: ClassVar = (32, 64, 64)
    num_channels: ClassVar[int | None] = 3
    kernels: ClassVar = ((8, 4), (4, 2), (3, 1))

    def __init__(self, planes: tuple[int, int, int], channels: Sequence[int] = ()) -> None:
        before, height, width = planes
        layers: list[nn.Module] = []
        for after, (kernel, stride) in zip(channels or self.own_channels, self.kernels, strict=True):
            layers += [Conv2d(before, after, kernel, stride), nn.ReLU()]
            before, height, width = after, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        super().__init__(*layers, nn.Flatten())
        self.out_features = before * height * width

    @classmethod
    def least_side(cls, channels: Sequence[int] = ()) -> int:
        """Length of the shorter side of the smallest image that it reads, of which the last convolution leaves a point."""
        side = 1
        for kernel, stride in reversed(cls.kernels):
            side = (side - 1) * stride + kernel
        return side


Network = BoardNetwork | ImpalaNetwork | NatureNetwork

NETWORKS: dict[str, type[Network]] = {"board": BoardNetwork, "impala": ImpalaNetwork, "nature": NatureNetwork}
"""The convolutional networks by the name of their torso."""
