"""An agent's memory in rollouts and in the replay: what it learns from is what it acted with."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor
from torch.func import vmap

from disco_torch.agents import Agent, AgentConfig
from disco_torch.data import (
    Collector,
    InputConfig,
    Replay,
    collect,
    executed_mean,
    init_actor,
    loss_mask,
    make_normalizer,
    memory_resets,
)
from disco_torch.envs import Environment, GymnasiumEnvironment, make_env
from disco_torch.kernels import Speed
from disco_torch.rules import ActorCritic
from disco_torch.types import Params, Rollout, flatten_tree, tree_map, tree_stack

CONFIG = AgentConfig(dense=(8,), core="lstm", core_size=5)
ROWS = 31


class Clock(gymnasium.Env):
    """Shows a random number in each step, ends by chance, and is cut by a limit of 9 steps."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return seen, 1.0, bool(self.np_random.random() < 0.05), self.time == 9, {}


def clock(mode: AutoresetMode) -> Environment:
    return GymnasiumEnvironment(SyncVectorEnv([Clock] * 6, autoreset_mode=mode))


def agent_for(env: Environment) -> tuple[Agent, Params]:
    agent = Agent(env.observation_example, env.num_actions, ActorCritic().outputs(env.num_actions), CONFIG)
    params = agent.init(torch.Generator().manual_seed(0))
    return agent, {name: x * 20 if name == "heads.logits.0.weight" else x for name, x in params.items()}


def rollouts_of(env: Environment, agent: Agent, params: Params, number: int = 4, executed: bool = True) -> list[Rollout]:
    generator = torch.Generator().manual_seed(1)
    actor, rollouts = init_actor(agent, env, generator), []
    for _ in range(number):
        rollout, actor, _ = collect(agent, params, env, actor, ROWS, generator, executed)
        rollouts.append(rollout)
    return rollouts


def same_logits(agent: Agent, params: Params, rollout: Rollout) -> Tensor:
    """[T+1, B] bool: rows on which the agent, reading the rollout from its first state on, does as it did."""
    out, _ = agent.unroll(params, rollout.observations, memory_resets(rollout), rollout.first_state)
    return torch.isclose(out["logits"], rollout.behaviour_logits, rtol=1e-4, atol=1e-5).all(-1)


@pytest.mark.parametrize("name", ["recall", "catch"])
def test_what_was_acted_with_follows_from_the_stored_state(name: str) -> None:
    env = make_env(name, 6)
    agent, params = agent_for(env)
    first, *others = rollouts_of(env, agent, params)
    assert not first.first_state.hidden.any() and all(rollout.first_state.hidden.any() for rollout in others)
    for rollout in (first, *others):
        assert memory_resets(rollout).any() and same_logits(agent, params, rollout).all()
    forgotten = dataclasses.replace(others[0], first_state=agent.initial_state(6))
    assert not same_logits(agent, params, forgotten).all()


def test_the_stored_state_follows_from_the_whole_episode() -> None:
    """From the first row of all: through resets, and from rollout to rollout."""
    env = make_env("recall", 6)
    agent, params = agent_for(env)
    rollouts = rollouts_of(env, agent, params)
    rows = [tree_map(lambda *xs: torch.cat(xs), *(dataclasses.replace(r, first_state=None) for r in rollouts))]
    for i, rollout in enumerate(rollouts):
        upto: Rollout = tree_map(lambda x, i=i: x[: i * ROWS], rows[0])
        state = agent.initial_state(6)
        if i:
            _, state = agent.unroll(params, upto.observations, memory_resets(upto), state)
        for got, want in ((rollout.first_state.hidden, state.hidden), (rollout.first_state.cell, state.cell)):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_replay_gives_a_trajectory_back_with_its_state() -> None:
    env = make_env("recall", 6)
    agent, params = agent_for(env)
    replay = Replay(20, ROWS, env.observation_example, env.num_actions, memory_example=row_of(agent.initial_state(1)))
    for rollout in rollouts_of(env, agent, params):
        replay.add(rollout)
    drawn = replay.sample(40, torch.Generator().manual_seed(0), num_fresh=3)
    assert replay.num_bytes == sum(x.nbytes for x in flatten_tree(replay.state.trajectories)[0])
    assert drawn.first_state.cell.shape == (40, 5) and same_logits(agent, params, drawn).all()
    again = Replay(20, ROWS, env.observation_example, env.num_actions, memory_example=row_of(agent.initial_state(1)))
    again.load_state_dict(replay.state_dict())
    same = again.sample(40, torch.Generator().manual_seed(0), num_fresh=3)
    assert torch.equal(same.first_state.cell, drawn.first_state.cell)


def row_of(tree: Any) -> Any:
    return tree_map(lambda x: x[0], tree)


