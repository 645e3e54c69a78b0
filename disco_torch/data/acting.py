"""Acting: the one loop that takes steps in environments, and the rollouts and statistics of episodes that come of it.

`act` is the loop. What a step is belongs to the caller: an agent in a batch of environments (`agent_step`, for `collect`,
evaluation and recording), the same as a pure function of random numbers (`Collector`), a population in all its environments
(`disco_torch.discovery.habitats`), or any module in any environment (`disco_torch.data.module_acting`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from disco_torch.agents import Agent, actions_from
from disco_torch.data.alignment import executed_rows
from disco_torch.data.normalization import InputNormalizer, InputSnapshot, NormalizedAgent
from disco_torch.envs import Environment, EnvStep, PureEnvironment
from disco_torch.kernels import Recorded, Speed
from disco_torch.types import Observations, Params, Rollout, tree_dataclass, tree_map

State = TypeVar("State")
Input = TypeVar("Input")
Row = TypeVar("Row")


def act(
    step: Callable[[State, Input], tuple[State, Row]], state: State, inputs: Iterable[Input]
) -> Iterator[tuple[State, Row]]:
    """Takes one step for each of the inputs, and yields the state after it and its row.

    Args:
      step: takes a state and an input, returns the next state and a row, a tree.
      state: where to begin.
      inputs: what each step needs besides, such as its random numbers.
    """
    for x in inputs:
        state, row = step(state, x)
        yield state, row


def act_rows(
    step: Callable[[State, Input], tuple[State, Row]], state: State, inputs: Iterable[Input], dim: int = 0
) -> tuple[State, Row]:
    """`act` to the end of its inputs. Returns the last state, and all rows stacked along a new dimension `dim`."""
    rows = []
    for after, row in act(step, state, inputs):
        state = after
        rows.append(row)
    return state, stack_rows(rows, dim)


def stack_rows(rows: list[Row], dim: int = 0) -> Row:
    """Stacks the tensors of equal trees along a new dimension."""
    return tree_map(lambda *xs: torch.stack(xs, dim), *rows)


class ActingAgent(Protocol):
    """What acting needs of an agent; `Agent` is one."""

    def initial_state(self, batch_size: int) -> Any: ...

    def act(
        self,
        params: Params,
        observations: Observations,
        generator: torch.Generator | None = None,
        should_reset: Tensor | None = None,
        state: Any = None,
    ) -> tuple[Tensor, Tensor, Any]: ...


@tree_dataclass
class ActorState:
    """Where acting stands: the environments, what they showed last, the agent's memory and the running episodes.

    Attributes:
      returns, lengths: [B] float64, in which long sums stay exact.
    """

    env_state: Any
    step: EnvStep
    memory: Any
    returns: Tensor
    lengths: Tensor


@tree_dataclass
class Episodes:
    """The episodes that ended within a rollout: where, [rows, B] bool, and returns and lengths, [rows, B] float64."""

    ends: Tensor
    returns: Tensor
    lengths: Tensor


ActorStep = Callable[[ActorState, Any], tuple[ActorState, tuple[Rollout, Episodes]]]


def init_actor(agent: ActingAgent, env: Environment, generator: torch.Generator) -> ActorState:
    """Begins an episode in every environment."""
    env_state, step = env.reset(generator)
    zeros = torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
    return ActorState(env_state, step, agent.initial_state(env.num_envs), zeros, zeros.clone())


def collect(
    agent: ActingAgent,
    params: Params,
    env: Environment,
    actor: ActorState,
    rows: int,
    generator: torch.Generator,
    executed: bool = False,
) -> tuple[Rollout, ActorState, Episodes]:
    """Acts for `rows` steps in all parallel environments.

    Row t holds what was seen, done, and what had arrived; what the last action leads to is carried on in the returned
    state and opens the next rollout. Episodes may span rollouts: their statistics are of the whole episode. With
    `executed` the rollout says which rows are, so that first steps of episodes count in the loss.
    """
    step = agent_step(agent, params, env, generator, executed=executed)
    after, (rollout, episodes) = act_rows(step, actor, range(rows))
    return dataclasses.replace(rollout, first_state=actor.memory), after, episodes


def agent_step(
    agent: ActingAgent,
    params: Params,
    env: Environment,
    generator: torch.Generator,
    greedy: bool = False,
    executed: bool = False,
) -> ActorStep:
    """A step of an agent in any environment, for `act`; its row is one of a rollout and the episodes that ended with it."""

    def step(actor: ActorState, _: Any) -> tuple[ActorState, tuple[Rollout, Episodes]]:
        seen = actor.step
        actions, logits, memory = agent.act(params, seen.observations, generator, seen.is_first, actor.memory)
        if greedy:
            actions = logits.argmax(dim=-1)
        after, episodes = next_actor(actor, *env.step(actor.env_state, actions, generator), memory)
        return after, (rollout_row(seen, actions, logits, executed), episodes)

    return step


def rollout_row(step: EnvStep, actions: Tensor, logits: Tensor, executed: bool = False) -> Rollout:
    """A row of a rollout, [B, ...]: what a step showed, what was done on it and, if asked, whether it was executed."""
    # A row that a time limit cut shows the last observation of that episode; the agent has acted on the next one's.
    shown = step.observations if step.final_observations is None else step.final_observations
    truncations = None if step.final_observations is None else step.truncations
    marks = executed_rows(step) if executed else None
    return Rollout(shown, actions, step.rewards, step.discounts, logits, truncations, executed=marks)


def next_actor(actor: ActorState, env_state: Any, step: EnvStep, memory: Any) -> tuple[ActorState, Episodes]:
    """Where acting stands after a step of the environment, and what ended with it."""
    returns, lengths = actor.returns + step.rewards, actor.lengths + 1
    runs = (~(step.episode_ends | step.is_first)).to(returns.dtype)
    after = ActorState(env_state, step, memory, returns * runs, lengths * runs)
    return after, Episodes(step.episode_ends, returns, lengths)


@tree_dataclass
class Choice:
    """Actions [B], the logits [B, A] that they were drawn from, and the memory after them, None for an agent without one."""

    actions: Tensor
    logits: Tensor
    memory: Any = None


class Collector:
    """`collect` for one agent and one environment, which may be recorded where the environment is a function of tensors.

    All random numbers of a rollout are drawn at once; on a CPU these are the numbers that `collect` draws one by one.

    Args:
      agent: the agent that acts.
      env: its environment. Of one that is no `PureEnvironment` only the policy is recorded, on a GPU.
      speed: stages of recording.
      normalizer: of what the agent sees; defaults to none. Rollouts hold what the environment gave.
      executed: whether rollouts say which rows are executed.
    """

    def __init__(
        self,
        agent: Agent,
        env: Environment,
        speed: Speed,
        normalizer: InputNormalizer | None = None,
        executed: bool = False,
    ) -> None:
        self.agent, self.env, self.normalizer, self.executed = agent, env, normalizer, executed
        # Environments are many small operations: they compile quickly and gain much.
        self._step = Recorded(self.step, Speed(speed.trace, speed.compile or speed.capture), "acting")
        # Beside an environment on the host only the policy is the device's: a graph saves the time to launch its kernels.
        self._choose = Recorded(self.choose, Speed(capture=speed.capture and env.device.type == "cuda"), "the policy")
        # A loop over recorded steps: compiled as one it would be too long.
        self._rows = Recorded(self._act_rows, Speed(capture=speed.capture), "collection", carry=True)

    def __call__(
        self,
        params: Params,
        actor: ActorState,
        rows: int,
        generator: torch.Generator,
        snapshot: InputSnapshot | None = None,
    ) -> tuple[Rollout, ActorState, Episodes]:
        """See `collect`; `snapshot` holds the statistics of the normalizer."""
        env = self.env
        if not isinstance(env, PureEnvironment):
            agent = HostActing(self, snapshot) if self._choose.speed.capture else self._seeing(snapshot)
            return collect(agent, params, env, actor, rows, generator, self.executed)
        draws = env.num_envs * (env.num_actions + env.step_draws + env.episode_draws)
        uniforms = torch.rand(rows, draws, generator=generator, device=env.device, dtype=torch.float32)
        actor, (rollout, episodes) = self._rows(actor, params, uniforms, snapshot)
        return rollout, actor, episodes

    def _seeing(self, snapshot: InputSnapshot | None) -> Agent | NormalizedAgent:
        """The agent behind its inputs' normalisation."""
        if self.normalizer is None or snapshot is None:
            return self.agent
        return NormalizedAgent(self.agent, self.normalizer, snapshot)

    def choose(
        self,
        params: Params,
        observations: Observations,
        is_first: Tensor,
        memory: Any,
        uniforms: Tensor,
        snapshot: InputSnapshot | None,
    ) -> Choice:
        """`Agent.act` as a pure function of uniform numbers, [B, A]."""
        logits, memory = self._seeing(snapshot).policy(params, observations, is_first, memory)
        return Choice(actions_from(logits, uniforms), logits, memory)

    def step(
        self, actor: ActorState, params: Params, uniforms: Tensor, snapshot: InputSnapshot | None = None
    ) -> tuple[ActorState, tuple[Rollout, Episodes]]:
        """`agent_step` as a pure function of uniform numbers: [B * A] for the actions, then those of the environments."""
        env, seen = self.env, actor.step
        assert isinstance(env, PureEnvironment)
        own, others = uniforms.tensor_split([env.num_envs * env.num_actions])
        chosen = self.choose(params, seen.observations, seen.is_first, actor.memory, own.view(env.num_envs, -1), snapshot)
        moved = env.step_with(actor.env_state, chosen.actions, others.view(env.num_envs, -1))
        after, episodes = next_actor(actor, *moved, chosen.memory)
        return after, (rollout_row(seen, chosen.actions, chosen.logits, self.executed), episodes)

    def _act_rows(
        self, actor: ActorState, params: Params, uniforms: Tensor, snapshot: InputSnapshot | None
    ) -> tuple[ActorState, tuple[Rollout, Episodes]]:
        def step(actor: ActorState, numbers: Tensor) -> tuple[ActorState, tuple[Rollout, Episodes]]:
            return self._step(actor, params, numbers, snapshot)

        after, (rollout, episodes) = act_rows(step, actor, uniforms.unbind())
        return after, (dataclasses.replace(rollout, first_state=actor.memory), episodes)


class HostActing:
    """The agent of a `Collector` in an environment that steps on the host: `Agent.act` with the recorded policy."""

    def __init__(self, collector: Collector, snapshot: InputSnapshot | None) -> None:
        self.collector, self.snapshot = collector, snapshot

    def initial_state(self, batch_size: int) -> Any:
        return self.collector.agent.initial_state(batch_size)

    def act(
        self,
        params: Params,
        observations: Observations,
        generator: torch.Generator | None = None,
        should_reset: Tensor | None = None,
        state: Any = None,
    ) -> tuple[Tensor, Tensor, Any]:
        """See `Agent.act`."""
        env = self.collector.env
        uniforms = torch.rand(env.num_envs, env.num_actions, generator=generator, device=env.device)
        chosen = self.collector._choose(params, observations, should_reset, state, uniforms, self.snapshot)
        return chosen.actions, chosen.logits, chosen.memory
