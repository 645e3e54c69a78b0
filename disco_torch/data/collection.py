"""Acting: an agent and a batch of environments make a rollout, and statistics of the episodes that ended in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from disco_torch.agents import Agent, actions_from, sample_actions
from disco_torch.envs import Environment, EnvStep, PureEnvironment
from disco_torch.kernels import Recorded, Speed
from disco_torch.types import Observations, Params, Rollout, tree_dataclass, tree_map, tree_stack


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
    """Where acting stands: the environments, what they showed last, the agent's memory and the episodes so far."""

    env_state: Any
    step: EnvStep
    memory: Any
    returns: Tensor  # [B] of the running episodes
    lengths: Tensor  # [B]


@tree_dataclass
class Episodes:
    """The episodes that ended within a rollout: where, [rows, B] bool, and their returns and lengths, [rows, B]."""

    ends: Tensor
    returns: Tensor
    lengths: Tensor


def init_actor(agent: ActingAgent, env: Environment, generator: torch.Generator) -> ActorState:
    env_state, step = env.reset(generator)
    zeros = torch.zeros(env.num_envs, device=env.device)
    return ActorState(env_state, step, agent.initial_state(env.num_envs), zeros, zeros.clone())


def collect(
    agent: ActingAgent,
    params: Params,
    env: Environment,
    actor: ActorState,
    rows: int,
    generator: torch.Generator,
) -> tuple[Rollout, ActorState, Episodes]:
    """Acts for `rows` steps in every copy of the environment.

    Row t holds what was seen, done, and what had arrived; what the last action leads to is carried on in the returned
    state and opens the next rollout. Episodes may span rollouts: their statistics are of the whole episode.
    """
    seen: list[Rollout] = []
    ended: list[Episodes] = []
    memory = actor.memory
    for _ in range(rows):
        step = actor.step
        actions, logits, next_memory = agent.act(params, step.observations, generator, step.is_first, actor.memory)
        seen.append(row_of(step, actions, logits))
        env_state, step = env.step(actor.env_state, actions, generator)
        actor, episodes = step_actor(actor, env_state, step, next_memory)
        ended.append(episodes)
    return stack_rows(seen, memory), actor, tree_stack(ended)


def row_of(step: EnvStep, actions: Tensor, logits: Tensor) -> Rollout:
    """A row of a rollout, [B, ...]: what a step showed, and what was done on it."""
    # A row that a time limit cut shows the last observation of that episode; the agent has acted on the next one's.
    shown = step.observations if step.final_observations is None else step.final_observations
    truncations = None if step.final_observations is None else step.truncations
    return Rollout(shown, actions, step.rewards, step.discounts, logits, truncations)


def step_actor(actor: ActorState, env_state: Any, step: EnvStep, memory: Any) -> tuple[ActorState, Episodes]:
    """Where acting stands after a step of the environment, and what ended with it."""
    returns, lengths = actor.returns + step.rewards, actor.lengths + 1
    goes_on = (~(step.episode_ends | step.is_first)).to(returns.dtype)
    after = ActorState(env_state, step, memory, returns * goes_on, lengths * goes_on)
    return after, Episodes(step.episode_ends, returns, lengths)


def stack_rows(rows: list[Rollout], memory: Any) -> Rollout:
    """A rollout of its rows, with the agent's memory from before the first one."""
    return dataclasses.replace(tree_stack(rows), first_state=memory)


class Collector:
    """`collect` for one agent and one environment, which may be recorded where the environment is a function of tensors.

    All random numbers of a rollout are drawn at once; on a CPU these are the numbers that `collect` draws one by one.

    Args:
      agent: who acts.
      env: where. Any environment that is not of tensors is stepped plainly, at every speed.
      speed: how to run.
    """

    def __init__(self, agent: Agent, env: Environment, speed: Speed) -> None:
        self.agent, self.env = agent, env
        # Environments are many small operations: to fuse them is quick to do and soon pays.
        self._step = Recorded(self.act_once, Speed(speed.trace, speed.compile or speed.capture), "acting")
        # A loop over recorded steps: compiled as one it would be too long.
        self._rows = Recorded(self._act_rows, Speed(capture=speed.capture), "collection", carry=True)

    def __call__(
        self, params: Params, actor: ActorState, rows: int, generator: torch.Generator
    ) -> tuple[Rollout, ActorState, Episodes]:
        """See `collect`."""
        env = self.env
        if not isinstance(env, PureEnvironment):
            return collect(self.agent, params, env, actor, rows, generator)
        draws = env.num_envs * (env.num_actions + env.step_draws + env.episode_draws)
        uniforms = torch.rand(rows, draws, generator=generator, device=env.device, dtype=torch.float32)
        actor, (rollout, episodes) = self._rows(actor, params, uniforms)
        return rollout, actor, episodes

    def act_once(self, params: Params, actor: ActorState, uniforms: Tensor) -> tuple[ActorState, Rollout, Episodes]:
        """One step in every copy: a pure function of uniform numbers, [B * A] for the actions, then the environment's."""
        env = self.env
        assert isinstance(env, PureEnvironment)
        own, worlds = uniforms.split([env.num_envs * env.num_actions, uniforms.numel() - env.num_envs * env.num_actions])
        step = actor.step
        logits, memory = self.agent.policy(params, step.observations, step.is_first, actor.memory)
        actions = actions_from(logits, own.view(env.num_envs, -1))
        row = row_of(step, actions, logits)
        env_state, step = env.step_with(actor.env_state, actions, worlds.view(env.num_envs, -1))
        actor, episodes = step_actor(actor, env_state, step, memory)
        return actor, row, episodes

    def _act_rows(self, actor: ActorState, params: Params, uniforms: Tensor) -> tuple[ActorState, tuple[Rollout, Episodes]]:
        rows, ended, memory = [], [], actor.memory
        for numbers in uniforms.unbind():
            actor, row, episodes = self._step(params, actor, numbers)
            rows.append(row)
            ended.append(episodes)
        return actor, (stack_rows(rows, memory), tree_stack(ended))


