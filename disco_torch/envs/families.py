"""The families of environments, by name."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from disco_torch.envs.bricks import Bricks
from disco_torch.envs.catch_variants import CatchVariants
from disco_torch.envs.chain import Chain
from disco_torch.envs.crossing import Crossing
from disco_torch.envs.gatherer import Gatherer
from disco_torch.envs.grid import GridWorld
from disco_torch.envs.invaders import Invaders
from disco_torch.envs.levels import LevelEnvironment

FAMILIES: dict[str, type[LevelEnvironment]] = {
    family.name: family for family in (CatchVariants, GridWorld, Chain, Bricks, Crossing, Gatherer, Invaders)
}
"""What `make_env` finds by name; families of your own may be added."""


def make_family(name: str, num_envs: int, device: str | torch.device, arguments: dict[str, Any]) -> LevelEnvironment:
    """Makes `num_envs` parallel environments of a family.

    Arguments are as a command line gives them: a `level_seed` of "none" is None.
    """
    family = FAMILIES[name]
    known = family_arguments(family)
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(f"`{name}` takes {', '.join(known[:-1])} and {known[-1]}, got {unknown[0]!r}.")
    if arguments.get("level_seed") == "none":
        arguments = arguments | {"level_seed": None}
    return family(num_envs, device=device, **arguments)


def family_arguments(family: type[LevelEnvironment]) -> list[str]:
    """What a family can be made with besides the number of environments and the device."""
    return [name for name in inspect.signature(family).parameters if name not in ("num_envs", "device")]
