"""Environments that a user's module registers by name, and the modules that a user has asked to import.

A run's configuration is a file, which may come from anywhere: what it names is looked up only in modules that the user has
named (`--import`), or in Gymnasium's wrappers and this package. Ids of Gymnasium such as "module:Name-v0" import that
module, as Gymnasium does.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import torch

from disco_torch.envs.base import Environment
from disco_torch.envs.families import FAMILIES
from disco_torch.envs.games import GAMES
from disco_torch.envs.levels import LevelEnvironment

ENVIRONMENTS: dict[str, Callable[..., Any]] = {}
"""What `register_env` has registered, apart from families of levels: classes of `Environment`, and factories of Gymnasium
environments."""
IMPORTED: set[str] = set()
"""Modules that the user has named for import."""
TRUSTED = ("gymnasium.wrappers", "disco_torch.envs")
"""Modules whose wrappers and environments a configuration may name without that."""

E = TypeVar("E", bound=Callable[..., Any])


def register_env(name: str, env: Any = None) -> Any:
    """Makes an environment known by name, to `make_env`, runs and the command line; a function or a decorator.

        @register_env("my-env")
        class MyEnv(gymnasium.Env): ...

    Args:
      name: new name, which is neither another environment's nor contains a colon.
      env: a `LevelEnvironment`, which is then a family that rules can be discovered on; another class of `Environment`,
        which is called with the number of environments and `device`; or a function or class that returns a single
        Gymnasium environment. The arguments of a run's environment are passed to each as keywords.
    """
    if env is None:
        return functools.partial(_register, name)
    return _register(name, env)


def _register(name: str, env: E) -> E:
    if not callable(env):
        raise ValueError(f"`env` must be a class or a function that makes an environment, got {type(env).__name__}.")
    known: dict[str, Any] = {**FAMILIES, **ENVIRONMENTS}
    if name in known and qualified_name(known[name]) == qualified_name(env):
        known.pop(name)  # the same one again: its module was loaded anew
    if not name or ":" in name or name in (*GAMES, *known, *gymnasium.registry):
        raise ValueError(f"`name` must be a new name without a colon, got {name!r}; choose another one.")
    if isinstance(env, type) and issubclass(env, LevelEnvironment):
        FAMILIES[name] = env
    else:
        ENVIRONMENTS[name] = env
    return env


def make_registered(name: str, num_envs: int, device: str | torch.device, arguments: dict[str, Any]) -> Environment:
    """Parallel environments of a registered class of `Environment`."""
    kind = ENVIRONMENTS[name]
    try:
        inspect.signature(kind).bind(num_envs, device=device, **arguments)
    except TypeError as error:
        raise ValueError(f"`{name}` cannot be made with {sorted(arguments)}: {error}.") from error
    env: Environment = kind(num_envs, device=device, **arguments)
    return env


def is_environment_class(env: Any) -> bool:
    return isinstance(env, type) and issubclass(env, Environment)


def import_modules(names: Iterable[str]) -> None:
    """Imports modules that the user has named: what they register is then known, and what they define can be named."""
    for name in names:
        importlib.import_module(name)
        IMPORTED.add(name)


def make_current_folder_importable() -> None:
    """Adds the current folder to the end of the path, so that it hides no installed package."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
        importlib.invalidate_caches()


def qualified_name(thing: Any) -> str:
    """The name "module:name" of a function or class, else of an object's class; a script is named as if imported."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    module = named.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name.removesuffix(".__main__") if spec is not None else Path(file).stem if file else module
    return f"{module}:{named.__qualname__}"


def is_lookup_name(name: str) -> bool:
    """Whether a qualified name can be looked up in its module: that of a function inside of another one cannot."""
    module, _, path = name.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *path.split(".")))


def find_named(name: str, *, importing: bool) -> Any:
    """The object of a qualified name, or None where its module has none.

    Args:
      name: "module:name".
      importing: whether to import the module, because the user has named it. If not, the object is looked up only in
        modules that the user has imported, in trusted ones, and in the modules of both if they are packages. It must
        then be defined there, not imported from elsewhere, as `os` may be, and be a class in a trusted one.
    """
    if not is_lookup_name(name):
        return None
    module, _, path = name.partition(":")
    is_imported, is_trusted = (_is_in(module, packages) for packages in (IMPORTED, TRUSTED))
    if not importing and not is_imported and not is_trusted:
        return None
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not importing and (qualified_name(found) != name or not (is_imported or isinstance(found, type))):
        return None
    return found


def modules_to_import(names: Iterable[str]) -> list[str]:
    """The modules of those names that are "module:function", but for modules that a configuration may name anyway."""
    modules = dict.fromkeys(name.partition(":")[0] for name in names if ":" in name)
    return [module for module in modules if not _is_in(module, TRUSTED)]


def _is_in(module: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of these, or part of one that is a package."""
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
