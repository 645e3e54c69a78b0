"""What a user brings to a run as objects: environment, wrappers, network and rule.

Objects are arguments of `train`; the run's configuration stores their qualified names and the spaces of the environment as
plain values. Whoever goes on with the run brings the objects again, and they are compared with what is stored.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import nn

from disco_torch.agents import Agent, AgentConfig
from disco_torch.data.normalization import ROOT
from disco_torch.envs import (
    FAMILIES,
    GAMES,
    Environment,
    EnvSource,
    Wrapper,
    find_named,
    is_lookup_name,
    kinds_by_name,
    make_env,
    qualified_name,
    spaces_of,
    without_bounds,
)
from disco_torch.envs.atari import PREFIX as ATARI
from disco_torch.envs.kinds import kind_of_tensor
from disco_torch.envs.registered import ENVIRONMENTS, is_environment_class
from disco_torch.rules import UpdateRule
from disco_torch.training.config import ObjectsConfig, TrainConfig
from disco_torch.types import Observations, OutputSpec, tree_leaves
from disco_torch.weights import load_rule


@dataclass(frozen=True)
class RunObjects:
    """The objects of a run, each None where its configuration says it all.

    Attributes:
      env: in place of `config.env`.
      wrappers: in place of `config.wrappers`.
      agent: a whole `Agent`, or the module that is the agent's torso.
      rule: in place of `config.rule`.
      rule_file: the run's own copy of the rule that `config.rule` named when it began; None where there is none.
      imports_names: whether an environment of the configuration, "module:Name-v0", may import its module. Not where
        somebody else has written the configuration.
    """

    env: EnvSource | None = None
    wrappers: Sequence[Wrapper] | None = None
    agent: nn.Module | None = None
    rule: UpdateRule | None = None
    rule_file: Path | None = None
    imports_names: bool = True

    def make_env(self, config: TrainConfig, num_envs: int, device: torch.device, **changes: Any) -> Environment:
        """Parallel environments, compared with the spaces that the configuration has; an object's number is its own."""
        source = config.env if self.env is None else self.env
        if self.env is None and config.objects.env_kind:
            _ask_for("env", config.objects.env, config.objects.env_kind)
        if self.env is None and not self.imports_names:
            _check_imported(config.env)
        arguments: dict[str, Any] = config.env_args | changes
        env = make_env(source, num_envs, device=device, wrappers=self._wrappers(config), **arguments)
        try:
            check_spaces(config.objects, env)
        except ValueError:
            self.close(env)
            raise
        return env

    def _wrappers(self, config: TrainConfig) -> Sequence[Wrapper]:
        if self.wrappers is not None:
            return self.wrappers
        found = [find_named(name, importing=False) for name in config.wrappers]
        for name, wrapper in zip(config.wrappers, found, strict=True):
            if wrapper is None:
                _ask_for("wrappers", name, "wrapper")
        return found

    @property
    def has_env_object(self) -> bool:
        """Whether the environments are an object, which the user made and will close."""
        return isinstance(self.env, Environment | VectorEnv)

    def recording_env(self, config: TrainConfig, device: torch.device) -> Environment:
        """One environment that draws itself where it can, and shows the last state of an episode before the next begins.

        One of tensors begins the next episode at once, unless its `autoreset` is set to False.
        """
        if self.has_env_object:
            return copy.copy(self.make_env(config, 1, device))  # the user's own stays as it is
        source = ENVIRONMENTS.get(config.env) if self.env is None else self.env
        next_step = {"vector_kwargs": {"autoreset_mode": AutoresetMode.NEXT_STEP}}
        changes: dict[str, Any] = {}
        if callable(source) and not is_environment_class(source):
            parameters = inspect.signature(source).parameters
            draws = "render_mode" in parameters or any(x.kind is x.VAR_KEYWORD for x in parameters.values())
            changes = next_step | ({"render_mode": "rgb_array"} if draws else {})
        elif config.env.startswith(ATARI):
            changes = {"render_mode": "rgb_array"}
        elif config.env not in (*GAMES, *FAMILIES, *ENVIRONMENTS):
            changes = {"render_mode": "rgb_array"}
            if config.env_args.get("vectorization_mode") != "vector_entry_point":  # which has an autoreset mode of its own
                changes |= next_step
        return self.make_env(config, 1, device, **changes)

    def close(self, env: Environment) -> None:
        """Closes environments that were made here."""
        if not self.has_env_object:
            env.close()

    def check_evaluation(self, config: TrainConfig) -> None:
        """Raises where evaluations during training would step the environments that the agent learns in."""
        if config.eval_every and self.has_env_object and not getattr(self.env, "saves_state", False):
            raise ValueError(
                f"`eval_every` must be 0 for environments that are one object, {_kind(self.env)}, got {config.eval_every}; "
                "evaluations need environments of their own: pass a function that returns one."
            )

    def make_rule(self, config: TrainConfig) -> UpdateRule:
        if self.rule is None and config.objects.rule:
            _ask_for("rule", config.objects.rule, "rule")
        if self.rule is not None:
            return self.rule
        return load_rule(self.rule_file or config.rule, dtype=torch.float32)  # a file may store another

    def make_agent(self, config: TrainConfig, example: Observations, num_actions: int, outputs: OutputSpec) -> Agent:
        if self.agent is None and config.objects.agent:
            _ask_for("agent", config.objects.agent, "network")
        if not isinstance(self.agent, Agent):
            return Agent(example, num_actions, outputs, config.agent, torso=self.agent)
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(example)]
        for name, own, wanted in (
            ("observation_shapes", self.agent.observation_shapes, shapes),
            ("num_actions", self.agent.num_actions, num_actions),
            ("outputs", self.agent.outputs, outputs),
        ):
            if own != wanted:
                raise ValueError(
                    f"`agent` must have the `{name}` of the environment and the rule, {wanted}, got {own}; make it with "
                    "Agent(env.observation_example, env.num_actions, rule.outputs(env.num_actions))."
                )
        return self.agent


