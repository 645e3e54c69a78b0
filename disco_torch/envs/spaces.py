"""From Gymnasium's observation spaces to trees of tensors.

Box            as it is; uint8 stays, everything else becomes float32
Discrete       one-hot, [B, n] float32
MultiDiscrete  the one-hot vectors of its digits side by side, [B, sum of the sizes] float32
MultiBinary    its bits, [B, number of bits] float32
Dict, Tuple    dict and tuple of the above; a Text in a Dict is left out
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor

from disco_torch.types import Observations, tree_leaves


class BadOutput(Exception):
    """Something that an environment gave and that does not fit; `index` is which one, None if it concerns all."""

    def __init__(self, problem: str, index: int | None = None) -> None:
        super().__init__(problem)
        self.index = index


def without_text(space: spaces.Space[Any], where: str = "observation") -> tuple[spaces.Space[Any], list[str]]:
    """A space without the texts in its dictionaries, which an agent cannot read, and what these were called."""
    if isinstance(space, spaces.Dict):
        kept, left_out = {}, []
        for key, part in space.spaces.items():
            if part.dtype is not None and part.dtype.kind == "U":  # Text, and spaces of texts that packages define
                left_out.append(f"{where}[{key!r}]")
            else:
                kept[key], inner = without_text(part, f"{where}[{key!r}]")
                left_out += inner
        return (spaces.Dict(kept), left_out) if left_out and kept else (space, [])
    if isinstance(space, spaces.Tuple):
        pairs = [without_text(part, f"{where}[{i}]") for i, part in enumerate(space.spaces)]
        left_out = [name for _, names in pairs for name in names]
        return (spaces.Tuple([part for part, _ in pairs]), left_out) if left_out else (space, [])
    return space, []


def observation_example(space: spaces.Space[Any]) -> Observations:
    """Zeros in the shape and dtype that an observation of `space` has as tensors, without a leading dimension."""
    if isinstance(space, spaces.Dict):
        return {key: observation_example(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(observation_example(part) for part in space.spaces)
    if isinstance(space, spaces.Box):
        return torch.zeros(space.shape, dtype=_box_dtype(space))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return torch.zeros(spaces.flatdim(space), dtype=torch.float32)
    raise ValueError(
        "`single_observation_space` must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, "
        f"got {space}; "
        "wrap the environment with gymnasium.wrappers.TransformObservation to give arrays of a fixed shape."
    )


def checked_example(space: spaces.Space[Any]) -> Observations:
    """`observation_example`, for a space that holds something: an agent cannot learn from observations of no numbers."""
    example = observation_example(space)
    if not any(leaf.numel() for leaf in tree_leaves(example)):
        raise ValueError(
            f"`single_observation_space` must hold at least one number, got {space}, which holds none; "
            "give a constant if there is nothing to observe."
        )
    return example


def observation_tensors(
    space: spaces.Space[Any], batch: Any, indices: np.ndarray, device: torch.device, where: str = "observation"
) -> Observations:
    """A batch of observations as Gymnasium lays them out, as new tensors on `device`.

    Args:
      space: of one observation.
      batch: arrays [B, ...] in the structure of `space`.
      indices: [B] integers, which environment each observation came from, for the error.
      device: where the tensors shall lie.
      where: what the error calls this part of the observation.

    Raises:
      BadOutput: where a part is missing, has another shape or kind of number than its space says, or is not finite.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(batch, Mapping) or not batch.keys() >= space.spaces.keys():
            raise BadOutput(f"{where} must be a dict with the keys {sorted(space.spaces)}, got {_outline(batch)}")
        return {
            key: observation_tensors(part, batch[key], indices, device, f"{where}[{key!r}]")
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if not isinstance(batch, tuple | list) or len(batch) != len(space.spaces):
            raise BadOutput(f"{where} must be a tuple of {len(space.spaces)} parts, got {_outline(batch)}")
        return tuple(
            observation_tensors(part, item, indices, device, f"{where}[{i}]")
            for i, (part, item) in enumerate(zip(space.spaces, batch, strict=True))
        )
    array = _checked_array(space, batch, indices, where)
    if isinstance(space, spaces.Box):
        tensor = torch.tensor(array, dtype=_box_dtype(space))
        if tensor.is_floating_point():
            _refuse(~torch.isfinite(tensor), tensor, indices, f"{where} must be finite")
        return tensor.to(device)
    if isinstance(space, spaces.MultiBinary):
        return torch.tensor(array, dtype=torch.float32).flatten(1).to(device)  # [B, bits]
    return _one_hot(space, array, indices, where).to(device)


def stack_observations(space: spaces.Space[Any], observations: list[Any]) -> Any:
    """Single observations of `space` as one batch, arrays [B, ...]."""
    empty: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, empty)


def _box_dtype(space: spaces.Box) -> torch.dtype:
    return torch.uint8 if space.dtype == np.uint8 else torch.float32


def _checked_array(space: spaces.Space[Any], batch: Any, indices: np.ndarray, where: str) -> np.ndarray:
    """`batch` as a contiguous array, [B, *space.shape]."""
    array = np.ascontiguousarray(batch)
    wanted = (len(indices), *(space.shape or ()))
    if array.shape != wanted:
        raise BadOutput(f"{where} must have shape {list(wanted)} to fit {space}, got {list(array.shape)}")
    assert space.dtype is not None  # only spaces of arrays come here
    if not np.can_cast(array.dtype, space.dtype, casting="same_kind"):
        raise BadOutput(f"{where} must be {space.dtype} to fit {space}, got {array.dtype}")
    return array


def _one_hot(space: Any, array: np.ndarray, indices: np.ndarray, where: str) -> Tensor:
    """[B, sum of sizes] float32, 1 at each digit of a Discrete or MultiDiscrete space."""
    sizes = torch.as_tensor(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n).long().reshape(-1)
    starts = torch.as_tensor(space.start).long().reshape(-1)
    digits = torch.tensor(array).long().reshape(len(indices), -1) - starts  # [B, digits]
    _refuse((digits < 0) | (digits >= sizes), digits + starts, indices, f"{where} must lie in {space}")
    positions = digits + sizes.cumsum(0) - sizes
    return torch.zeros(len(indices), int(sizes.sum()), dtype=torch.float32).scatter(1, positions, 1.0)


def _refuse(bad: Tensor, values: Tensor, indices: np.ndarray, requirement: str) -> None:
    """Raises at the first of `values`, [B, ...], that is `bad`."""
    if bad.any():
        first = bad.nonzero()[0].tolist()
        raise BadOutput(f"{requirement}, got {values[tuple(first)].item()} at {first[1:]}", index=int(indices[first[0]]))


def _outline(batch: Any) -> str:
    return f"one with {sorted(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
