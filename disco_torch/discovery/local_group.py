"""This process's share of one group of agents, and their lives: births, ages, lifetimes, renewal."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from disco_torch.agents import Agent, choose_torso
from disco_torch.data import InputStats, empty_replay, forget_agents
from disco_torch.discovery.config import DiscoverConfig, GroupConfig
from disco_torch.discovery.group_state import Draws, GroupGradient, GroupState, WindowUpdate, is_finite
from disco_torch.discovery.habitats import ActingState, Habitats
from disco_torch.discovery.host_environments import HostEnvironments
from disco_torch.discovery.inner_loop import InnerLoop
from disco_torch.discovery.mixed_mode import MixedModeMetaGradient, SavedUpdate
from disco_torch.discovery.pooled_values import PooledValues
from disco_torch.discovery.population_inputs import population_inputs
from disco_torch.discovery.recorded_meta_update import RecordedMetaUpdate
from disco_torch.envs import EnvStep
from disco_torch.kernels import Speed
from disco_torch.rules import DiscoUpdateRule
from disco_torch.runs import World
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionState
from disco_torch.types import Params, Rollout, tree_map, tree_stack


@dataclass(frozen=True)
class Life:
    """The beginning of an agent's life: how many updates it lasts, what it and its value function know, and a generator
    for its environments.
    """

    lifetime: int
    learner: LearnerState
    value: ValueFunctionState
    generator: torch.Generator


class LocalGroup:
    """This process's share of one group of the population; with a single process, the whole group.

    Args:
      config: the discovery.
      index: which of its groups.
      rule: the architecture of the rule; its parameters are passed in.
      device: where the agents live.
      speed: how their meta-updates run.
      world: the processes that the group is split over; defaults to this one alone.
      imports_names: whether environments named "module:function" may import their module.
    """

    def __init__(
        self,
        config: DiscoverConfig,
        index: int,
        rule: DiscoUpdateRule,
        device: torch.device,
        speed: Speed,
        world: World | None = None,
        imports_names: bool = True,
    ) -> None:
        self.config, self.index, self.device, self.world = config, index, device, world or World()
        self.own: GroupConfig = config.groups[index]
        dtype = getattr(torch, config.dtype)
        executed = config.first_steps or config.inputs.rewards == "normalized"
        self.habitats = Habitats(
            self.own,
            config.num_parallel_envs,
            device,
            dtype,
            self.world.rank,
            self.world.size,
            executed=executed,
            raw=config.inputs.observations == "raw",
            imports_names=imports_names,
        )
        self.inputs = population_inputs(config.inputs, self.habitats, rule.config.value_discount)
        example = torch.zeros(self.habitats.observation_shape, dtype=self.habitats.layout.dtype)
        A = self.habitats.num_actions
        network = choose_torso(self.own.agent, example, self.habitats.layout.kind)
        self.agent = Agent(example, A, rule.outputs(A), network).to(device, dtype)
        self.value_function = ValueFunction(example, config.value_function)
        self.value_function.net.to(device, dtype)
        learner = Learner(self.agent, rule, config.agent_optimizer, config.hyper_params or None, epochs=config.epochs)
        self.meta_gradient = MixedModeMetaGradient(learner, self.value_function, config.weights)
        self.shared_value_groups = len(self.own.habitats) if config.share_values else 0
        rates = [self.own.learning_rates[i % len(self.own.learning_rates)] for i in self.habitats.ids]
        self.rates = torch.tensor(rates, dtype=dtype, device=device)
        self.generator = torch.Generator(device).manual_seed(seed_of(config.seed, index))
        self.lives = [0] * self.num_agents
        self.ages = [0] * self.num_agents
        self.lifetimes = [0] * self.num_agents
        self._before: GroupState | None = None
        if self.num_agents:
            self.state = self._first_state()
        if self.habitats.failure is not None:
            self.habitats.close()
            raise self.habitats.failure
        pooled = self._pooled_values()
        self.loop = InnerLoop(config, self.meta_gradient, self.habitats, self.shared_value_groups, self.inputs, pooled)
        self.meta_update = RecordedMetaUpdate(self.loop, speed)

    def _pooled_values(self) -> PooledValues | None:
        """Shared value functions, unless all agents are here and equally many have each: then they are one batch."""
        is_even = len({habitat.agents for habitat in self.own.habitats}) == 1
        if not self.shared_value_groups or (is_even and self.world.size == 1):
            return None
        counts = [habitat.num_agents for habitat in self.habitats.all]
        is_masked = self.value_function.config.aligned or self.habitats.truncates or self.config.first_steps
        return PooledValues(self.value_function, counts, is_masked, self.world.sum)

    @property
    def num_agents(self) -> int:
        return self.habitats.num_agents

    @property
    def _functions(self) -> list[int]:
        """The shared value function of each agent of the group, whichever process it is in."""
        return [i for i, habitat in enumerate(self.own.habitats) for _ in range(habitat.agents)]

    def habitat_of(self, agent: int) -> str:
        """The name of the environment that an agent of this process lives in."""
        names = [h.config.env for h in self.habitats.habitats for _ in h.mine]
        return names[agent]

    def advance(self, rule_params: Params) -> GroupGradient | None:
        """As many updates of all agents as one of the rule has, and the gradient of the meta-loss through the window.

        None in a process without agents of the group.
        """
        if not self.num_agents:
            self._stand_by()
            return None
        before = self.state
        self.state, gradient = self.meta_update(before, rule_params, self.draws(), self.rates)
        self._before = before if self.habitats.has_hosts else None
        self.ages = [age + self.config.updates_per_meta_update for age in self.ages]
        return gradient

    def undo_advance(self) -> None:
        """Takes the last `advance` back, in which an environment on the host has failed in some process.

        The replay was written into: it loses its oldest trajectories, which are gone. A group without such environments has
        lost nothing and stays as it is.
        """
        if self._before is None:
            return
        self.state, self._before = self._before, None
        self.ages = [age - self.config.updates_per_meta_update for age in self.ages]
        replay = self.state.replay
        if replay is not None:
            written = self.config.updates_per_meta_update * self.config.num_envs
            left = max(0, self.config.replay_capacity - written)
            self.state.replay = dataclasses.replace(replay, sizes=replay.sizes.clamp(max=left))

    def _stand_by(self) -> None:
        """The part of a process without agents of the group in its meta-update: sums over processes are of all."""
        pooled = self.loop.pooled
        if pooled is None:
            return
        blank, last = pooled.blank_sums(dict(self.value_function.net.named_parameters()))
        for _ in range(self.config.updates_per_meta_update):
            pooled.total(blank)
        pooled.total(last)

    def is_finite(self) -> Tensor:
        """Whether all that an agent and its value function have learned is finite, [P]; nothing is read back here.

        A moment that overflows stays so for good: its weight would never move again, while every gradient may be finite.
        """
        values = is_finite(self.state.values)
        if self.shared_value_groups:
            values = values[[self._functions[i] for i in self.habitats.ids]]
        return is_finite(self.state.learners) & values

    def draws(self) -> Draws:
        """All random numbers of a meta-update, in the order of their use."""
        config, collections, batches = self.config, [], []
        for _ in range(config.updates_per_meta_update):
            collections.append(self.habitats.draws(config.rollout_length, self.generator))
            if config.replay_capacity:
                drawn = config.batch_size - config.num_fresh
                uniforms = torch.rand(self.habitats.total, drawn, generator=self.generator, device=self.device)
                batches.append(uniforms[self.habitats.ids])
        collections.append(self.habitats.draws(config.valid_length, self.generator))
        return Draws(collections, batches)

    # Lives.

    def _first_state(self) -> GroupState:
        births = [self._birth(agent) for agent in range(self.num_agents)]
        learners: LearnerState = tree_stack([birth[0] for birth in births])
        values: ValueFunctionState = tree_stack([birth[1] for birth in births])
        if self.shared_value_groups:  # those of the first agents, which may be another process's
            values = tree_stack([self._life(i, 0).value for i in range(self.shared_value_groups)])
        started: list[list[Any]] = [[] for _ in self.habitats.habitats]
        for _, _, habitat, env in births:
            started[habitat].append(env)
        joined = [tree_map(lambda *xs: torch.cat(xs), *parts) for parts in started]
        returns = torch.zeros(self.num_agents, self.config.num_parallel_envs, dtype=torch.float64, device=self.device)
        acting = ActingState([env_state for env_state, _ in joined], [step for _, step in joined], returns)
        acting.memory = self._first_memory(self.config.num_parallel_envs)
        capacity = self.config.replay_capacity
        replay = empty_replay(capacity, self.blank_rollout(self.config.num_envs)) if capacity else None
        return GroupState(learners, values, acting, replay, self._first_inputs(), [])

    def _first_memory(self, num_envs: int) -> Any:
        """The agents' memory before the first observation, a tree of [P, num_envs, ...]; None for agents without one."""
        return tree_map(lambda x: x.expand(self.num_agents, *x.shape).contiguous(), self.agent.initial_state(num_envs))

    def _first_inputs(self) -> InputStats | None:
        if self.inputs is None:
            return None
        return self.inputs.init(self.habitats.observation_shape, self.config.num_parallel_envs)

    def _life(self, agent_id: int, life: int) -> Life:
        """A new life, from numbers that depend on the agent and on which of its lives it is, not on the process.

        Lifetimes are drawn with probabilities proportional to 1 / lifetime. First lives are cut short at random, so that
        they do not end together.
        """
        generator = torch.Generator().manual_seed(seed_of(self.config.seed, self.index, agent_id, life))
        lifetimes = torch.tensor(self.config.lifetimes or [0], dtype=torch.float64)
        weights = 1.0 / lifetimes if self.config.lifetimes else torch.ones(1, dtype=torch.float64)
        chosen = int(torch.multinomial(weights, 1, generator=generator))
        share = float(torch.rand((), generator=generator)) if life == 0 else 1.0
        lifetime = max(1, round(float(lifetimes[chosen]) * share)) if self.config.lifetimes else 0
        learner = self.meta_gradient.learner.init(generator)
        return Life(lifetime, learner, self.value_function.init(generator), generator)

    def _birth(self, agent: int) -> tuple[LearnerState, ValueFunctionState, int, Any]:
        """A new life of an agent of this process: what it and its value function know, its habitat and its environments."""
        life = self._life(self.habitats.ids[agent], self.lives[agent])
        self.lifetimes[agent], self.ages[agent] = life.lifetime, 0
        habitat, *env = self.habitats.begin(agent, life.generator)
        return life.learner, life.value, habitat, tuple(env)

    def failures(self, failed: list[int]) -> dict[int, int]:
        """By their place in the group, the lives that begin where agents of this process have failed."""
        return {self.habitats.ids[agent]: self.lives[agent] + 1 for agent in failed}

    def renew(self, failed: list[int], failures: dict[int, int] | None = None) -> int:
        """Replaces the agents whose lives are over, and those that failed; returns how many.

        Args:
          failed: agents of this process.
          failures: those of all processes, see `failures`; defaults to this process's.
        """
        failures = self.failures(failed) if failures is None else failures
        over = [i for i in range(self.num_agents) if 0 < self.lifetimes[i] <= self.ages[i]]
        due = sorted({*over, *failed})
        for agent in due:
            self._replace(agent)
        if self.shared_value_groups and self.num_agents:
            # What a value function learned from such an agent may not be finite, and it would never recover.
            for agent_id in sorted(failures):
                value = self._life(agent_id, failures[agent_id]).value
                self.state.values = put(self.state.values, self._functions[agent_id], value)
        if due:
            which, state = torch.tensor(due, device=self.device), self.state
            if state.replay is not None:
                state.replay = forget_agents(state.replay, which)
            for update in state.window:
                assert update.alive is not None
                update.alive = update.alive.index_fill(0, which, 0.0)
        return len(due)

    def _replace(self, agent: int) -> None:
        """Puts a new life in an agent's place."""
        self.lives[agent] += 1
        learner, value, habitat, env = self._birth(agent)
        state = self.state
        state.learners = put(state.learners, agent, learner)
        if not self.shared_value_groups:
            state.values = put(state.values, agent, value)
        self._begin_episodes(agent, habitat, *env)
        if state.inputs is not None:
            state.inputs = put(state.inputs, agent, tree_map(lambda x: x[agent], self._first_inputs()))

    def _begin_episodes(self, agent: int, habitat: int, env_state: Any, step: EnvStep) -> None:
        """Puts new episodes in the place of an agent's."""
        acting = self.state.acting
        first = self.habitats.place_of(agent)[1]
        rows = slice(first * self.config.num_parallel_envs, (first + 1) * self.config.num_parallel_envs)
        acting.env_states[habitat] = put(acting.env_states[habitat], rows, env_state)
        acting.steps[habitat] = put(acting.steps[habitat], rows, step)
        acting.returns = put(acting.returns, agent, torch.zeros_like(acting.returns[0]))
        memory = tree_map(lambda x: x[0], self._first_memory(self.config.num_parallel_envs))
        acting.memory = put(acting.memory, agent, memory)

    def restart_hosts(self) -> None:
        """Begins new episodes in all environments on the host, whose state no checkpoint holds."""
        for agent in range(self.num_agents):
            if not isinstance(self.habitats.habitats[self.habitats.place_of(agent)[0]].env, HostEnvironments):
                continue
            # Other episodes than those that the life began with, and the same whenever it is resumed from here.
            place = (self.habitats.ids[agent], self.lives[agent], self.ages[agent])
            generator = torch.Generator().manual_seed(seed_of(self.config.seed, self.index, *place))
            self._begin_episodes(agent, *self.habitats.begin(agent, generator))
            if self.inputs is not None and self.state.inputs is not None:
                own = self.inputs.normalizer.restart(tree_map(lambda x, i=agent: x[i], self.state.inputs))
                self.state.inputs = put(self.state.inputs, agent, own)

    # Trees in the shapes of the real ones, for the replay and for checkpoints.

    def blank_rollout(self, batch: int) -> Rollout:
        """Zeros in the shapes of a rollout to learn from, [P, rows, batch, ...]."""
        rows = (self.num_agents, self.config.rollout_length, batch)
        numbers = torch.zeros(rows, dtype=self.rates.dtype, device=self.device)
        observations = torch.zeros(
            *rows, *self.habitats.observation_shape, dtype=self.habitats.layout.dtype, device=self.device
        )
        logits = torch.zeros(*rows, self.habitats.num_actions, dtype=self.rates.dtype, device=self.device)
        truncations = numbers.bool() if self.habitats.truncates else None
        executed = numbers.bool() if self.config.first_steps else None
        memory = self._first_memory(batch)
        return Rollout(observations, numbers.long(), numbers, numbers, logits, truncations, memory, executed)

    def blank_update(self, rule_params: Params) -> WindowUpdate:
        """An update of the window in its shapes, from one that is made for this alone."""
        rollout, learners = self.blank_rollout(self.config.batch_size), self.state.learners
        with torch.no_grad():
            _, (later, gains), _, _ = self.loop.update_agents(rule_params, learners, rollout, self.rates)
        saved = SavedUpdate([learners.params, *later], learners.meta_state, gains)
        return WindowUpdate(rule_params, saved, rollout, torch.ones_like(self.rates))


def seed_of(*parts: int) -> int:
    """A seed from several numbers; other numbers give an unrelated one."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def put(tree: Any, where: int | slice, new: Any) -> Any:
    """A copy of a tree of [P, ...] with the leaves of `new` at some rows; the old tree may be part of a window."""

    def one(old: Tensor, fresh: Tensor) -> Tensor:
        changed = old.clone()
        changed[where] = fresh.to(old.device, old.dtype)
        return changed

    return tree_map(one, tree, new)
