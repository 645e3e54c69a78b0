"""Where the agents of a group live: several environments, seen as one whose observations and actions have one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from disco_torch.agents import Agent, actions_from
from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.envs import EnvStep, PureEnvironment, make_env
from disco_torch.types import Params, Rollout, tree_dataclass


@tree_dataclass
class ActingState:
    """Where all copies of the `P` agents stand.

    Attributes:
      worlds: for each habitat its environment's state, a tree of [agents * copies, ...].
      steps: for each habitat the rows to act on next.
      returns: [P, copies], of the episodes under way.
    """

    worlds: list[Any]
    steps: list[EnvStep]
    returns: Tensor


@tree_dataclass
class EpisodeSums:
    """Of the episodes that ended, [P] each: their number and the sum of their returns; and the steps' rewards."""

    count: Tensor
    returns: Tensor
    rewards: Tensor
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Habitat:
    """An environment with the copies of this process's agents, and which of its agents these are."""

    config: HabitatConfig
    env: PureEnvironment
    mine: Sequence[int]

    @property
    def num_agents(self) -> int:
        return len(self.mine)


def shares_of(config: GroupConfig, rank: int, size: int) -> list[list[int]]:
    """Which agents of each habitat a process has: a group is split in order, as evenly as can be."""
    low, high, first = config.num_agents * rank // size, config.num_agents * (rank + 1) // size, 0
    shares = []
    for habitat in config.habitats:
        shares.append(list(range(max(0, low - first), min(habitat.agents, high - first))))
        first += habitat.agents
    return shares


class Habitats:
    """All environments of a group, for the agents that this process has.

    Args:
      config: of the group.
      copies: of its environment that each agent acts in.
      rank, size: this process among all.
    """

    def __init__(
        self, config: GroupConfig, copies: int, device: torch.device, dtype: torch.dtype, rank: int = 0, size: int = 1
    ) -> None:
        self.copies, self.device, self.dtype = copies, device, dtype
        # An environment of which no agent is this process's has a copy nevertheless: its numbers are drawn everywhere.
        self.all = [
            Habitat(habitat, make_pure(habitat, max(1, len(mine)) * copies, device), mine)
            for habitat, mine in zip(config.habitats, shares_of(config, rank, size), strict=True)
        ]
        self.num_actions = max(habitat.env.num_actions for habitat in self.all)
        self.observation_size = max(habitat.env.observation_example.numel() for habitat in self.all)
        self.ids: list[int] = []
        """Of this process's agents, their places in the group."""
        self.total = 0
        for habitat in self.all:
            self.ids += [self.total + i for i in habitat.mine]
            self.total += habitat.config.agents
        self.habitats = [habitat for habitat in self.all if habitat.mine]

    @property
    def num_agents(self) -> int:
        return len(self.ids)

    def draws(self, rows: int, generator: torch.Generator) -> tuple[Tensor, list[Tensor]]:
        """The uniform numbers of `rows` steps: of the actions, [rows, P, copies, A], and of each environment.

        Drawn for the agents of all processes, of which this one takes its own: so the population's games do not depend on
        how it is split.
        """
        n, A, copies = self.total, self.num_actions, self.copies
        uniforms = torch.rand(rows, n, copies, A, generator=generator, device=self.device)
        worlds = []
        for habitat in self.all:
            draws = habitat.env.step_draws + habitat.env.episode_draws
            drawn = torch.rand(rows, habitat.config.agents, copies, draws, generator=generator, device=self.device)
            if habitat.mine:
                mine = slice(habitat.mine[0], habitat.mine[-1] + 1)
                worlds.append(drawn[:, mine].flatten(1, 2))  # [rows, agents * copies, draws]
        return (uniforms if self.num_agents == n else uniforms[:, self.ids]), worlds

    def begin(self, agent: int, generator: torch.Generator) -> tuple[int, Any, EnvStep]:
        """A level for one agent of this process and an episode in each of its copies: its habitat, and state and rows."""
        i = 0
        while agent >= self.habitats[i].num_agents:
            agent -= self.habitats[i].num_agents
            i += 1
        env = self.habitats[i].env
        level = torch.rand(1, env.level_draws, generator=generator).expand(self.copies, -1)
        episodes = torch.rand(self.copies, env.episode_draws, generator=generator)
        return i, *env.start(level.to(self.device), episodes.to(self.device))

    def observations(self, steps: list[EnvStep]) -> Tensor:
        """What all agents see, flat and padded with zeros, [P, copies, size]."""
        padded = []
        for step in steps:
            flat = step.observations.flatten(1)
            flat = torch.nn.functional.pad(flat, (0, self.observation_size - flat.shape[1]))
            padded.append(flat.unflatten(0, (-1, self.copies)))
        return torch.cat(padded)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """From [agents * copies] of each habitat to [P, copies]."""
        return torch.cat([part.unflatten(0, (-1, self.copies)) for part in parts])

    def act(
        self, agent: Agent, params: Params, state: ActingState, uniforms: Tensor, worlds: list[Tensor]
    ) -> tuple[ActingState, Rollout, EpisodeSums]:
        """One step of all copies: a pure function, of the uniform numbers [P, copies, A] and those of the environments.

        Returns the next state, a row of each agent's rollout [P, copies, ...], and what ended with the step.
        """
        observations = self.observations(state.steps)
        rewards = self.join([step.rewards for step in state.steps]).to(self.dtype)
        discounts = self.join([step.discounts for step in state.steps]).to(self.dtype)
        logits = vmap(lambda own, seen: agent.policy(own, seen)[0])(params, observations)  # each with its own parameters
        actions = actions_from(logits, uniforms)
        row = Rollout(observations, actions, rewards, discounts, logits)
        next_worlds, steps, first = [], [], 0
        for habitat, world, numbers in zip(self.habitats, state.worlds, worlds, strict=True):
            own = actions[first : first + habitat.num_agents].flatten() % habitat.env.num_actions
            world, step = habitat.env.step_with(world, own, numbers)
            next_worlds.append(world)
            steps.append(step)
            first += habitat.num_agents
        earned = self.join([step.rewards for step in steps]).to(self.dtype)
        ends = self.join([step.episode_ends for step in steps]).to(self.dtype)
        returns = state.returns + earned
        sums = EpisodeSums(ends.sum(1), (returns * ends).sum(1), earned.sum(1), (earned > 0).sum(1), (earned < 0).sum(1))
        return ActingState(next_worlds, steps, returns * (1.0 - ends)), row, sums


def make_pure(config: HabitatConfig, copies: int, device: torch.device) -> PureEnvironment:
    if "level_seed" in config.env_args:
        raise ValueError(
            f"`env_args` of a habitat must not name a `level_seed`, got {config.env_args['level_seed']!r} for "
            f"{config.env!r}; every life draws a level of its own."
        )
    env = make_env(config.env, copies, device=device, **config.env_args)
    if not isinstance(env, PureEnvironment):
        raise ValueError(
            f"`env` of a habitat must be `catch` or a family of tensors, got {config.env!r}; see docs/environments.md."
        )
    return env
