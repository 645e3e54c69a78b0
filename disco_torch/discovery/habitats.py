"""Habitats: the environments of a group of agents, seen as one whose observations and actions have one shape.

Environments of tensors are stepped as pure functions of `ActingState`. The state of those on the host is in them; what they
showed last is in the `ActingState` like that of the others, so that all else is a pure function of it.
"""

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
from disco_torch.discovery.host_environments import HostEnvironments, make_habitat_env
from disco_torch.discovery.observation_layout import kinds_of, make_layout
from disco_torch.envs import EnvironmentFailure, EnvStep, PureEnvironment
from disco_torch.types import Observations, Params, Rollout, tree_dataclass, tree_map


@tree_dataclass
class ActingState:
    """Where the `P` agents stand, each in `B` parallel environments.

    Attributes:
      env_states: for each habitat its environment's state, a tree of [agents * B, ...]; empty on the host.
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


@tree_dataclass
class Decisions:
    """What all agents do: actions [P, B], the row of their rollouts [P, B, ...], and their memory after it."""

    actions: Tensor
    row: Rollout
    memory: Any = None


ActingRow = tuple[Rollout, EpisodeSums]


@dataclass(frozen=True)
class Habitat:
    """The parallel environments of this process's agents in one habitat, and which of its agents these are."""

    config: HabitatConfig
    env: PureEnvironment | HostEnvironments
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
      raw: whether observations are shown as they are; see `InputConfig.observations`.
      imports_names: whether environments named "module:function" may import their module.

    Attributes:
      layout: the shape and dtype that agents see observations in.
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
        raw: bool = True,
        imports_names: bool = True,
    ) -> None:
        self.num_envs, self.device, self.dtype, self.executed = num_envs, device, dtype, executed
        # An environment without agents of this process is made as well: its random numbers are drawn in every process.
        self.all: list[Habitat] = []
        try:
            for own, mine in zip(config.habitats, shares_of(config, rank, size), strict=True):
                env = make_habitat_env(own, len(mine), num_envs, device, imports_names)
                self.all.append(Habitat(own, env, mine))
            self.layout = make_layout([habitat.env for habitat in self.all], config.agent.torso, raw)
        except BaseException:
            self.close()
            raise
        self.num_actions = max(habitat.env.num_actions for habitat in self.all)
        self.truncates = any(habitat.env.truncates for habitat in self.all)
        self.ids: list[int] = []
        """Places in the group of the agents that this process has."""
        self.total = 0
        for habitat in self.all:
            self.ids += [self.total + i for i in habitat.mine]
            self.total += habitat.config.agents
        self.habitats = [habitat for habitat in self.all if habitat.mine]

    @property
    def has_hosts(self) -> bool:
        """Whether any environment of the group is stepped on the host, in any process."""
        return any(isinstance(habitat.env, HostEnvironments) for habitat in self.all)

    @property
    def failure(self) -> EnvironmentFailure | None:
        """The first failure of an environment on the host."""
        hosts = [habitat.env for habitat in self.habitats if isinstance(habitat.env, HostEnvironments)]
        return next((host.failure for host in hosts if host.failure is not None), None)

    def close(self) -> None:
        """Closes the environments on the host."""
        for habitat in self.all:
            habitat.env.close()

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def observation_size(self) -> int:
        return self.layout.size

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

    def place_of(self, agent: int) -> tuple[int, int]:
        """The habitat of an agent of this process, and its place among this process's agents there."""
        i = 0
        while agent >= self.habitats[i].num_agents:
            agent -= self.habitats[i].num_agents
            i += 1
        return i, agent

    def begin(self, agent: int, generator: torch.Generator) -> tuple[int, Any, EnvStep]:
        """A level for one agent of this process and an episode in each of its environments: habitat, state and step.

        On the host there is no level: the seed decides.
        """
        i, place = self.place_of(agent)
        env = self.habitats[i].env
        if isinstance(env, HostEnvironments):
            return i, (), env.begin(place, generator)
        level = torch.rand(1, env.level_draws, generator=generator).expand(self.num_envs, -1)
        episodes = torch.rand(self.num_envs, env.episode_draws, generator=generator)
        return i, *env.start(level.to(self.device), episodes.to(self.device))

    def of_unknown_scale(self, habitats: Sequence[Habitat]) -> Tensor:
        """1 for each agent that sees "numbers", see `disco_torch.envs.kinds`, else 0; an empty habitat counts as one."""
        unknown = [any(kind not in ("unit", "image") for kind in kinds_of(habitat.env)) for habitat in habitats]
        agents = [is_unknown for is_unknown, habitat in zip(unknown, habitats, strict=True) for _ in habitat.mine or [0]]
        return torch.tensor(agents, dtype=torch.float64, device=self.device)

    def observations(self, steps: list[EnvStep]) -> Tensor:
        """What all agents act on, [P, B, ...]: flat and padded with zeros, or in its own shape."""
        return self._padded([step.observations for step in steps])

    def _padded(self, observations: list[Observations]) -> Tensor:
        pairs = zip(self.habitats, observations, strict=True)
        return self.layout.unflat(self.join([self.layout.flat(habitat.env, x) for habitat, x in pairs]))

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
        """One step of all agents, with uniform numbers [P, B, A] and those of the environments.

        A pure function where no environment is on the host. Returns the next state, and its row: one of each agent's
        rollout, [P, B, ...], and what ended with the step. The row holds what the environments gave, whatever `see` makes of
        it for the agents.
        """
        decisions = self.decide(agent, params, state, uniforms, see)
        after, sums = self.move(state, decisions, env_uniforms, self.step_hosts(decisions.actions))
        return after, (decisions.row, sums)

    def decide(
        self,
        agent: Agent,
        params: Params,
        state: ActingState,
        uniforms: Tensor,
        see: Callable[[Tensor], Tensor] | None = None,
    ) -> Decisions:
        """What all agents do on what their environments showed last; a pure function."""
        observations = self.observations(state.steps)
        seen = observations if see is None else see(observations)
        logits, memory = self._policies(agent, params, seen, state)
        actions = actions_from(logits, uniforms)
        return Decisions(actions, self._row(state.steps, observations, actions, logits), memory)

    def step_hosts(self, actions: Tensor) -> list[EnvStep | None]:
        """Takes actions [P, B] in the environments on the host; an entry for each habitat, None for one of tensors."""
        steps: list[EnvStep | None] = []
        first = 0
        for habitat in self.habitats:
            env, own = habitat.env, actions[first : first + habitat.num_agents].flatten()
            steps.append(env.step(own % env.num_actions) if isinstance(env, HostEnvironments) else None)
            first += habitat.num_agents
        return steps

    def move(
        self, state: ActingState, decisions: Decisions, env_uniforms: Sequence[Tensor], host_steps: list[EnvStep | None]
    ) -> tuple[ActingState, EpisodeSums]:
        """Takes the agents' actions in the environments of tensors, beside the steps on the host; a pure function."""
        env_states, steps, logged, first = [], [], [], 0
        parts = zip(self.habitats, state.env_states, env_uniforms, host_steps, strict=True)
        for habitat, env_state, numbers, host_step in parts:
            env, step = habitat.env, host_step
            if isinstance(env, PureEnvironment):
                own = decisions.actions[first : first + habitat.num_agents].flatten() % env.num_actions
                env_state, step = env.step_with(env_state, own, numbers)
            assert step is not None
            env_states.append(env_state)
            steps.append(step)
            logged.append(env.logged_rewards(env_state, step) if isinstance(env, PureEnvironment) else step.rewards)
            first += habitat.num_agents
        rewards = self.join(logged).to(self.dtype)
        ends = self.join([step.episode_ends for step in steps])
        returns = state.returns + rewards
        ended = torch.where(ends, returns, 0.0).sum(1).to(self.dtype)
        sums = EpisodeSums(ends.to(self.dtype).sum(1), ended, rewards.sum(1), (rewards > 0).sum(1), (rewards < 0).sum(1))
        return ActingState(env_states, steps, torch.where(ends, 0.0, returns), decisions.memory), sums

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
