"""What the numbers of an observation are, leaf by leaf: whoever shows them to a network has to know their scale.

image    bytes of 0 .. 255 with two sides of at least 32; agents divide them by 255
unit     numbers within 0 and 1, such as bits, one-hot vectors and boards of cells; they stay as they are
numbers  all else, whose scale only the data tells
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from disco_torch.envs.base import Environment
from disco_torch.types import tree_items

ObservationKind = Literal["image", "unit", "numbers"]
"""What a leaf of an observation is: an image, bits and codes within 0 and 1, or numbers of any size."""
KINDS: tuple[ObservationKind, ...] = ("image", "unit", "numbers")
IMAGE_SIDE = 32
"""Least length of both sides of an image; smaller arrays of bytes are boards, whose numbers are codes."""


def kinds_of_space(space: spaces.Space[Any]) -> Any:
    """The kind of each leaf of an observation of a Gymnasium space, in the structure of `observation_example`."""
    if isinstance(space, spaces.Dict):
        return {key: kinds_of_space(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(kinds_of_space(part) for part in space.spaces)
    if not isinstance(space, spaces.Box):
        return "unit"  # one-hot vectors and bits
    low, high = space.low.min(initial=0), space.high.max(initial=0)
    if space.dtype == np.uint8 and (low, high) == (0, 255) and _is_large(space.shape):
        return "image"
    is_integer = space.dtype is not None and space.dtype.kind in "iub"
    return "unit" if is_integer and low >= 0 and high <= 1 else "numbers"


def kind_of_tensor(example: Tensor) -> ObservationKind:
    """The kind that a leaf of an observation is taken for, by its dtype and shape."""
    if example.dtype == torch.bool:
        return "unit"
    return "image" if example.dtype == torch.uint8 and _is_large(tuple(example.shape)) else "numbers"


def kinds_by_name(env: Environment, root: str) -> dict[str, ObservationKind]:
    """The kind of each leaf of an environment's observations, by its name below `root`: see `tree_items`."""
    example: dict[str, Tensor] = dict(tree_items(env.observation_example, root))
    if env.observation_kinds is None:
        return {name: kind_of_tensor(leaf) for name, leaf in example.items()}
    kinds: dict[str, Any] = dict(tree_items(env.observation_kinds, root))
    if set(kinds) != set(example) or not set(kinds.values()) <= set(KINDS):
        raise ValueError(
            f"`observation_kinds` of {env.name} must name one of {list(KINDS)} for each of {sorted(example)}, got {kinds}; "
            "it has the structure of `observation_example`."
        )
    return kinds


def _is_large(shape: tuple[int, ...]) -> bool:
    return sum(side >= IMAGE_SIDE for side in shape) >= 2
