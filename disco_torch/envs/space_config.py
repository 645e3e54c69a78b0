"""Spaces as plain values, so that a run's configuration can carry them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces

from disco_torch.envs.base import Environment
from disco_torch.envs.gymnasium_env import GymnasiumEnvironment
from disco_torch.types import Observations


@dataclass(frozen=True)
class SpaceConfig:
    """A space of Gymnasium.

    Attributes:
      kind: its class.
      shape: of an array.
      dtype: of an array.
      low, high: bounds of a Box whose numbers all have the same finite ones.
      sizes, starts: number of values and smallest value of each digit of a Discrete or MultiDiscrete space.
      parts: those of a Dict by key, or of a Tuple by place.
    """

    kind: Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"]
    shape: Sequence[int] = ()
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    sizes: Sequence[int] = ()
    starts: Sequence[int] = ()
    parts: dict[str, SpaceConfig] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.kind in ("Dict", "Tuple"):
            return f"{self.kind}({', '.join(f'{name}: {part}' for name, part in self.parts.items())})"
        values = [("shape", list(self.shape)), ("dtype", self.dtype), ("low", self.low), ("high", self.high)]
        values += [("sizes", list(self.sizes)), ("starts", list(self.starts))]
        return f"{self.kind}({', '.join(f'{name} {value}' for name, value in values if value not in (None, [], ''))})"


def describe_space(space: spaces.Space[Any]) -> SpaceConfig:
    """A space that observations or actions may be of, as plain values."""
    if isinstance(space, spaces.Dict):
        return SpaceConfig("Dict", parts={str(key): describe_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return SpaceConfig("Tuple", parts={str(i): describe_space(part) for i, part in enumerate(space.spaces)})
    shape, dtype = tuple(int(n) for n in space.shape or ()), str(space.dtype)
    if isinstance(space, spaces.Box):
        return SpaceConfig("Box", shape, dtype, _common(space.low), _common(space.high))
    if isinstance(space, spaces.Discrete):
        return SpaceConfig("Discrete", shape, dtype, sizes=(int(space.n),), starts=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (tuple(int(n) for n in values.flatten()) for values in (space.nvec, space.start))
        return SpaceConfig("MultiDiscrete", shape, dtype, sizes=sizes, starts=starts)
    if isinstance(space, spaces.MultiBinary):
        return SpaceConfig("MultiBinary", shape, dtype)
    raise ValueError(f"`space` must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, got {space}.")


def make_space(config: SpaceConfig) -> spaces.Space[Any]:
    """The space that plain values stand for; bounds of a Box that they do not tell are those of its dtype."""
    shape = tuple(config.shape)
    if config.kind == "Dict":
        return spaces.Dict({key: make_space(part) for key, part in config.parts.items()})
    if config.kind == "Tuple":
        return spaces.Tuple([make_space(part) for part in config.parts.values()])
    if config.kind == "Box":
        dtype = np.dtype(config.dtype)
        whole = (0, 1) if dtype.kind == "b" else (-np.inf, np.inf) if dtype.kind == "f" else _bounds(dtype)
        low, high = whole[0] if config.low is None else config.low, whole[1] if config.high is None else config.high
        return spaces.Box(low, high, shape, dtype.type)
    if config.kind == "Discrete":
        return spaces.Discrete(config.sizes[0], start=config.starts[0], dtype=np.dtype(config.dtype).type)
    if config.kind == "MultiDiscrete":
        sizes, starts = (np.array(values).reshape(shape) for values in (config.sizes, config.starts))
        return spaces.MultiDiscrete(sizes, dtype=np.dtype(config.dtype).type, start=starts)
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def spaces_of(env: Environment) -> tuple[SpaceConfig, SpaceConfig]:
    """Of observations and of actions; those of an environment of tensors are Boxes and one Discrete."""
    if isinstance(env, GymnasiumEnvironment):
        return describe_space(env.observation_space), describe_space(env.coding.space)
    return _describe_example(env.observation_example), describe_space(spaces.Discrete(env.num_actions))


def without_bounds(config: SpaceConfig) -> SpaceConfig:
    """The same space with Boxes of any bounds: what an agent's network depends on."""
    parts = {name: without_bounds(part) for name, part in config.parts.items()}
    return dataclasses.replace(config, low=None, high=None, parts=parts)


def _describe_example(example: Observations) -> SpaceConfig:
    if isinstance(example, dict):
        return SpaceConfig("Dict", parts={str(key): _describe_example(part) for key, part in example.items()})
    if isinstance(example, tuple | list):
        return SpaceConfig("Tuple", parts={str(i): _describe_example(part) for i, part in enumerate(example)})
    like = torch.float32 if example.dtype == torch.bfloat16 else example.dtype
    return SpaceConfig("Box", tuple(example.shape), str(torch.empty(0, dtype=like).numpy().dtype))


def _common(bounds: np.ndarray) -> float | None:
    """The one finite bound of all numbers, if there is one."""
    if bounds.size == 0 or not np.isfinite(bounds.flat[0]) or not (bounds == bounds.flat[0]).all():
        return None
    return float(bounds.flat[0])


def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
