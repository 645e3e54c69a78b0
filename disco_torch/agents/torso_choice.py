"""Which torso reads which observations, where a configuration leaves it open."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from disco_torch.agents.config import AgentConfig
from disco_torch.agents.conv_torso import ChannelAxis, ConvTorso, planes_of
from disco_torch.agents.convolutions import BoardNetwork, ImpalaNetwork
from disco_torch.envs.kinds import kind_of_tensor
from disco_torch.types import Observations, tree_items

BOARD_SIDE = 24
"""Length of the longer side of the largest board."""


def choose_torso(config: AgentConfig, example: Observations, kinds: Any = None) -> AgentConfig:
    """The configuration with the torso that `auto` stands for; any other one as it is.

    `impala` if the observation has an image, as `disco_torch.envs.kinds` decides: bytes of 0 to 255 with two sides of at
    least 32. Else `board` if it has a board: an array of three dimensions, or of two whose entries are bits or bytes, with
    sides of 3 to 24; two dimensions of any other numbers are taken for vectors over time. Else, and for observations with
    factors of their own (`observation_scale`), `mlp`, without the `channels` that it has no use for.

    Args:
      config: may have the torso `auto`.
      example: one observation without leading dimensions.
      kinds: kind of each leaf, in the structure of the example; by its dtype unless given.
    """
    if config.torso != "auto":
        return config
    of_leaf: Mapping[str, str] = {} if kinds is None else dict(tree_items(kinds))
    leaves: list[tuple[Tensor, str]] = [
        (leaf, of_leaf.get(name) or kind_of_tensor(leaf)) for name, leaf in tree_items(example) if isinstance(leaf, Tensor)
    ]
    if config.observation_scale:
        return dataclasses.replace(config, torso="mlp", channels=())
    if any(_is_image(*leaf, config) for leaf in leaves):
        return dataclasses.replace(config, torso="impala")
    if any(_is_board(*leaf, config.channel_axis) for leaf in leaves):
        return dataclasses.replace(config, torso="board")
    return dataclasses.replace(config, torso="mlp", channels=())


def _is_image(leaf: Tensor, kind: str, config: AgentConfig) -> bool:
    planes = planes_of(leaf.shape, config.channel_axis)
    return kind == "image" and planes is not None and planes.side >= ImpalaNetwork.least_side(config.channels)


def _is_board(leaf: Tensor, kind: str, axis: ChannelAxis) -> bool:
    planes = planes_of(leaf.shape, axis)
    if planes is None or leaf.ndim > 3 or min(planes.sizes) == 0:
        return False
    is_grid = leaf.ndim == 3 or kind == "unit" or not leaf.is_floating_point()
    return is_grid and planes.side >= BoardNetwork.least_side() and max(planes.height, planes.width) <= BOARD_SIDE


def describe_torso(config: AgentConfig, torso: Any) -> str:
    """A convolutional torso in a line, for who has not chosen it; empty for any other one."""
    if not isinstance(torso, ConvTorso):
        return ""
    read = [
        f"{planes.height}x{planes.width} with {planes.channels} channels{'' if planes.channels_first else ' last'}"
        for i, planes in enumerate(torso.planes)
        if planes is not None and str(i) in torso.networks
    ]
    return f"torso {config.torso}: convolutions over {', '.join(read)}"
