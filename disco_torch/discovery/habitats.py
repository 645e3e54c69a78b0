"""Habitats: the environments of a group of agents, seen as one whose observations and actions have one shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from disco_torch.agents import Agent, actions_from
from disco_torch.data import act_rows, executed_rows
from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.envs import EnvStep, PureEnvironment, make_env
from disco_torch.types import Params, Rollout, tree_dataclass, tree_map


@tree_dataclass
class ActingState:
    """Where the `P` agents stand, each in `B` parallel environments.

    Attributes:
      env_states: for each habitat its environment's state, a tree of [agents * B, ...].
      steps: for each habitat what its environments showed last, [agents * B, ...].
      returns: [P, B] float64, of the running episodes.
      memory: of the agents, a tree of [P, B, ...]; None for agents without one.
    """

    env_states: list[Any]
    steps: list[EnvStep]
    returns: Tensor
    memory: Any = None


@tree_dataclass
class EpisodeSums:
    """Sums over steps and environments, [P] each.

    Attributes:
      count, returns: number of the episodes that ended, and the sum of their returns.
      rewards: sum of all rewards.
      positive, negative: number of rewards above and below 0.
    """

    count: Tensor
    returns: Tensor
    rewards: Tensor
    positive: Tensor
    negative: Tensor


ActingRow = tuple[Rollout, EpisodeSums]


@dataclass(frozen=True)
class Habitat:
    """The parallel environments of this process's agents in one habitat, and which of its agents these are."""

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
      config: configuration of the group.
      num_envs: parallel environments that each agent acts in, `B`.
      device: device of the environments.
      dtype: floating-point type of the rows.
      rank, size: this process among all.
      executed: whether rollouts say which rows are executed.

    Attributes:
      truncates: whether a time limit may cut episodes in any of the group's environments, of all processes. If not,
        rollouts carry no truncations.
    """

    def __init__(
        self,
        config: GroupConfig,
        num_envs: int,
        device: torch.device,
        dtype: torch.dtype,
        rank: int = 0,
        size: int = 1,
        *,
        executed: bool = False,
    ) -> None:
        self.num_envs, self.device, self.dtype, self.executed = num_envs, device, dtype, executed
        # An environment without agents of this process is made as well: its random numbers are drawn in every process.
        self.all = [
            Habitat(habitat, make_pure(habitat, max(1, len(mine)) * num_envs, device), mine)
            for habitat, mine in zip(config.habitats, shares_of(config, rank, size), strict=True)
        ]
        self.num_actions = max(habitat.env.num_actions for habitat in self.all)
        self.observation_size = max(habitat.env.observation_example.numel() for habitat in self.all)
        self.observation_shape = self._shape_for(config.agent.torso)
        self.truncates = any(habitat.env.truncates for habitat in self.all)
        self.ids: list[int] = []
        """Places in the group of the agents that this process has."""
        self.total = 0
        for habitat in self.all:
            self.ids += [self.total + i for i in habitat.mine]
            self.total += habitat.config.agents
        self.habitats = [habitat for habitat in self.all if habitat.mine]

    def _shape_for(self, torso: str) -> tuple[int, ...]:
        """The shape in which agents see observations: their own for convolutions, else flat."""
        shapes = {tuple(habitat.env.observation_example.shape) for habitat in self.all}
        if torso not in ("mlp", "auto") and len(shapes) > 1:
            raise ValueError(
                f"`torso` of a group must be 'mlp' where its environments have observations of several shapes, "
                f"{sorted(shapes)}, got {torso!r}; put each shape into a group of its own."
            )
        return (self.observation_size,) if torso == "mlp" or len(shapes) > 1 else shapes.pop()

    @property
    def num_agents(self) -> int:
        return len(self.ids)

    def draws(self, rows: int, generator: torch.Generator) -> tuple[Tensor, list[Tensor]]:
        """The uniform numbers of `rows` steps: of the actions, [rows, P, B, A], and of each environment.

        Drawn for the agents of all processes, of which this one takes its own: so the population's games do not depend on
        how it is split.
        """
        n, A, B = self.total, self.num_actions, self.num_envs
        uniforms = torch.rand(rows, n, B, A, generator=generator, device=self.device)
        env_uniforms = []
        for habitat in self.all:
            draws = habitat.env.step_draws + habitat.env.episode_draws
            drawn = torch.rand(rows, habitat.config.agents, B, draws, generator=generator, device=self.device)
            if habitat.mine:
                mine = slice(habitat.mine[0], habitat.mine[-1] + 1)
                env_uniforms.append(drawn[:, mine].flatten(1, 2))  # [rows, agents * B, draws]
        return (uniforms if self.num_agents == n else uniforms[:, self.ids]), env_uniforms

    def begin(self, agent: int, generator: torch.Generator) -> tuple[int, Any, EnvStep]:
        """A level for one agent of this process and an episode in each of its environments: habitat, state and step."""
        i = 0
        while agent >= self.habitats[i].num_agents:
            agent -= self.habitats[i].num_agents
            i += 1
        env = self.habitats[i].env
        level = torch.rand(1, env.level_draws, generator=generator).expand(self.num_envs, -1)
        episodes = torch.rand(self.num_envs, env.episode_draws, generator=generator)
        return i, *env.start(level.to(self.device), episodes.to(self.device))

    def of_unknown_scale(self, habitats: Sequence[Habitat]) -> Tensor:
        """1 for each agent that sees "numbers", see `disco_torch.envs.kinds`, else 0; an empty habitat counts as one."""
        kinds = [habitat.env.observation_kinds for habitat in habitats for _ in habitat.mine or [0]]
        return torch.tensor([kind not in ("unit", "image") for kind in kinds], dtype=torch.float64, device=self.device)

    def observations(self, steps: list[EnvStep]) -> Tensor:
        """What all agents act on, [P, B, ...]: flat and padded with zeros, or in its own shape."""
        return self._padded([step.observations for step in steps])

    def _padded(self, observations: list[Tensor]) -> Tensor:
        flat = [x.flatten(1) for x in observations]
        padded = self.join([torch.nn.functional.pad(x, (0, self.observation_size - x.shape[1])) for x in flat])
        return padded.unflatten(2, self.observation_shape) if len(self.observation_shape) > 1 else padded

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """From [agents * B, ...] of each habitat to [P, B, ...]."""
        return torch.cat([part.unflatten(0, (-1, self.num_envs)) for part in parts])

    def act(
        self,
        agent: Agent,
        params: Params,
        state: ActingState,
        uniforms: Tensor,
        env_uniforms: Sequence[Tensor],
        see: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[ActingState, ActingRow]:
        """One step of all agents: a pure function, of uniform numbers [P, B, A] and those of the environments.

        Returns the next state, and its row: one of each agent's rollout, [P, B, ...], and what ended with the step. The row
        holds what the environments gave, whatever `see` makes of it for the agents.
        """
        observations = self.observations(state.steps)
        seen = observations if see is None else see(observations)
        logits, memory = self._policies(agent, params, seen, state)
        actions = actions_from(logits, uniforms)
        row = self._row(state.steps, observations, actions, logits)
        env_states, steps, logged, first = [], [], [], 0
        for habitat, env_state, numbers in zip(self.habitats, state.env_states, env_uniforms, strict=True):
            own = actions[first : first + habitat.num_agents].flatten() % habitat.env.num_actions
            env_state, step = habitat.env.step_with(env_state, own, numbers)
            env_states.append(env_state)
            steps.append(step)
            logged.append(habitat.env.logged_rewards(env_state, step))
            first += habitat.num_agents
        rewards = self.join(logged).to(self.dtype)
        ends = self.join([step.episode_ends for step in steps])
        returns = state.returns + rewards
        ended = torch.where(ends, returns, 0.0).sum(1).to(self.dtype)
        sums = EpisodeSums(ends.to(self.dtype).sum(1), ended, rewards.sum(1), (rewards > 0).sum(1), (rewards < 0).sum(1))
        return ActingState(env_states, steps, torch.where(ends, 0.0, returns), memory), (row, sums)

    def _policies(self, agent: Agent, params: Params, seen: Tensor, state: ActingState) -> tuple[Tensor, Any]:
        """The logits [P, B, A] of all agents, each with its own parameters, and their memory after it."""
        if state.memory is None:
            return vmap(lambda own, seen: agent.policy(own, seen)[0])(params, seen), None
        first = self.join([step.is_first for step in state.steps])  # [P, B]
        return vmap(agent.policy)(params, seen, first, state.memory)

    def _row(self, steps: list[EnvStep], observations: Tensor, actions: Tensor, logits: Tensor) -> Rollout:
        """As `rollout_row` of `disco_torch.data`: a cut row shows the last observation of its episode, and is marked."""
        shown, truncations = observations, None
        if self.truncates:
            finals = [step.observations if step.final_observations is None else step.final_observations for step in steps]
            shown, truncations = self._padded(finals), self.join([step.truncations for step in steps])
        rewards = self.join([step.rewards for step in steps]).to(self.dtype)
        discounts = self.join([step.discounts for step in steps]).to(self.dtype)
        executed = self.join([executed_rows(step) for step in steps]) if self.executed else None
        return Rollout(shown, actions, rewards, discounts, logits, truncations, executed=executed)


def collect_population(
    step: Callable[[ActingState, tuple[Tensor, Sequence[Tensor]]], tuple[ActingState, ActingRow]],
    state: ActingState,
    uniforms: Tensor,
    env_uniforms: list[Tensor],
) -> tuple[ActingState, Rollout, EpisodeSums]:
    """A rollout of all agents, [P, rows, B, ...], and what ended in it.

    Args:
      step: `Habitats.act` for some parameters, of a state and the numbers of one step.
      state: where the agents stand.
      uniforms, env_uniforms: random numbers of all steps, as `Habitats.draws` gives them.
    """
    numbers = zip(uniforms.unbind(), zip(*(drawn.unbind() for drawn in env_uniforms), strict=True), strict=True)
    after, (rollout, sums) = act_rows(step, state, numbers, dim=1)
    rollout = dataclasses.replace(rollout, first_state=state.memory)
    return after, rollout, tree_map(lambda x: x.sum(1), sums)


def make_pure(config: HabitatConfig, num_envs: int, device: torch.device) -> PureEnvironment:
    if "level_seed" in config.env_args:
        raise ValueError(
            f"`env_args` of a habitat must not name a `level_seed`, got {config.env_args['level_seed']!r} for "
            f"{config.env!r}; every life draws its own level."
        )
    arguments: dict[str, Any] = dict(config.env_args)
    env = make_env(config.env, num_envs, device=device, **arguments)
    if not isinstance(env, PureEnvironment):
        raise ValueError(
            f"`env` of a habitat must be `catch` or a family of tensors, got {config.env!r}; see docs/environments.md."
        )
    return env