def bring(
    config: TrainConfig,
    *,
    env: EnvSource | None,
    agent: AgentConfig | nn.Module | None,
    rule: str | UpdateRule | None,
    wrappers: Sequence[Wrapper | str] | None,
    processes: int = 1,
) -> tuple[TrainConfig, RunObjects]:
    """The settings and the objects of a new run, in so many processes."""
    source = as_object(config.env if env is None else env)
    module = agent if isinstance(agent, nn.Module) else None
    changes: dict[str, Any] = {"agent": agent} if isinstance(agent, AgentConfig) else {}
    if agent is not None and not isinstance(agent, AgentConfig | nn.Module):
        raise ValueError(f"`agent` must be an Agent, a torso, which is a module, or an AgentConfig, got {_kind(agent)}.")
    if isinstance(module, Agent):
        changes["agent"] = module.config
    if isinstance(rule, UpdateRule):
        changes["rule"] = type(rule).__name__
    elif isinstance(rule, str):
        changes["rule"] = rule
    elif rule is not None:
        raise ValueError(f"`rule` must be an UpdateRule, or the name or file of one, got {_kind(rule)}.")
    if isinstance(source, str):
        changes["env"] = source
    else:
        changes["env"] = qualified_name(source)
        changes |= fields_of_object(source, processes)
        if isinstance(source, Environment) and config.device == "auto":
            changes["device"] = source.device.type
    found = as_wrappers(config.wrappers if wrappers is None else wrappers)
    names = ObjectsConfig(
        env="" if isinstance(source, str) else qualified_name(source),
        env_kind=kind_of(source),
        agent="" if module is None else qualified_name(type(module)),
        rule=qualified_name(type(rule)) if isinstance(rule, UpdateRule) else "",
    )
    changes |= {"wrappers": tuple(qualified_name(wrapper) for wrapper in found), "objects": names}
    own_rule = rule if isinstance(rule, UpdateRule) else None
    return replace(config, **changes), RunObjects(None if isinstance(source, str) else source, found, module, own_rule)


def bring_again(
    config: TrainConfig,
    *,
    env: EnvSource | None = None,
    agent: AgentConfig | nn.Module | None = None,
    rule: str | UpdateRule | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
) -> RunObjects:
    """The objects of a run that exists, compared with the names that its configuration has of them.

    What is missing is asked for when it is needed: acting needs no rule, and with stored spaces no environment.
    """
    names = config.objects
    source = None if env is None else as_object(env)
    if source is None and names.env_kind == "factory":
        source = find_named(names.env, importing=False)
    elif source is not None and kind_of(source) == names.env_kind:
        _check_name("env", names.env, source)
    for name, stored, given, kind in (("agent", names.agent, agent, nn.Module), ("rule", names.rule, rule, UpdateRule)):
        if given is None:
            continue
        if not stored:
            raise ValueError(f"`{name}` must be left out, got {_kind(given)}; the run's own configuration makes it.")
        if not isinstance(given, kind):
            raise ValueError(f"`{name}` must be the object that the run was given, of {stored}, got {_kind(given)}.")
        _check_name(name, stored, type(given))
    found = None if wrappers is None else as_wrappers(wrappers)
    if found is not None and len(found) != len(config.wrappers):
        raise ValueError(f"`wrappers` must be those of the run, {list(config.wrappers)}, got {len(found)}.")
    for stored, wrapper in zip(config.wrappers, found or (), strict=False):
        _check_name("wrappers", stored, wrapper)
    module, own_rule = agent if isinstance(agent, nn.Module) else None, rule if isinstance(rule, UpdateRule) else None
    return RunObjects(source, found, module, own_rule)


