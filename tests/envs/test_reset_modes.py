"""Every way in which a vector environment begins anew yields the same transitions to learn from."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from counting import BOTH, NUM_ACTIONS, SCRIPTS, TERMINATED, TRUNCATED, CountingEnv, CountingPool, reward_of
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from disco_torch.data import executed_rows, loss_mask, rule_inputs
from disco_torch.envs import EnvironmentFailure, GymnasiumEnvironment, make_gymnasium
from disco_torch.envs.base import EnvStep
from disco_torch.envs.final_observations import CopyFinalObservation
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


class Silent:
    """A vector environment that says nothing of its autoreset mode."""

    metadata: dict = {}  # noqa: RUF012
    spec = None

    def __init__(self, mode: AutoresetMode = AutoresetMode.NEXT_STEP):
        self._env = SyncVectorEnv(COPIES, autoreset_mode=mode)

    @property
    def unwrapped(self):
        return self

    def __getattr__(self, name):
        if name == "autoreset_mode":
            raise AttributeError(name)
        return getattr(self._env, name)


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
    with pytest.raises(ValueError, match=r"must agree with that of .*, 'same_step', got 'next_step'; leave it out"):
        GymnasiumEnvironment(env, autoreset_mode="next_step")
    GymnasiumEnvironment(SyncVectorEnv(COPIES), autoreset_mode="envpool")  # a pool says NEXT_STEP of itself


class Ale(Silent):
    """Keeps its mode as ale-py does: in a dictionary that all instances share, so that the last one made is heard."""

    metadata: dict = {}  # noqa: RUF012

    def __init__(self, mode: AutoresetMode):
        super().__init__(mode)
        self.metadata["autoreset_mode"] = mode


class AleWithMode(Ale):
    """The same, but the instance knows its own mode, too."""

    def __getattr__(self, name):
        return getattr(self._env, name)


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_the_instance_is_asked_for_its_mode_before_its_class(mode):
    env = AleWithMode(AutoresetMode[mode.upper()])
    for other in AutoresetMode:
        AleWithMode(other)
        rows, _ = run(GymnasiumEnvironment(env), 20)
        assert all(fields_equal(x, y) for x, y in zip(rows, run(make(mode), 20)[0], strict=True))
        env = AleWithMode(AutoresetMode[mode.upper()])


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_the_caller_knows_better_than_a_dictionary_of_the_class(mode):
    env = Ale(AutoresetMode[mode.upper()])
    for other in AutoresetMode:
        Ale(other)
        rows, _ = run(GymnasiumEnvironment(env, autoreset_mode=mode), 20)
        assert all(fields_equal(x, y) for x, y in zip(rows, run(make(mode), 20)[0], strict=True))
        env = Ale(AutoresetMode[mode.upper()])


def test_a_mode_that_the_class_has_wrong_is_found_at_the_first_end():
    env = Ale(AutoresetMode.SAME_STEP)
    Ale(AutoresetMode.NEXT_STEP)
    with pytest.raises(
        EnvironmentFailure, match=r"'final_obs'\] came in autoreset mode 'next_step', .* give `autoreset_mode"
    ):
        run(GymnasiumEnvironment(env), 3)
    env = Ale(AutoresetMode.NEXT_STEP)
    Ale(AutoresetMode.SAME_STEP)
    adapter = GymnasiumEnvironment(env)
    with pytest.raises(
        EnvironmentFailure, match=r"'final_obs'\] must hold .* reset by the next step, give `autoreset_mode`"
    ):
        run(adapter, 3)


def test_a_mode_that_is_certain_needs_last_observations_of_truncated_episodes_alone():
    """Terminated ones are not bootstrapped from, so an environment may leave them out."""

    class NoFinals(SyncVectorEnv):
        def step(self, actions):
            *row, _ = super().step(actions)
            return *row, {}

    env = GymnasiumEnvironment(NoFinals([lambda: CountingEnv(0)], autoreset_mode=AutoresetMode.SAME_STEP))
    rows, _ = run(env, 3)
    assert rows[-1].episode_ends[0]
    with pytest.raises(EnvironmentFailure, match="must hold the last observation"):
        run(env, 6)


class ReusingEnv(CountingEnv):
    """Writes every observation into one array, which it hands out; `way` says what its reset returns."""

    def __init__(self, copy: int = 0, way: str = "the array"):
        super().__init__(copy)
        self.array, self.way = np.zeros(3, np.float32), way

    def observe(self) -> np.ndarray:
        self.array[:] = super().observe()
        return self.array

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return (observation.copy() if self.way == "a copy" else observation), info


def reusing(way: str):
    return [lambda copy=copy: ReusingEnv(copy, way) for copy in range(B)]


STEPS = 500


def assert_rows_of_fresh_arrays(env: GymnasiumEnvironment, mode: str, steps: int = STEPS) -> None:
    """The rows are those of environments that make a new array for each observation, over hundreds of truncations."""
    try:
        rows, _ = run(env, steps)
    finally:
        env.close()
    fresh, _ = run(make(mode), steps)
    assert sum(int(row.truncations.sum()) for row in fresh) > 200
    assert all(fields_equal(x, y) for x, y in zip(rows, fresh, strict=True))


@pytest.mark.parametrize("way", ["the array", "a copy"])
@pytest.mark.parametrize("mode", ["same_step", "disabled", "next_step"])
def test_environments_may_reuse_their_array(mode, way):
    env = GymnasiumEnvironment(SyncVectorEnv(reusing(way), autoreset_mode=AutoresetMode[mode.upper()]))
    assert_rows_of_fresh_arrays(env, mode)


def test_an_adapter_around_environments_that_are_wrapped_already():
    vector = SyncVectorEnv(reusing("the array"), autoreset_mode=AutoresetMode.SAME_STEP)
    GymnasiumEnvironment(vector)
    env = GymnasiumEnvironment(vector)
    assert not isinstance(vector.envs[0].env, CopyFinalObservation)
    assert_rows_of_fresh_arrays(env, "same_step")


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", ["disabled", "next_step"])
def test_workers_may_reuse_their_array(mode, shared_memory):
    vector = AsyncVectorEnv(reusing("the array"), autoreset_mode=AutoresetMode[mode.upper()], shared_memory=shared_memory)
    assert_rows_of_fresh_arrays(GymnasiumEnvironment(vector), mode)


@pytest.mark.parametrize("way", ["the array", "a copy"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_make_gymnasium_copies_last_observations(kind, way):
    gymnasium.register("Reusing-v0", entry_point=ReusingEnv)
    try:
        env = make_gymnasium("Reusing-v0", 2, vectorization_mode=kind, way=way, wrappers=[AddOne])
        rows, _ = run(env, STEPS)
        env.close()
    finally:
        del gymnasium.registry["Reusing-v0"]
    fresh, _ = run(
        GymnasiumEnvironment(SyncVectorEnv([lambda: AddOne(CountingEnv(0))] * 2, autoreset_mode="SameStep")), STEPS
    )
    assert sum(int(row.truncations.sum()) for row in rows) > 200
    assert all(fields_equal(x, y) for x, y in zip(rows, fresh, strict=True))


class AddOne(gymnasium.Wrapper):
    """Changes the array in place, as a wrapper may; its last observations are those that are copied."""

    def step(self, action):
        observation, *rest = self.env.step(action)
        observation += 1
        return observation, *rest


def test_workers_of_the_caller_that_overwrite_last_observations_are_reported():
    env = GymnasiumEnvironment(AsyncVectorEnv(reusing("the array"), autoreset_mode=AutoresetMode.SAME_STEP), name="toy")
    try:
        with pytest.warns(UserWarning, match="'toy': in each of the first .* equals the first of the next .* DISABLED"):
            run(env, 30)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(env, 30)  # once is enough
    finally:
        env.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = GymnasiumEnvironment(AsyncVectorEnv(COPIES, autoreset_mode=AutoresetMode.SAME_STEP))
        run(env, 30)
        env.close()


class SharedFinals(Silent):
    """Hands over last observations in the array of the first ones, as a careless vector environment might."""

    autoreset_mode = AutoresetMode.SAME_STEP

    def step(self, actions):
        batch, rewards, terminated, truncated, infos = self._env.step(actions)
        if "final_obs" in infos:
            infos["final_obs"] = batch
        return batch, rewards, terminated, truncated, infos


def test_last_observations_in_the_memory_of_the_first_are_refused():
    env = GymnasiumEnvironment(SharedFinals(AutoresetMode.SAME_STEP))
    with pytest.raises(EnvironmentFailure, match=r"step 1 in environment 1: info\['final_obs'\] must not share the memory"):
        run(env, 3)


@pytest.mark.parametrize("mode", ["same_step", "disabled", "next_step", "envpool"])
def test_with_executed_rows_first_steps_are_learned_from(mode):
    """All transitions of the script; but where the next episode has begun with a cut row, not the one that it hides."""
    rows, actions = run(make(mode), steps=60)
    rollout = record(rows, actions)
    rollout.executed = torch.stack([executed_rows(row) for row in rows])
    for copy in range(B):
        expected = []
        for episode in range(12):
            length, way = SCRIPTS[copy][episode % len(SCRIPTS[copy])]
            cut_before = episode > 0 and SCRIPTS[copy][(episode - 1) % len(SCRIPTS[copy])][1] == TRUNCATED
            hidden = cut_before and mode in ("same_step", "disabled")
            for step in range(1 if hidden else 0, length):
                last = step == length - 1
                action = (3 * episode + step) % NUM_ACTIONS
                terminal, cut = last and way in (TERMINATED, BOTH), last and way == TRUNCATED
                following = None if terminal else (copy, episode, step + 1)
                expected.append(((copy, episode, step), action, reward_of(episode, step, action), following, terminal, cut))
        assert [x for x in learned_transitions(rollout, copy) if x[0][1] < 12] == expected
