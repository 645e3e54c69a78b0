"""Environments of a habitat that are stepped on the host, such as Gymnasium's: their state is in them, not in a tree."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from torch import Tensor

from disco_torch.discovery.config import DiscoverConfig, HabitatConfig
from disco_torch.envs import FAMILIES, Environment, EnvironmentFailure, EnvStep, PureEnvironment, Wrapper, make_env
from disco_torch.envs.registered import ENVIRONMENTS, IMPORTED, TRUSTED, find_named, is_environment_class, modules_to_import
from disco_torch.types import tree_map


class HostEnvironments:
    """The environments of this process's agents in one habitat: `B` parallel ones for each agent, which are its own.

    An agent's games depend on its actions and on the seed that its life draws, not on other agents or processes. The first
    failure is kept in `failure`: from then on all environments stand still, so that the processes of a discovery can finish
    the meta-update together before they stop.

    Args:
      config: the habitat.
      num_agents: agents of this process in it. Without any, one environment is made to know its observations and actions.
      num_envs: parallel environments of each agent, `B`.
      device: where the rows shall lie.
      imports_names: whether "module:function" may import its module: the user has written the configuration.
    """

    step_draws = 0
    episode_draws = 0

    def __init__(
        self, config: HabitatConfig, num_agents: int, num_envs: int, device: torch.device, imports_names: bool = True
    ) -> None:
        self.name, self.num_envs, self.device = config.env, num_envs, device
        self.failure: EnvironmentFailure | None = None
        source = find_source(config, imports_names)
        wrappers = [find_wrapper(name, imports_names) for name in config.wrappers]
        # A vector environment of Gymnasium lies on the host: the rows of all agents are moved at once.
        is_own = isinstance(source, str) and is_environment_class(ENVIRONMENTS.get(source))
        settings: dict[str, Any] = {"device": device if is_own else "cpu", "wrappers": wrappers, **config.env_args}
        self.envs: list[Environment] = []
        try:
            for _ in range(max(1, num_agents)):
                self.envs.append(make_env(source, num_envs if num_agents else 1, **settings))
        except BaseException as error:
            self.close()
            if isinstance(error, TypeError) and config.env_args:
                arguments = f"`env_args` of a habitat must be what {self.name!r} can be made with, got {config.env_args}"
                raise ValueError(f"{arguments} ({error}).") from error
            raise
        env = self.envs[0]
        self.num_actions, self.truncates = env.num_actions, env.truncates
        self.observation_example, self.observation_kinds = env.observation_example, env.observation_kinds
        self._states: list[Any] = [None] * num_agents
        self._generators: list[Any] = [None] * num_agents
        self._steps: list[EnvStep | None] = [None] * num_agents

    def begin(self, agent: int, generator: torch.Generator) -> EnvStep:
        """New episodes in all environments of one agent, [B, ...], seeded by a number that is drawn here."""
        env = self.envs[agent]
        seed = int(torch.randint(2**62, (), generator=generator))
        own = self._generators[agent] = torch.Generator(env.device).manual_seed(seed)
        return self._moved(self._tried(agent, env.reset, own))

    def step(self, actions: Tensor) -> EnvStep:
        """Takes actions [agents * B] in the environments of all agents; rows of [agents * B, ...]."""
        shares = actions.to(self.envs[0].device).unflatten(0, (-1, self.num_envs))
        steps = [
            self._tried(agent, env.step, self._states[agent], own, self._generators[agent])
            for agent, (env, own) in enumerate(zip(self.envs, shares, strict=True))
        ]
        return self._moved(tree_map(lambda *xs: torch.cat(xs), *steps))

    def close(self) -> None:
        """Closes all environments; whatever one of them raises, the others are closed too."""
        for env in self.envs:
            with contextlib.suppress(Exception):  # one that has failed may not close well, and nothing is left to save
                env.close()

    def _moved(self, step: EnvStep) -> EnvStep:
        return tree_map(lambda x: x.to(self.device), step)

    def _tried(self, agent: int, work: Callable[..., tuple[Any, EnvStep]], *args: Any) -> EnvStep:
        """What an agent's environments give; once one has failed, rows in which nothing happens."""
        if self.failure is None:
            try:
                self._states[agent], step = work(*args)
                self._steps[agent] = step
                return step
            except EnvironmentFailure as error:
                self.failure = error
            except Exception as error:  # an environment may raise anything
                self.failure = EnvironmentFailure(f"environment {self.name!r} failed: {type(error).__name__}: {error}.")
                self.failure.__cause__ = error
        last = self._steps[agent]
        return still_step(self.envs[agent], self.num_envs) if last is None else _without_events(last)