@pytest.mark.parametrize("speed", [Speed(), Speed(trace=True)], ids=["plain", "traced"])
def test_a_collector_carries_the_memory_on(speed: Speed) -> None:
    env = make_env("recall", 6)
    agent, params = agent_for(env)
    normalizer = make_normalizer(InputConfig(rewards="normalized"), env, 0.99)
    assert normalizer is not None
    snapshot = normalizer.snapshot(normalizer.init(env.observation_example, 6))
    collector, generator = Collector(agent, env, speed, normalizer), torch.Generator().manual_seed(1)
    actor = init_actor(agent, env, generator)
    for _ in range(3):
        before = tree_map(torch.clone, actor.memory)
        rollout, actor, _ = collector(params, actor, ROWS, generator, snapshot)
        assert torch.equal(rollout.first_state.cell, before.cell) and not torch.equal(actor.memory.cell, before.cell)
        assert same_logits(agent, params, rollout).all()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_steps_count_that_have_read_what_the_agent_had_read(mode: AutoresetMode) -> None:
    env = clock(mode)
    agent, params = agent_for(env)
    missed = behind = 0
    for rollout in rollouts_of(env, agent, params):
        assert rollout.truncations is not None and rollout.executed is not None
        counts, same = loss_mask(rollout) > 0, same_logits(agent, params, rollout)[:-1]
        assert same[counts].all() and counts.float().mean() > 0.2
        without_memory = loss_mask(dataclasses.replace(rollout, first_state=None)) > 0
        missed += int((without_memory & ~counts).sum())
        behind += int((without_memory & ~same).sum())
    # Where a reset has no row of its own, the first observation behind a cut is in no rollout.
    is_missing = mode == AutoresetMode.SAME_STEP
    assert (missed > 0) == (behind > 0) == is_missing


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(-1)


def six_rows(discounts: list[float], cuts: list[int] | None, executed: list[int] | None, memory: bool) -> Rollout:
    return Rollout(
        observations=torch.zeros(6, 1, 1),
        actions=torch.zeros(6, 1, dtype=torch.long),
        rewards=torch.zeros(6, 1),
        discounts=column(*discounts),
        behaviour_logits=torch.zeros(6, 1, 2),
        truncations=None if cuts is None else column(*cuts).bool(),
        first_state=torch.zeros(1, 3) if memory else None,
        executed=None if executed is None else column(*executed).bool(),
    )


@pytest.mark.parametrize(
    ("discounts", "cuts", "executed", "counts"),
    [
        ([1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 1], [1, 0, 0, 0, 0]),  # to the end of the trajectory
        ([1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 1], [1, 0, 0, 1, 1]),  # to the next end
        ([1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 0, 0], None, [1, 0, 0, 0, 1]),  # first steps do not count
        ([1, 1, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 1], [1, 0, 1, 1, 1]),  # a reset in a row of its own
        ([1, 0, 1, 1, 1, 1], [1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 0]),
        ([1, 1, 0, 1, 1, 1], None, [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
    ],
)
def test_tables_of_cuts(discounts: list[float], cuts: Any, executed: Any, counts: list[int]) -> None:
    rollout = six_rows(discounts, cuts, executed, memory=True)
    assert loss_mask(rollout).flatten().tolist() == counts
    several = tree_stack([rollout, tree_map(lambda x: x.flip(0), rollout)])  # as the agents of a population
    assert torch.equal(vmap(loss_mask)(several)[0], loss_mask(rollout))
    feed_forward = six_rows(discounts, cuts, executed, memory=False)
    if executed is not None:
        assert loss_mask(feed_forward).flatten().tolist() == executed[:-1]
        weights = torch.tensor(counts).float()
        x = torch.arange(5.0)
        mean = executed_mean(x.unsqueeze(-1), rollout)
        torch.testing.assert_close(mean, (x * weights).sum() / weights.sum())


def test_the_mean_over_executed_steps_without_marks() -> None:
    x = column(1.0, 20.0, 30.0, 4.0, 50.0)
    cut = six_rows([1, 1, 1, 0, 1, 1], [0, 1, 0, 0, 1, 0], None, memory=True)
    assert float(executed_mean(x, cut)) == pytest.approx(2.5)
    assert float(executed_mean(x, dataclasses.replace(cut, truncations=None))) == pytest.approx(21.0)


@pytest.mark.parametrize("executed", [None, [1, 1, 0, 1, 1, 1]])
def test_burn_in_leaves_out_the_first_steps(executed: Any) -> None:
    rollout = six_rows([1, 1, 0, 1, 1, 1], None, executed, memory=True)
    assert loss_mask(rollout).flatten().tolist() == [1, 1, 0, 1, 1]
    assert loss_mask(rollout, burn_in=1).flatten().tolist() == [0, 1, 0, 1, 1]
    assert loss_mask(rollout, burn_in=4).flatten().tolist() == [0, 0, 0, 0, 1]
    with pytest.raises(ValueError, match=r"`burn_in` must be 0 to 4 for trajectories of 6 rows, so .* got 5; use longer"):
        loss_mask(rollout, burn_in=5)
