"""Making environments of Gymnasium: by id, and from a factory."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from disco_torch.checks import check_positive
from disco_torch.envs.families import FAMILIES
from disco_torch.envs.final_observations import CopyFinalObservation
from disco_torch.envs.games import GAMES
from disco_torch.envs.gymnasium_env import GymnasiumEnvironment
from disco_torch.envs.registered import ENVIRONMENTS

Wrapper = Callable[[Any], Any]
"""Takes an environment of Gymnasium and returns one."""


def make_gymnasium(
    env_id: str,
    num_envs: int,
    *,
    device: str | torch.device = "cpu",
    vectorization_mode: str = "sync",
    **env_kwargs: Any,
) -> GymnasiumEnvironment:
    """Makes `num_envs` parallel environments of a registered one, in the autoreset mode that wastes no row (same_step).

    They may write every observation into the same array: the last of an episode is copied before the reset.

    Args:
      env_id: as `gymnasium.make` takes it, also "module:Name-v0" to import a module first.
      num_envs: number of parallel environments.
      device: where the tensors shall lie.
      vectorization_mode: "sync" steps them in turn, "async" each in a process of its own, "vector_entry_point" uses the
        environment's own vector version, with the autoreset mode that it has.
      env_kwargs: for the environment, and `wrappers` and `vector_kwargs` for `gymnasium.make_vec`.
    """
    check_positive("num_envs", num_envs, "it is the number of parallel environments")
    if vectorization_mode != "vector_entry_point":
        vector_kwargs = {"autoreset_mode": AutoresetMode.SAME_STEP, **env_kwargs.pop("vector_kwargs", {})}
        wrappers = [*(env_kwargs.pop("wrappers", None) or ()), CopyFinalObservation]  # last, around all others
        env_kwargs = {**env_kwargs, "vector_kwargs": vector_kwargs, "wrappers": wrappers}
    try:
        env = gymnasium.make_vec(env_id, num_envs, vectorization_mode=vectorization_mode, **env_kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(_unknown_id(env_id)) from error
    except TypeError as error:  # an argument that the environment does not take
        raise ValueError(f"{env_id} cannot be made with {sorted(env_kwargs)}: {error}.") from error
    try:
        return GymnasiumEnvironment(env, name=env_id, device=device)
    except Exception:
        env.close()
        raise


def _unknown_id(env_id: str) -> str:
    known = {name.lower(): name for name in [*GAMES, *FAMILIES, *ENVIRONMENTS, *gymnasium.registry]}
    near = [known[match] for match in difflib.get_close_matches(env_id.lower(), known, n=3, cutoff=0.5)]
    return (
        f"`name` must be 'catch', a family of levels or an environment that Gymnasium knows, got {env_id!r}"
        + (f"; did you mean {', '.join(map(repr, near))}? " if near else ". ")
        + "Atari, MinAtar, MiniGrid, ProcGen, Crafter and NetHack have names such as 'minatar/breakout'. One of another "
        "package is known once that package is imported, as in 'package:Name-v0'; one of your own as 'module:function', or "
        "once the module that registers it is imported, on the command line with --import MODULE."
    )


def make_from_factory(
    factory: Callable[..., gymnasium.Env[Any, Any]],
    num_envs: int,
    *,
    name: str | None = None,
    device: str | torch.device = "cpu",
    vectorization_mode: str = "sync",
    wrappers: Sequence[Wrapper] = (),
    vector_kwargs: dict[str, Any] | None = None,
    **env_kwargs: Any,
) -> GymnasiumEnvironment:
    """Makes `num_envs` parallel environments of a function that returns a single one, as `make_gymnasium` does of an id.

    Args:
      factory: returns a new environment at each call.
      num_envs: number of parallel environments.
      name: for messages; defaults to the id of the environment, or the name of its class.
      device: where the tensors shall lie.
      vectorization_mode: "sync" steps them in turn, "async" each in a process of its own.
      wrappers: put around each environment, the first innermost.
      vector_kwargs: for the vector environment.
      env_kwargs: for the factory.
    """
    check_positive("num_envs", num_envs, "it is the number of parallel environments")
    kinds: dict[str, Any] = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}
    if vectorization_mode not in kinds:
        raise ValueError(f"`vectorization_mode` of a factory must be one of {sorted(kinds)}, got {vectorization_mode!r}.")

    def make_one() -> gymnasium.Env[Any, Any]:
        env = factory(**env_kwargs)
        if not isinstance(env, gymnasium.Env):
            raise ValueError(
                f"`env` must be a function that returns a gymnasium.Env, got one that returns {_what(env)}; "
                "a vector environment is given itself."
            )
        for wrapper in wrappers:
            env = wrapper(env)
        return CopyFinalObservation(env)  # last, around all others

    if name is None:
        name = _name_of_single(make_one)
    settings = {"autoreset_mode": AutoresetMode.SAME_STEP, **(vector_kwargs or {})}
    env = kinds[vectorization_mode]([make_one] * num_envs, **settings)
    try:
        return GymnasiumEnvironment(env, name=name, device=device)
    except Exception:
        env.close()
        raise


def _name_of_single(make_one: Callable[[], gymnasium.Env[Any, Any]]) -> str:
    single = make_one()
    name = single.spec.id if single.spec is not None else type(single.unwrapped).__name__
    single.close()
    return name


def _what(env: Any) -> str:
    return f"a VectorEnv, {type(env).__name__}" if isinstance(env, VectorEnv) else type(env).__name__
