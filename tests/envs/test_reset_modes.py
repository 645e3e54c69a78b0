"""Every way in which a vector environment begins anew yields the same transitions to learn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from counting import BOTH, NUM_ACTIONS, SCRIPTS, TERMINATED, TRUNCATED, CountingEnv, CountingPool, reward_of
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from disco_torch.data import loss_mask, rule_inputs
from disco_torch.envs import GymnasiumEnvironment
from disco_torch.envs.base import EnvStep
from disco_torch.types import Rollout

B = len(SCRIPTS)
COPIES = [lambda copy=copy: CountingEnv(copy) for copy in range(B)]


def sync(mode: AutoresetMode, **kwargs) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(SyncVectorEnv(COPIES, autoreset_mode=mode, **kwargs))


def make(mode: str) -> GymnasiumEnvironment:
    if mode == "envpool":
        return GymnasiumEnvironment(CountingPool(), autoreset_mode="envpool")
    return sync(AutoresetMode[mode.upper()])


def policy(observations: torch.Tensor) -> torch.Tensor:
    """An action that depends on where the agent is alone, so that every mode takes the same ones."""
    _, episode, step = observations.long().unbind(-1)
    return (3 * episode + step) % NUM_ACTIONS


def run(env: GymnasiumEnvironment, steps: int) -> tuple[list[EnvStep], torch.Tensor]:
    """Rows of a run and the actions taken on them, [steps + 1, B]."""
    generator = torch.Generator().manual_seed(0)
    _, row = env.reset(generator)
    rows, actions = [row], [policy(row.observations)]
    for _ in range(steps):
        _, row = env.step(None, actions[-1], generator)
        rows.append(row)
        actions.append(policy(row.observations))
    return rows, torch.stack(actions)


def record(rows: list[EnvStep], actions: torch.Tensor) -> Rollout:
    """Rows as they are stored: an episode that was cut shows its last observation."""
    stored = [torch.where(row.truncations[:, None], row.final_observations, row.observations) for row in rows]
    return Rollout(
        observations=torch.stack(stored),
        actions=actions,
        rewards=torch.stack([row.rewards for row in rows]),
        discounts=torch.stack([row.discounts for row in rows]),
        behaviour_logits=torch.zeros(*actions.shape, NUM_ACTIONS),
        truncations=torch.stack([row.truncations for row in rows]),
    )


def learned_transitions(rollout: Rollout, copy: int) -> list[tuple]:
    """(obs, action, reward, next obs, terminal, truncated) of the steps that the loss counts, in order.

    What follows a terminal step is not learned from, so it is left out.
    """
    inputs = rule_inputs(rollout, agent_out={})
    result = []
    for t in loss_mask(rollout)[:, copy].nonzero().flatten().tolist():
        terminal, cut = bool(inputs.is_terminal[t, copy]), bool(inputs.is_truncated[t, copy])
        following = None if terminal else tuple(inputs.observations[t + 1, copy].tolist())
        now = tuple(inputs.observations[t, copy].tolist())
        result.append((now, int(inputs.actions[t, copy]), float(inputs.rewards[t, copy]), following, terminal, cut))
    return result


def scripted_transitions(copy: int, episodes: int) -> list[tuple]:
    """Every transition of each episode but its first, as the script says; of the very first episode all."""
    result = []
    for episode in range(episodes):
        length, way = SCRIPTS[copy][episode % len(SCRIPTS[copy])]
        for step in range(0 if episode == 0 else 1, length):
            terminal = step == length - 1 and way in (TERMINATED, BOTH)
            cut = step == length - 1 and way == TRUNCATED
            action = (3 * episode + step) % NUM_ACTIONS
            following = None if terminal else (copy, episode, step + 1)
            result.append(((copy, episode, step), action, reward_of(episode, step, action), following, terminal, cut))
    return result


@pytest.mark.parametrize("mode", ["same_step", "disabled", "next_step", "envpool"])
def test_learned_transitions_are_those_of_the_script(mode):
    rows, actions = run(make(mode), steps=60)
    rollout = record(rows, actions)
    finished = torch.stack([row.episode_ends for row in rows]).sum(0).tolist()
    assert min(finished) >= 12
    for copy in range(B):
        learned = [transition for transition in learned_transitions(rollout, copy) if transition[0][1] < 12]
        assert learned == scripted_transitions(copy, episodes=12)


def test_all_modes_agree_over_the_episodes_that_all_completed():
    runs = [run(make(mode), steps=50) for mode in ("same_step", "disabled", "next_step", "envpool")]
    for copy in range(B):
        common = min(sum(int(row.episode_ends[copy]) for row in rows) for rows, _ in runs)
        lists = [[x for x in learned_transitions(record(*rows), copy) if x[0][1] < common] for rows in runs]
        assert lists[0] and all(other == lists[0] for other in lists[1:])


def table(rows: list[EnvStep], copy: int) -> list[tuple]:
    """(episode and step shown, discount, truncated, is_first, episode_ends) of each row, and what was cut."""
    return [
        (
            tuple(row.observations[copy, 1:].int().tolist()),
            int(row.discounts[copy]),
            "truncated" * bool(row.truncations[copy]) + " first" * bool(row.is_first[copy]),
            bool(row.episode_ends[copy]),
            tuple(row.final_observations[copy, 1:].int().tolist()),
        )
        for row in rows
    ]


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_rows_that_show_the_next_episode_at_once(mode):
    rows, _ = run(make(mode), steps=6)
    assert table(rows, copy=0) == [
        ((0, 0), 1, " first", False, (0, 0)),
        ((0, 1), 1, "", False, (0, 1)),
        ((0, 2), 1, "", False, (0, 2)),
        ((1, 0), 0, " first", True, (1, 0)),
        ((1, 1), 1, "", False, (1, 1)),
        ((2, 0), 1, "truncated first", True, (1, 2)),
        ((3, 0), 1, "truncated first", True, (2, 1)),
    ]
    assert rows[3].rewards[0] == reward_of(0, 2, 2) and rows[5].rewards[0] == reward_of(1, 1, 0)


@pytest.mark.parametrize("mode", ["next_step", "envpool"])
def test_rows_that_show_the_last_observation_first(mode):
    rows, _ = run(make(mode), steps=7)
    assert table(rows, copy=0) == [
        ((0, 0), 1, " first", False, (0, 0)),
        ((0, 1), 1, "", False, (0, 1)),
        ((0, 2), 1, "", False, (0, 2)),
        ((0, 3), 0, "", True, (0, 3)),
        ((1, 0), 0, " first", False, (1, 0)),
        ((1, 1), 1, "", False, (1, 1)),
        ((1, 2), 1, "truncated", True, (1, 2)),
        ((2, 0), 0, " first", False, (2, 0)),
    ]
    assert rows[4].rewards[0] == rows[7].rewards[0] == 0 and rows[6].rewards[0] == reward_of(1, 1, 0)


def fields_equal(one: EnvStep, other: EnvStep) -> bool:
    return all(torch.equal(x, y) for x, y in zip(vars(one).values(), vars(other).values(), strict=True))


def test_disabled_returns_exactly_what_same_step_does():
    (same, _), (disabled, _) = run(make("same_step"), 40), run(make("disabled"), 40)
    assert all(fields_equal(x, y) for x, y in zip(same, disabled, strict=True))


def test_rows_survive_buffers_that_are_written_again():
    (fresh, _), (shared, _) = run(make("same_step"), 20), run(sync(AutoresetMode.SAME_STEP, copy=False), 20)
    assert all(fields_equal(x, y) for x, y in zip(fresh, shared, strict=True))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_workers_in_processes_give_the_same_rows(mode):
    env = GymnasiumEnvironment(AsyncVectorEnv(COPIES, autoreset_mode=mode))
    try:
        parallel, _ = run(env, 15)
    finally:
        env.close()
    in_turn, _ = run(sync(mode), 15)
    assert all(fields_equal(x, y) for x, y in zip(parallel, in_turn, strict=True))


def test_a_reset_in_between_begins_everywhere():
    for mode in ("same_step", "disabled", "next_step", "envpool"):
        env = make(mode)
        run(env, 3)  # copy 0 has just ended its first episode
        _, row = env.reset(torch.Generator())
        assert row.is_first.all() and (row.discounts == 1).all() and not row.episode_ends.any()
        _, row = env.step(None, torch.zeros(B, dtype=torch.long), torch.Generator())
        assert row.final_observations[0, 2] == 1, "a copy that had ended does not reset once more"
        assert row.discounts[0] == 1 and row.rewards[0] >= 100


class WholeBatchFinals(SyncVectorEnv):
    """Hands over last observations as one array for all copies, as vector environments written in C do."""

    def step(self, actions):
        batch, rewards, terminated, truncated, infos = super().step(actions)
        if "final_obs" in infos:
            infos["final_obs"] = np.stack([np.full(3, -1.0) if x is None else x for x in infos["final_obs"]])
        return batch, rewards, terminated, truncated, infos


def test_last_observations_may_come_as_one_array():
    env = GymnasiumEnvironment(WholeBatchFinals(COPIES, autoreset_mode=AutoresetMode.SAME_STEP))
    (same, _), (whole, _) = run(make("same_step"), 20), run(env, 20)
    assert all(fields_equal(x, y) for x, y in zip(same, whole, strict=True))


class Silent(SyncVectorEnv):
    """Says nothing of its autoreset mode."""

    def __init__(self, **kwargs):
        super().__init__(COPIES, **kwargs)
        del self.metadata["autoreset_mode"]


def test_a_mode_that_is_missing_must_be_given():
    with pytest.raises(ValueError, match="`autoreset_mode` must be given") as info:
        GymnasiumEnvironment(Silent())
    assert "'same_step', 'next_step', 'disabled', 'envpool'" in str(info.value)
    for given in ("next_step", "NEXT_STEP", "NextStep", AutoresetMode.NEXT_STEP):
        env = GymnasiumEnvironment(Silent(), autoreset_mode=given)
        assert table(run(env, 3)[0], 0)[-1] == ((0, 3), 0, "", True, (0, 3))


def test_a_mode_that_does_not_exist_or_fit():
    with pytest.raises(ValueError, match=r"`autoreset_mode` must be one of 'same_step', .*, got 'sometimes'"):
        GymnasiumEnvironment(Silent(), autoreset_mode="sometimes")
    env = SyncVectorEnv(COPIES, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match=r"must agree with .*, 'same_step', got 'next_step'; leave it out"):
        GymnasiumEnvironment(env, autoreset_mode="next_step")
    GymnasiumEnvironment(SyncVectorEnv(COPIES), autoreset_mode="envpool")  # a pool says NEXT_STEP of itself
