"""Environments of other packages by name, `package/name`, each with the observations that an agent can read.

    minatar/breakout    minigrid/door-key-5x5    procgen/coinrun    crafter/reward    nethack/score

A name is that of the package's own environment in small letters, with hyphens between words; capitals, hyphens and
underscores are all the same. Nothing is imported before an environment of its package is made.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from disco_torch.envs.base import Environment
from disco_torch.envs.crafter import CRAFTER_GAMES, CrafterEnv
from disco_torch.envs.frame_stack import stack_frames
from disco_torch.envs.gymnasium_make import Wrapper, make_from_factory, make_gymnasium
from disco_torch.envs.levels import draw_planes
from disco_torch.envs.nethack import make_nethack
from disco_torch.envs.procgen import PROCGEN_GAMES, ProcgenEnvironment, import_procgen
from disco_torch.files import reason_of

MINATAR_LIMIT = 10_000
"""MinAtar has no time limit. Few episodes reach this one, but an evaluation must end."""


@dataclass(frozen=True)
class Package:
    """A package whose environments have names here.

    Attributes:
      install: command that installs it.
      load: imports it.
      games: the package's own names of its environments, by their name here; after `load`.
      make: makes parallel environments from the package's own name, their number, and keywords.
    """

    install: str
    load: Callable[[], object]
    games: Callable[[], Mapping[str, str]]
    make: Callable[..., Environment]


def is_packaged(name: str) -> bool:
    """Whether a name is one of a package, installed or not."""
    return "/" in name and name.partition("/")[0] in PACKAGES


def make_packaged(
    name: str,
    num_envs: int,
    *,
    device: str | torch.device = "cpu",
    wrappers: Sequence[Wrapper] = (),
    frame_stack: int = 1,
    **arguments: Any,
) -> Environment:
    """Makes `num_envs` parallel environments of another package.

    Args:
      name: `package/name`.
      num_envs: number of parallel environments.
      device: where the tensors shall lie.
      wrappers: put around each single environment of Gymnasium, the first innermost.
      frame_stack: number of last frames that an observation shows, see `stack_frames`.
      arguments: for the environment.
    """
    package_name, _, game = name.partition("/")
    package = PACKAGES[package_name]
    try:
        package.load()
    except ImportError as error:
        raise ValueError(
            f"`env` {name!r} needs the package {package_name}, which cannot be imported ({reason_of(error)}); "
            f"install it with {package.install}."
        ) from error
    games = package.games()
    found = {_plain(known): own for known, own in games.items()}.get(_plain(game))
    if found is None:
        near = difflib.get_close_matches(game.lower(), games, n=3, cutoff=0.4) or sorted(games)[:5]
        raise ValueError(
            f"`env` must be an environment of {package_name}, got {name!r}; did you mean "
            f"{', '.join(f'{package_name}/{each}' for each in near)}?"
        )
    env = package.make(found, num_envs, name=name, device=device, wrappers=wrappers, **arguments)
    try:
        return stack_frames(env, frame_stack)
    except ValueError:
        env.close()
        raise


def _plain(name: str) -> str:
    return re.sub(r"[-_]", "", name.lower())


def _named_ids(prefix: str) -> dict[str, str]:
    """Ids of Gymnasium that begin with a prefix, the newest version of each, by name: "FourRooms" is "four-rooms"."""
    names: dict[str, str] = {}
    for env_id in sorted(gymnasium.registry):
        found = re.fullmatch(re.escape(prefix) + r"(.+)-v\d+", env_id)
        if found:
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", found[1])
            names[words.lower()] = env_id
    return names


def _load_minatar() -> None:
    # It warns where seaborn is missing, which only its own pictures need.
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        module = importlib.import_module("minatar.gym")
    finally:
        logging.disable(before)
    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        module.register_envs()


class MinAtarPicture(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Draws the board; MinAtar's own picture needs another package and is 10 pixels wide."""

    def render(self) -> Any:
        game: Any = self.unwrapped
        return draw_planes(np.moveaxis(game.game.state(), -1, 0))


def _make_minatar(env_id: str, num_envs: int, *, wrappers: Sequence[Wrapper], name: str, **arguments: Any) -> Environment:
    arguments = {"max_episode_steps": MINATAR_LIMIT} | arguments
    return _renamed(make_gymnasium(env_id, num_envs, wrappers=[MinAtarPicture, *wrappers], **arguments), name)


def _make_minigrid(env_id: str, num_envs: int, *, wrappers: Sequence[Wrapper], name: str, **arguments: Any) -> Environment:
    """The agent's view alone: the mission is a text, and the direction can be told from what it sees move."""
    image_alone = importlib.import_module("minigrid.wrappers").ImgObsWrapper
    return _renamed(make_gymnasium(env_id, num_envs, wrappers=[image_alone, *wrappers], **arguments), name)


def _make_crafter(game: str, num_envs: int, **arguments: Any) -> Environment:
    """In processes, one for each: a step takes 7 ms."""
    arguments = {"vectorization_mode": "async"} | arguments
    return make_from_factory(partial(CrafterEnv, reward=game == "reward"), num_envs, **arguments)


def _make_procgen(game: str, num_envs: int, *, wrappers: Sequence[Wrapper], name: str, **arguments: Any) -> Environment:
    if wrappers:
        raise ValueError(
            f"`wrappers` are for single Gymnasium environments, got {len(wrappers)} for {name!r}, which is none."
        )
    return _renamed(ProcgenEnvironment(num_envs, game, **arguments), name)


def _renamed(env: Environment, name: str) -> Environment:
    env.name = name
    return env


PACKAGES: dict[str, Package] = {
    "minatar": Package("pip install --no-deps minatar", _load_minatar, lambda: _named_ids("MinAtar/"), _make_minatar),
    "minigrid": Package(
        "pip install minigrid", lambda: importlib.import_module("minigrid"), lambda: _named_ids("MiniGrid-"), _make_minigrid
    ),
    "procgen": Package(
        "pip install --no-deps procgen-mirror gym3 cffi pycparser filelock glfw imageio pillow",
        import_procgen,
        lambda: {game: game for game in PROCGEN_GAMES},
        _make_procgen,
    ),
    "crafter": Package(
        "pip install crafter",
        lambda: importlib.import_module("crafter"),
        lambda: {g: g for g in CRAFTER_GAMES},
        _make_crafter,
    ),
    "nethack": Package(
        "pip install --no-deps nle", lambda: importlib.import_module("nle"), lambda: _named_ids("NetHack"), make_nethack
    ),
}
"""The packages, by the first part of the names."""