def as_object(env: EnvSource) -> EnvSource:
    """What stands behind "module:function", if that is not an id of Gymnasium; everything else as it is.

    Only for what a user has named: the module is imported, as Gymnasium imports that of an id.
    """
    if not isinstance(env, str) or ":" not in env:
        return env
    found = find_named(env, importing=True)
    return env if found is None or env.partition(":")[2] in gymnasium.registry else found


def as_wrappers(wrappers: Sequence[Wrapper | str]) -> list[Wrapper]:
    """Wrappers that a user has named or given; those that are named are imported."""
    found: list[Wrapper] = []
    for wrapper in wrappers:
        thing: Any = find_named(wrapper, importing=True) if isinstance(wrapper, str) else wrapper
        if not callable(thing):
            raise ValueError(f"`wrappers` must be functions or classes, or named as 'module:Name', got {wrapper!r}.")
        found.append(thing)
    return found


def kind_of(env: EnvSource) -> Any:
    """As `ObjectsConfig.env_kind`."""
    if isinstance(env, str):
        return ""
    if isinstance(env, Environment):
        return "environment"
    return "vector environment" if isinstance(env, VectorEnv) else "factory"


def fields_of_object(env: EnvSource | None, processes: int = 1) -> dict[str, Any]:
    """Settings that an object decides; each process has one like it."""
    return {"num_envs": processes * int(env.num_envs)} if isinstance(env, Environment | VectorEnv) else {}


def check_num_envs(config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Raises where a user asks for another number of environments than the object has."""
    if given.get("num_envs", config.num_envs) != config.num_envs:
        raise ValueError(
            f"`num_envs` must be that of the environment, {config.num_envs}, got {given['num_envs']}; leave it out."
        )


def describe_env(config: TrainConfig, env: Environment) -> TrainConfig:
    """The configuration with the spaces of its environment, and the name that an object has there."""
    observation_space, action_space = spaces_of(env)
    kinds = kinds_by_name(env, ROOT)
    objects = replace(
        config.objects, observation_space=observation_space, action_space=action_space, observation_kinds=kinds
    )
    name = env.name if objects.env_kind else config.env
    arguments = config.env_args if objects.env_kind else config.env_args | dict(env.settings)
    return replace(config, env=name, env_args=arguments, objects=objects)


def check_spaces(stored: ObjectsConfig, env: Environment) -> None:
    """Raises where an environment has other spaces than the run."""
    wanted = {"observation_space": stored.observation_space, "action_space": stored.action_space}
    for (name, old), new in zip(wanted.items(), spaces_of(env), strict=True):
        if old is not None and without_bounds(old) != without_bounds(new):
            raise ValueError(
                f"`env` must have the `{name}` of the run, {old}, got {new} of {env.name}; pass the environment that the "
                "run was trained in."
            )


def warn_about_images(config: TrainConfig, objects: RunObjects, example: Observations, replay_bytes: int) -> None:
    """Says what becomes of images where no convolutional torso reads them."""
    if objects.agent is not None or config.agent.torso != "mlp":
        return
    for leaf in tree_leaves(example):
        if kind_of_tensor(leaf) == "image":
            width = next(iter(config.agent.dense))
            warnings.warn(
                f"observations are images of {list(leaf.shape)} bytes, and the torso `mlp` reads them as {leaf.numel():,} "
                f"separate numbers, with {leaf.numel() * width:,} weights in its first layer; the replay takes "
                f"{replay_bytes / 2**20:.0f} MiB. Set the `torso` of `agent` to `auto`, for convolutions, and lower "
                "`replay_capacity` if memory is short.",
                stacklevel=3,
            )


def _check_name(argument: str, stored: str, given: Callable[..., Any] | Any) -> None:
    """Raises where an object has another name than the run's; a function without a name, such as a lambda, may be any."""
    name = qualified_name(given)
    if is_lookup_name(name) and is_lookup_name(stored) and name != stored:
        raise ValueError(f"`{argument}` must be that of the run, {stored}, got {name}; start a new run for another one.")


def _check_imported(env: str) -> None:
    """Raises where to make an environment would import a module that is not imported yet."""
    module, colon, _ = env.partition(":")
    if colon and module not in sys.modules:
        raise ValueError(
            f"`env` must not name a module that is not imported, got {env!r} in a configuration that was downloaded; if you "
            f"trust {module}, import it first, on the command line with --import {module}, or pass env=... to `load_run`."
        )


def _ask_for(argument: str, name: str, kind: str) -> NoReturn:
    """Raises where a run was given an object that is not at hand."""
    module = name.partition(":")[0]
    in_a_file = argument in ("env", "wrappers") and kind in ("factory", "wrapper") and is_lookup_name(name)
    shell = f", or on the command line --import {module}" if in_a_file else ""
    raise ValueError(
        f"`{argument}` must be given again: the run was given a {kind} as an object, {name}, which no file holds. Pass "
        f"{argument}=... to `train(resume=...)` or `load_run`{shell}."
    )


def _kind(thing: Any) -> str:
    return type(thing).__name__
