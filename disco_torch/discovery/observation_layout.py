"""How the agents of a group see the observations of several environments: in one shape and one dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from disco_torch.envs.kinds import kind_of_tensor
from disco_torch.types import Observations, flatten_tree, tree_items


class Observed(Protocol):
    """What a layout needs to know of an environment."""

    @property
    def observation_example(self) -> Observations: ...

    @property
    def observation_kinds(self) -> Any: ...


@dataclass(frozen=True)
class ObservationLayout:
    """One shape for observations of several environments.

    Attributes:
      shape: [...] of an observation as agents see it: its own where all environments have the same and the network wants
        it, else flat, and padded with zeros.
      size: number of its entries.
      dtype: bytes where all environments show bytes that agents divide by 255, else float32.
      kind: of the numbers, where the shape is that of all environments; see `disco_torch.envs.kinds`. None where it must be
        told from the tensor.
    """

    shape: tuple[int, ...]
    size: int
    dtype: torch.dtype
    kind: Any
    raw: bool

    @property
    def keeps_bytes(self) -> bool:
        return self.dtype == torch.uint8

    def flat(self, env: Observed, observations: Observations) -> Tensor:
        """Observations of one environment, a tree of [n, ...], as [n, size]."""
        leaves = flatten_tree(observations)[0]
        kinds = kinds_of(env)
        parts = [self._leaf(leaf, kind).flatten(1) for leaf, kind in zip(leaves, kinds, strict=True)]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return torch.nn.functional.pad(flat, (0, self.size - flat.shape[1]))

    def unflat(self, flat: Tensor) -> Tensor:
        """[P, B, size] in the shape that agents see."""
        return flat.unflatten(2, self.shape) if len(self.shape) > 1 else flat

    def _leaf(self, leaf: Tensor, kind: str) -> Tensor:
        """A leaf as numbers on the scale that training shows it at: images, and raw bytes of any kind, are 0 .. 1."""
        if leaf.dtype == torch.float32 or self.keeps_bytes:
            return leaf
        is_scaled = leaf.dtype == torch.uint8 and (self.raw or kind == "image")
        return leaf.float() / 255.0 if is_scaled else leaf.float()


def make_layout(envs: Sequence[Observed], torso: str, raw: bool) -> ObservationLayout:
    """The layout for the environments of a group.

    Args:
      envs: all of them.
      torso: of the agents' network.
      raw: whether bytes of any kind are divided by 255, as `InputConfig.observations` says.
    """
    leaves = [flatten_tree(env.observation_example)[0] for env in envs]
    size = max(sum(leaf.numel() for leaf in parts) for parts in leaves)
    dtype = torch.uint8 if all(_shows_bytes(env, raw) for env in envs) else torch.float32
    shapes = {tuple(parts[0].shape) if len(parts) == 1 else ("several parts",) for parts in leaves}
    own = len(shapes) == 1 and len(leaves[0]) == 1
    if torso not in ("mlp", "auto") and not own:
        raise ValueError(
            f"`torso` of a group must be 'mlp' where its environments have observations of several shapes, "
            f"{sorted(shapes, key=str)}, got {torso!r}; put each shape into a group of its own."
        )
    if torso == "mlp" or not own:
        return ObservationLayout((size,), size, dtype, None, raw)
    given = envs[0].observation_kinds
    kind = given if given is None or isinstance(given, str) else kinds_of(envs[0])[0]
    return ObservationLayout(tuple(leaves[0][0].shape), size, dtype, kind, raw)


def kinds_of(env: Observed) -> list[str]:
    """The kind of each leaf of an environment's observations, in the order of `flatten_tree`."""
    leaves = tree_items(env.observation_example)
    if env.observation_kinds is None:
        return [kind_of_tensor(leaf) for _, leaf in leaves]
    kinds = dict(tree_items(env.observation_kinds))
    return [kinds[name] for name, _ in leaves]


def _shows_bytes(env: Observed, raw: bool) -> bool:
    leaves = flatten_tree(env.observation_example)[0]
    if any(leaf.dtype != torch.uint8 for leaf in leaves):
        return False
    return raw or all(kind == "image" for kind in kinds_of(env))