StepFn = Callable[[Any], tuple[Any, Any, Any]]
"""`step_fn(actions) -> (observations, rewards, dones)`, arrays or tensors of [B, ...]."""


def as_tensor(x: Any, device: torch.device) -> Tensor:
    """An array or a tensor as a tensor of its own on `device`; float64 becomes float32, bytes stay bytes.

    Always a copy: an environment may write its next observation into the array that it handed out.
    """
    tensor = torch.tensor(np.asarray(x)).to(device) if not isinstance(x, Tensor) else x.detach().to(device, copy=True)
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def collect_rollout(
    agent: torch.nn.Module,
    step_fn: StepFn,
    obs: Any,
    lstm_state: Any,
    rollout_len: int,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Rollout, Any, Any]:
    """Acts with any module in any environment, for `DiscoTrainer`.

    Args:
      agent: with `forward_step(observations [B, ...], lstm_state) -> (outputs, lstm_state)`.
      step_fn: executes actions [B], given as the kind of array that `obs` is, and returns what came: observations,
        rewards and whether the episode is over. After an end the observation must be the next episode's first.
      obs: observations to act on, [B, ...].
      lstm_state: the agent's memory, from `agent.init_lstm_state(B, device)` at first.
      rollout_len: steps to take.
      device: for the rollout; the agent's unless given.
      generator: the source of randomness, on that device.

    Returns:
      A rollout of `rollout_len` steps and so one row more, the observations and the memory to go on with.
    """
    device = next(agent.parameters()).device if device is None else torch.device(device)
    as_numpy = not isinstance(obs, Tensor)
    shown = as_tensor(obs, device)
    batch = shown.shape[0]
    rewards, dones = torch.zeros(batch, device=device), torch.zeros(batch, dtype=torch.bool, device=device)
    rows: list[Rollout] = []
    for t in range(rollout_len + 1):
        with torch.no_grad():
            out, next_state = agent.forward_step(shown, lstm_state)  # type: ignore[operator]
        logits = out["logits"]
        actions = sample_actions(logits, generator)
        rows.append(Rollout(shown, actions, rewards, 1.0 - dones.float(), logits))
        if t == rollout_len:  # the last row only bootstraps: nothing is executed on it
            break
        obs, reward, done = step_fn(actions.cpu().numpy() if as_numpy else actions)
        shown, rewards, dones = as_tensor(obs, device), as_tensor(reward, device).float(), as_tensor(done, device).bool()
        check_step(rows[0].observations, shown, rewards, dones)
        lstm_state = reset_memory(next_state, dones)
    return tree_stack(rows), obs, lstm_state


def reset_memory(state: Any, dones: Tensor) -> Any:
    """Zeros in the memory of the entries that are done; every tensor of the memory is [B, ...]."""

    def kept(x: Tensor) -> Tensor:
        if x.shape[:1] != dones.shape:
            batch = dones.shape[0]
            raise ValueError(f"`lstm_state` must hold tensors of [{batch}, ...], got {list(x.shape)}; one entry a copy.")
        return torch.where(dones.reshape(-1, *[1] * (x.ndim - 1)), torch.zeros_like(x), x)

    return tree_map(kept, state)


def check_step(before: Tensor, observations: Tensor, rewards: Tensor, dones: Tensor) -> None:
    """Raises unless what `step_fn` returned has the shape of the observations `before` it, [B, ...], and [B]."""
    for name, value, shape in (
        ("observations", observations, before.shape),
        ("rewards", rewards, before.shape[:1]),
        ("dones", dones, before.shape[:1]),
    ):
        if value.shape != shape:
            raise ValueError(f"`step_fn` must return {name} of {list(shape)}, got {list(value.shape)}; one entry a copy.")
