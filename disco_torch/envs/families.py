"""The families of environments, by name."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from disco_torch.envs.bandit import Bandit
from disco_torch.envs.bricks import Bricks
from disco_torch.envs.catch_variants import CatchVariants
from disco_torch.envs.chain import Chain
from disco_torch.envs.crossing import Crossing
from disco_torch.envs.doors import Doors
from disco_torch.envs.gatherer import Gatherer
from disco_torch.envs.grid import GridWorld
from disco_torch.envs.invaders import Invaders
from disco_torch.envs.lander import Lander
from disco_torch.envs.levels import LevelEnvironment
from disco_torch.envs.maze import Maze
from disco_torch.envs.pure import PureEnvironment
from disco_torch.envs.recall import Recall
from disco_torch.envs.slippery import Slippery
from disco_torch.envs.swing import Swing
from disco_torch.envs.variation import Varied

FAMILIES: dict[str, type[LevelEnvironment]] = {
    family.name: family
    for family in (
        *(CatchVariants, GridWorld, Chain, Bricks, Crossing, Gatherer, Invaders),
        *(Swing, Bandit, Maze, Doors, Lander, Slippery, Recall),
    )
}
"""What `make_env` finds by name; families of your own may be added."""
VARIED_ARGUMENTS = ("varied", "num_actions")
"""What every family can be made with besides its own arguments."""


def make_family(name: str, num_envs: int, device: str | torch.device, arguments: dict[str, Any]) -> PureEnvironment:
    """Makes `num_envs` parallel environments of a family.

    Arguments are as a command line gives them: a `level_seed` of "none" is None. Every family takes `varied` and
    `num_actions`, see `disco_torch.envs.variation`.
    """
    family = FAMILIES[name]
    known = [*VARIED_ARGUMENTS, *family_arguments(family)]
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(f"`{name}` takes {', '.join(known[:-1])} and {known[-1]}, got {unknown[0]!r}.")
    if arguments.get("level_seed") == "none":
        arguments = arguments | {"level_seed": None}
    of_family = {name: value for name, value in arguments.items() if name not in VARIED_ARGUMENTS}
    env = family(num_envs, device=device, **of_family)
    num_actions = arguments.get("num_actions", env.num_actions)
    if arguments.get("varied", False):
        return Varied(env, num_actions)
    if num_actions != env.num_actions:
        raise ValueError(f"`num_actions` of `{name}` must be {env.num_actions} unless it is `varied`, got {num_actions}.")
    return env


def family_arguments(family: type[LevelEnvironment]) -> list[str]:
    """What a family can be made with besides the number of environments and the device."""
    return [name for name in inspect.signature(family).parameters if name not in ("num_envs", "device")]
