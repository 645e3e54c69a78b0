"""Environments by name, and from what a user brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import torch
from gymnasium.vector import VectorEnv

from disco_torch.envs.atari import PREFIX as ATARI
from disco_torch.envs.atari import make_atari
from disco_torch.envs.base import Environment
from disco_torch.envs.families import FAMILIES, make_family
from disco_torch.envs.games import GAMES, make_game
from disco_torch.envs.gymnasium_env import GymnasiumEnvironment
from disco_torch.envs.gymnasium_make import Wrapper, make_from_factory, make_gymnasium
from disco_torch.envs.packages import is_packaged, make_packaged
from disco_torch.envs.registered import ENVIRONMENTS, is_environment_class, make_registered
from disco_torch.files import reason_of

EnvSource = str | Callable[[], Any] | VectorEnv[Any, Any, Any] | Environment
"""A name, a function that returns a single Gymnasium environment, a vector environment of Gymnasium, or an environment of
this package."""


def make_env(
    name: EnvSource,
    num_envs: int,
    *,
    device: str | torch.device = "cpu",
    wrappers: Sequence[Wrapper] = (),
    **kwargs: Any,
) -> Environment:
    """Makes `num_envs` parallel environments.

    "catch", "sokoban" and the families are tensors on `device`; "atari/GAME" is a game of the Arcade Learning Environment,
    and names such as "minatar/breakout" are environments of other packages, see `disco_torch.envs.packages`; then come the
    names that `register_env` has registered; any other name is an id of Gymnasium.

    Args:
      name: a name; or a function that returns a single Gymnasium environment; or an object, which is used as it is:
        a vector environment of Gymnasium or an `Environment`.
      num_envs: number of parallel environments. That of an object stays as it is.
      device: where the tensors shall lie.
      wrappers: put around each single environment of Gymnasium, the first innermost.
      kwargs: for the game (what `Catch` or `Sokoban` takes; the fields of `AtariConfig`), for the family (split,
        level_seed, and what it takes itself), or for `make_gymnasium` and `make_from_factory` (vectorization_mode, and what
        the environment takes).
    """
    if isinstance(name, Environment | VectorEnv):
        return _from_object(name, device, wrappers, kwargs)
    if isinstance(name, gymnasium.Env):
        raise ValueError(
            f"`env` must be able to make {num_envs} environments, got a single one, {type(name.unwrapped).__name__}; "
            "pass a function that returns it, such as lambda: gymnasium.make(...)."
        )
    if isinstance(name, str) and name in ENVIRONMENTS and not is_environment_class(ENVIRONMENTS[name]):
        return make_from_factory(ENVIRONMENTS[name], num_envs, name=name, device=device, wrappers=wrappers, **kwargs)
    if not isinstance(name, str):
        if not callable(name):
            raise ValueError(
                "`env` must be a name, a function that returns a gymnasium.Env, a VectorEnv or an Environment, "
                f"got {type(name).__name__}."
            )
        return make_from_factory(name, num_envs, device=device, wrappers=wrappers, **kwargs)
    if name.startswith(ATARI) and name not in ENVIRONMENTS:
        _refuse_wrappers(wrappers, f"{name!r}, whose games are one vector environment")
        return make_atari(name, num_envs, device, kwargs)
    if is_packaged(name):
        return make_packaged(name, num_envs, device=device, wrappers=wrappers, **kwargs)
    if name not in (*GAMES, *FAMILIES, *ENVIRONMENTS):
        arguments = kwargs | {"wrappers": list(wrappers)} if wrappers else kwargs
        return make_gymnasium(name, num_envs, device=device, **arguments)
    _refuse_wrappers(wrappers, f"{name!r}, which is made of tensors")
    if name in GAMES:
        with _naming(name, kwargs):
            return make_game(name, num_envs, device, kwargs)
    if name in FAMILIES:
        with _naming(name, kwargs):
            return make_family(name, num_envs, device, kwargs)
    return make_registered(name, num_envs, device, kwargs)


@contextmanager
def _naming(name: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Names the arguments that are not of the kind, or not of a size, that tensors can be made of."""
    try:
        yield
    except (TypeError, RuntimeError, OverflowError) as error:
        if not arguments:
            raise
        raise ValueError(
            f"`env_args` must be what {name!r} can be made of, got {arguments} ({type(error).__name__}: {reason_of(error)})."
        ) from error


def _from_object(
    env: Environment | VectorEnv[Any, Any, Any],
    device: str | torch.device,
    wrappers: Sequence[Wrapper],
    arguments: dict[str, Any],
) -> Environment:
    """The environments of an object that is used as it is."""
    _refuse_wrappers(wrappers, f"a {type(env).__name__}; wrap it yourself, before it is passed")
    if arguments:
        raise ValueError(f"`env_args` must be empty for an object, got {sorted(arguments)}; it is made already.")
    if isinstance(env, VectorEnv):
        return GymnasiumEnvironment(env, device=device)
    if env.device.type != torch.device(device).type:
        raise ValueError(
            f"`env` must be on the device of the run, {device}, got one on {env.device}; set the run's `device` to "
            f"{env.device.type!r}, or make the environment on {device}."
        )
    return env


def _refuse_wrappers(wrappers: Sequence[Wrapper], env: str) -> None:
    if wrappers:
        raise ValueError(f"`wrappers` are for single Gymnasium environments, got {len(wrappers)} for {env}.")