def still_step(env: Environment, num_envs: int) -> EnvStep:
    """Rows of nothing, in the shapes of an environment's."""
    shown = tree_map(lambda x: x.expand(num_envs, *x.shape).clone(), env.observation_example)
    zeros = torch.zeros(num_envs, device=env.device)
    no = zeros.bool()
    return EnvStep(shown, zeros, zeros + 1.0, no, shown if env.truncates else None, ~no, no)


def _without_events(step: EnvStep) -> EnvStep:
    """The same observations again, without a reward or an end."""
    final = None if step.final_observations is None else step.observations
    no, zeros = torch.zeros_like(step.truncations), torch.zeros_like(step.rewards)
    return EnvStep(step.observations, zeros, torch.ones_like(zeros), no, final, no, no)


def make_habitat_env(
    config: HabitatConfig, num_agents: int, num_envs: int, device: torch.device, imports_names: bool = True
) -> PureEnvironment | HostEnvironments:
    """The environments of a habitat's agents: of tensors where they can be, else on the host."""
    if not isinstance(config.env, str):
        raise ValueError(
            f"`env` of a habitat must be a name, got {type(config.env).__name__}; give a function a name with "
            "register_env(name, function), or name it as 'module:function'."
        )
    if not is_pure(config.env):
        return HostEnvironments(config, num_agents, num_envs, device, imports_names)
    if "level_seed" in config.env_args:
        raise ValueError(
            f"`env_args` of a habitat must not name a `level_seed`, got {config.env_args['level_seed']!r} for "
            f"{config.env!r}; every life draws its own level."
        )
    wrappers = [find_wrapper(name, imports_names) for name in config.wrappers]
    arguments: dict[str, Any] = dict(config.env_args)
    env = make_env(config.env, max(1, num_agents) * num_envs, device=device, wrappers=wrappers, **arguments)
    assert isinstance(env, PureEnvironment)
    return env


def is_pure(name: str) -> bool:
    """Whether a name stands for an environment of tensors, whose steps can be recorded."""
    kind = ENVIRONMENTS.get(name)
    return name == "catch" or name in FAMILIES or (isinstance(kind, type) and issubclass(kind, PureEnvironment))


def find_source(config: HabitatConfig, imports_names: bool) -> Any:
    """What `make_env` makes a habitat's environments of: a name as it is, or the function behind "module:function"."""
    name = config.env
    if ":" not in name:
        return name
    if not imports_names:
        _check_imported(name)
    found = find_named(name, importing=imports_names)
    return name if found is None or name.partition(":")[2] in gymnasium.registry else found


def find_wrapper(name: str, imports_names: bool) -> Wrapper:
    if not imports_names:
        _check_imported(name)
    found = find_named(name, importing=imports_names) if isinstance(name, str) else name
    if not callable(found):
        raise ValueError(f"`wrappers` of a habitat must be functions or classes named as 'module:Name', got {name!r}.")
    return found


def modules_of(config: DiscoverConfig) -> list[str]:
    """The modules that a population's environments and wrappers are in, to be named when the discovery is resumed."""
    habitats = [habitat for group in config.groups for habitat in group.habitats]
    return modules_to_import(name for habitat in habitats for name in (habitat.env, *habitat.wrappers))


def _check_imported(name: str) -> None:
    """Raises where a name in a configuration that was read from a file would import a module."""
    module = name.partition(":")[0]
    if not _is_known(module, (*IMPORTED, *TRUSTED)):
        raise ValueError(
            f"the discovery's configuration names {name!r}, of a module that is not imported; if you trust it, resume with "
            f"--import {module}, in Python after disco_torch.envs.import_modules([{module!r}])."
        )


def _is_known(module: str, packages: Any) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
