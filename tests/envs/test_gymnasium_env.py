"""The Gymnasium adapter: spaces, actions, seeds, devices, images, and failures that name their place."""

from __future__ import annotations

import os
import signal

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from disco_torch.envs import CATCH_ID, EnvironmentFailure, GymnasiumEnvironment, make_gymnasium
from disco_torch.types import tree_leaves


class Scripted(gymnasium.Env):
    """Gives the observations and rewards of a list, and raises the exceptions in it."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, space, observations, rewards=None, actions=None, render_mode=None):
        self.observation_space = space
        self.action_space = actions or spaces.Discrete(2)
        self.observations, self.rewards, self.now, self.taken = observations, rewards or [0.0], 0, []
        self.render_mode = render_mode

    def give(self):
        item = self.observations[min(self.now, len(self.observations) - 1)]
        self.now += 1
        if isinstance(item, Exception):
            raise item
        return item

    def reset(self, *, seed=None, options=None):
        return self.give(), {}

    def step(self, action):
        self.taken.append(action)
        return self.give(), self.rewards[min(self.now - 2, len(self.rewards) - 1)], False, False, {}

    def render(self):
        return np.full((2, 2, 3), self.now, np.uint8)


def adapter(*envs: gymnasium.Env, vector=SyncVectorEnv, **kwargs) -> GymnasiumEnvironment:
    env = vector([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)
    return GymnasiumEnvironment(env, name="toy", **kwargs)


def begin(env: GymnasiumEnvironment, seed: int = 0):
    return env.reset(torch.Generator().manual_seed(seed))[1]


def act(env: GymnasiumEnvironment, actions=None):
    actions = torch.zeros(env.num_envs, dtype=torch.long) if actions is None else torch.as_tensor(actions)
    return env.step(None, actions, torch.Generator())[1]


IMAGE = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
SPACES = {
    "vector": (spaces.Box(-9, 9, (2,), np.float64), np.array([1.5, -2.0]), torch.tensor([1.5, -2.0])),
    "image": (spaces.Box(0, 255, (2, 2, 3), np.uint8), IMAGE, torch.tensor(IMAGE)),
    "integers": (spaces.Box(-5, 500, (2,), np.int32), np.array([-3, 400], np.int32), torch.tensor([-3.0, 400.0])),
    "mask": (spaces.Box(0, 1, (2,), np.bool_), np.array([True, False]), torch.tensor([1.0, 0.0])),
    "discrete": (spaces.Discrete(4, start=-1), 1, torch.tensor([0.0, 0.0, 1.0, 0.0])),
    "multi-discrete": (
        spaces.MultiDiscrete([2, 3], start=[0, 5]),
        np.array([1, 5]),
        torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0]),
    ),
    "multi-discrete in two dimensions": (
        spaces.MultiDiscrete([[2], [2]]),
        np.array([[1], [0]]),
        torch.tensor([0.0, 1.0, 1.0, 0.0]),
    ),
    "multi-binary": (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), torch.tensor([1.0, 0.0, 1.0])),
}


@pytest.mark.parametrize("name", SPACES)
def test_observation_spaces(name):
    space, observation, expected = SPACES[name]
    env = adapter(*[Scripted(space, [observation]) for _ in range(3)])
    for row in (begin(env), act(env)):
        assert torch.equal(row.observations, torch.stack([expected] * 3)) and row.observations.dtype == expected.dtype
    example = env.observation_example
    assert example.shape == expected.shape and example.dtype == expected.dtype and not example.any()


def test_dict_and_tuple_spaces():
    parts = {name: space for name, (space, _, _) in SPACES.items()}
    space = spaces.Dict({"all": spaces.Dict(parts), "pair": spaces.Tuple([parts["vector"], parts["discrete"]])})
    values = {name: value for name, (_, value, _) in SPACES.items()}
    env = adapter(Scripted(space, [{"all": values, "pair": (values["vector"], values["discrete"])}]))
    row = begin(env)
    for name, (_, _, expected) in SPACES.items():
        assert torch.equal(row.observations["all"][name][0], expected)
    assert isinstance(row.observations["pair"], tuple) and torch.equal(row.observations["pair"][1][0], SPACES["discrete"][2])
    pairs = zip(tree_leaves(env.observation_example), tree_leaves(row.observations), strict=True)
    assert all(example.shape == leaf.shape[1:] and example.dtype == leaf.dtype for example, leaf in pairs)


def test_truncated_trees_show_their_last_observations():
    class Cut(Scripted):
        def step(self, action):
            return *super().step(action)[:3], self.now == 3, {}

    space = spaces.Dict({"x": spaces.Box(-9, 9, (1,)), "n": spaces.Discrete(9)})
    observations = [{"x": np.full(1, i, np.float32), "n": i} for i in range(6)]
    env = adapter(Cut(space, observations), Scripted(space, observations))
    begin(env)
    act(env)
    row = act(env)
    assert row.truncations.tolist() == [True, False]
    assert row.final_observations["x"].flatten().tolist() == [2, 2] and row.observations["x"].flatten().tolist() == [3, 2]
    assert row.final_observations["n"].argmax(1).tolist() == [2, 2] and row.observations["n"].argmax(1).tolist() == [3, 2]


def test_spaces_that_have_no_fixed_shape_are_refused():
    space = spaces.Dict({"words": spaces.Text(5)})
    with pytest.raises(ValueError, match=r"must be made of Box, Discrete, .*, got Text\(.*TransformObservation"):
        adapter(Scripted(space, [{"words": "a"}]))


@pytest.mark.parametrize(
    ("space", "hint"),
    [
        (spaces.Box(-1, 1, (2,)), r"continuous actions are not supported; wrap .*BinActions\(env, bins\)"),
        (spaces.Tuple([spaces.Discrete(2)]), "number the actions with gymnasium.wrappers.TransformAction"),
    ],
)
def test_other_action_spaces_are_refused(space, hint):
    with pytest.raises(
        ValueError, match=rf"`single_action_space` must be Discrete, MultiDiscrete or MultiBinary, got .*; {hint}"
    ):
        adapter(Scripted(spaces.Discrete(2), [0], actions=space))


def test_a_single_environment_is_refused():
    with pytest.raises(ValueError, match=r"`env` must be a vector environment, got the single OrderEnforcing; make it with"):
        GymnasiumEnvironment(gymnasium.make("CartPole-v1", disable_env_checker=True, max_episode_steps=-1))


def test_continuous_actions_by_id():
    with pytest.raises(ValueError, match="continuous actions are not supported"):
        make_gymnasium("Pendulum-v1", 1)
    env = make_gymnasium("Pendulum-v1", 2, wrappers=[lambda env: gymnasium.wrappers.DiscretizeAction(env, bins=5)])
    begin(env)
    assert env.num_actions == 5 and act(env, [0, 4]).rewards.shape == (2,)


def test_actions_count_from_the_start_of_the_space():
    single = Scripted(spaces.Discrete(2), [0], actions=spaces.Discrete(3, start=-1))
    env = adapter(single)
    begin(env)
    for action in range(3):
        act(env, torch.tensor([action], dtype=torch.int32))
    assert [int(action) for action in single.taken] == [-1, 0, 1] and env.num_actions == 3
    assert single.action_space.contains(single.taken[0])


def test_wrong_actions():
    env = adapter(Scripted(spaces.Discrete(2), [0]), Scripted(spaces.Discrete(2), [0]))
    with pytest.raises(ValueError, match="`reset` must come before `step`"):
        act(env)
    begin(env)
    with pytest.raises(ValueError, match=r"`actions` must lie in 0 .. 1, got 2 at \[1\]"):
        act(env, [0, 2])
    with pytest.raises(ValueError, match=r"`actions` must lie in 0 .. 1, got -1 at \[0\]"):
        act(env, [-1, 0])
    with pytest.raises(ValueError, match=r"`actions` must be \[2\], got \[1\]; it needs one action for each environment"):
        act(env, [0])
    with pytest.raises(ValueError, match=r"`actions` must be integers, got torch.float32"):
        act(env, [0.0, 1.0])
    assert act(env, [1, 0]).rewards.shape == (2,), "a refused action leaves the environment as it was"


def cartpole_run(seed: int, **kwargs) -> torch.Tensor:
    env = make_gymnasium("CartPole-v1", 3, **kwargs)
    rows = [begin(env, seed)] + [act(env, [t % 2, 1, 0]) for t in range(40)]
    env.close()
    return torch.stack([row.observations for row in rows])


def test_same_generator_same_run():
    first, again, other = cartpole_run(1), cartpole_run(1), cartpole_run(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first[0, 0], first[0, 1]), "each environment has a seed of its own"


def test_the_vector_version_of_an_environment():
    kwargs = {"vectorization_mode": "vector_entry_point", "max_episode_steps": 6}
    assert torch.equal(cartpole_run(1, **kwargs), cartpole_run(1, **kwargs))
    env = make_gymnasium("CartPole-v1", 3, **kwargs)
    begin(env)
    rows = [act(env, [t % 2] * 3) for t in range(8)]
    assert [row.truncations.all().item() for row in rows] == [t == 5 for t in range(8)]
    assert [row.is_first.all().item() for row in rows] == [t == 6 for t in range(8)]


def test_time_limits_of_gymnasium_cut():
    env = make_gymnasium("CartPole-v1", 2, max_episode_steps=4)
    before = [begin(env)] + [act(env, [t % 2] * 2) for t in range(3)]
    row = act(env, [1, 1])
    assert row.truncations.all() and row.is_first.all() and (row.discounts == 1).all() and row.episode_ends.all()
    speed = before[-1].observations[:, 1]
    assert torch.allclose(row.final_observations[:, 0], before[-1].observations[:, 0] + 0.02 * speed, atol=1e-6)
    assert row.observations.abs().max() <= 0.05, "the next episode has begun"


def test_dtypes_and_device():
    env = make_gymnasium(CATCH_ID, 4, device="cpu", rows=4)
    rows = begin(env), act(env)
    assert env.name == CATCH_ID and not env.saves_state and env.device == torch.device("cpu")
    for row in rows:
        assert row.rewards.dtype == row.discounts.dtype == torch.float32
        assert row.truncations.dtype == row.is_first.dtype == row.episode_ends.dtype == torch.bool
        assert row.observations.shape == (4, 4, 8)
    assert env.reset(torch.Generator())[0] is None


def test_images_show_environment_0():
    singles = [Scripted(spaces.Discrete(2), [0], render_mode="rgb_array") for _ in range(2)]
    env = adapter(*singles)
    begin(env)
    singles[1].now = 99
    assert env.render().shape == (2, 2, 3) and (env.render() == 1).all()
    assert adapter(Scripted(spaces.Discrete(2), [0])).render() is None
    env = make_gymnasium(CATCH_ID, 2, vectorization_mode="async", render_mode="rgb_array")
    begin(env)
    assert env.render().shape == (128, 128, 3)
    env.close()


BOX = spaces.Box(-9, 9, (2,), np.float32)
GOOD = np.zeros(2, np.float32)


def fails(env: GymnasiumEnvironment, steps: int, pattern: str) -> None:
    """The step of this number fails with a message that matches."""
    begin(env)
    for _ in range(steps - 1):
        act(env)
    with pytest.raises(EnvironmentFailure, match=pattern):
        act(env)
    env.close()


@pytest.mark.parametrize(
    ("observation", "problem"),
    [
        (np.array([0, np.nan], np.float32), r"observation must be finite, got nan at \[1\]"),
        (np.array([-np.inf, 0], np.float32), r"observation must be finite, got -inf at \[0\]"),
        (np.zeros(3, np.float32), r"its observation does not fit Box\(-9.0, 9.0, \(2,\), float32\) \(ValueError"),
        (np.zeros(2, np.complex64), r"its observation does not fit Box\(-9.0, 9.0, \(2,\), float32\) \(\w*Error"),
        (RuntimeError("out of fuel"), "RuntimeError: out of fuel"),
    ],
)
def test_bad_observations_name_environment_step_and_index(observation, problem):
    env = adapter(Scripted(BOX, [GOOD]), Scripted(BOX, [GOOD, GOOD, observation]), Scripted(BOX, [GOOD]))
    fails(env, 2, f"environment 'toy' failed at step 2 in environment 1: {problem}.* Close it and make a new one")


def test_failures_at_reset():
    env = adapter(Scripted(BOX, [GOOD]), Scripted(BOX, [np.full(2, np.nan, np.float32)]))
    with pytest.raises(EnvironmentFailure, match="'toy' failed at step 0 in environment 1: observation must be finite"):
        begin(env)
    with pytest.raises(EnvironmentFailure, match="'toy' failed at step 0 in environment 0: OSError: no such game"):
        begin(adapter(Scripted(BOX, [OSError("no such game")])))


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_bad_rewards(reward):
    env = adapter(Scripted(BOX, [GOOD]), Scripted(BOX, [GOOD], rewards=[0.0, reward]))
    fails(
        env, 2, f"failed at step 2 in environment 1: the reward must be a finite float32, got {reward}".replace("+", r"\+")
    )


def test_digits_outside_of_their_space():
    space = spaces.Dict({"n": spaces.Discrete(3), "x": BOX})
    env = adapter(Scripted(space, [{"n": 0, "x": GOOD}]), Scripted(space, [{"n": 0, "x": GOOD}, {"n": 3, "x": GOOD}]))
    fails(env, 1, r"in environment 1: observation\['n'\] must lie in Discrete\(3\), got 3 at \[0\]")


class Fake(gymnasium.vector.VectorEnv):
    """A vector environment of its own making, whose answers are given."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 2
    single_action_space = spaces.Discrete(2)

    def __init__(self, space, first, *answer):
        self.single_observation_space, self.first, self.answer = space, first, answer

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, actions):
        return self.answer


TWO, NO = np.zeros((2, 2), np.float32), np.zeros(2, bool)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((np.zeros((2, 3)), np.zeros(2), NO, NO, {}), r"observation must have shape \[2, 2\] to fit Box.*, got \[2, 3\]"),
        ((np.zeros((2, 2), complex), np.zeros(2), NO, NO, {}), "observation must be float32 to fit Box.*, got complex128"),
        ((TWO, np.zeros(3), NO, NO, {}), r"rewards must have shape \[2\], got \[3\]"),
        ((TWO, np.zeros(2), NO[:1], NO, {}), r"terminations must have shape \[2\], got \[1\]"),
        ((TWO, np.zeros(2), NO, NO[:1], {}), r"truncations must have shape \[2\], got \[1\]"),
    ],
)
def test_answers_of_the_wrong_form(answer, problem):
    env = GymnasiumEnvironment(Fake(BOX, TWO, *answer))
    fails(env, 1, f"environment 'Fake' failed at step 1 in all environments or one that could not be told: {problem}")


@pytest.mark.parametrize(
    ("infos", "problem"),
    [
        ({}, "of an episode that ended, as in autoreset mode 'same_step'"),
        ({"final_obs": None}, "of an episode that ended, as in autoreset mode 'same_step'"),
        ({"final_obs": np.array([GOOD, None], dtype=object)}, "of a truncated episode"),
    ],
)
def test_a_missing_last_observation(infos, problem):
    env = GymnasiumEnvironment(Fake(BOX, TWO, TWO, np.zeros(2), NO, np.array([False, True]), infos))
    fails(env, 1, rf"in environment 1: info\['final_obs'\] must hold the last observation {problem}")


def test_a_bad_last_observation():
    finals = np.array([None, np.array([0.0, np.nan], np.float32)], dtype=object)
    env = GymnasiumEnvironment(Fake(BOX, TWO, TWO, np.zeros(2), NO, np.array([False, True]), {"final_obs": finals}))
    fails(env, 1, r"in environment 1: final_obs must be finite, got nan at \[1\]")


def test_parts_that_are_missing():
    space = spaces.Dict({"a": BOX, "b": spaces.Tuple([BOX, BOX])})
    with pytest.raises(
        EnvironmentFailure, match=r"observation must be a dict with the keys \['a', 'b'\], got one with \['a'\]"
    ):
        begin(GymnasiumEnvironment(Fake(space, {"a": TWO})))
    with pytest.raises(EnvironmentFailure, match=r"observation must be a dict with the keys \['a', 'b'\], got ndarray"):
        begin(GymnasiumEnvironment(Fake(space, TWO)))
    with pytest.raises(EnvironmentFailure, match=r"observation\['b'\] must be a tuple of 2 parts, got ndarray"):
        begin(GymnasiumEnvironment(Fake(space, {"a": TWO, "b": TWO})))


@pytest.mark.filterwarnings("ignore:.*(ERROR|Worker)")
def test_an_error_in_a_worker():
    singles = [Scripted(BOX, [GOOD]), Scripted(BOX, [GOOD, GOOD, KeyError("door")]), Scripted(BOX, [GOOD])]
    fails(adapter(*singles, vector=AsyncVectorEnv), 2, "'toy' failed at step 2 in environment 1: KeyError: .*door")


@pytest.mark.parametrize("index", [0, 2])
def test_a_worker_that_dies(index):
    env = adapter(*[Scripted(BOX, [GOOD]) for _ in range(3)], vector=AsyncVectorEnv)
    begin(env)
    act(env)
    processes = env.env.processes
    os.kill(processes[index].pid, signal.SIGKILL)
    with pytest.raises(
        EnvironmentFailure, match=f"'toy' failed at step 2 in environment {index}: its process died with exit code -9"
    ):
        act(env)
    env.close()
    assert not any(process.is_alive() for process in processes) and env.env.closed


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 1, (0,)), spaces.Box(0, 1, (3, 0)), spaces.Dict({}), spaces.Tuple([spaces.Box(0, 1, (0,))])]
)
def test_a_space_without_any_number(space):
    with pytest.raises(
        ValueError, match=r"`single_observation_space` must hold at least one number, got .*, which holds none"
    ):
        GymnasiumEnvironment(Fake(space, TWO))
    env = GymnasiumEnvironment(Fake(spaces.Dict({"a": BOX, "b": spaces.Box(0, 1, (0,))}), TWO))
    assert [leaf.numel() for leaf in tree_leaves(env.observation_example)] == [2, 0]


class Missions(spaces.Space):
    """Sentences, as MiniGrid has them: a space of its own."""

    def __init__(self):
        super().__init__(dtype=str)

    def sample(self, mask=None, probability=None):
        return "go"

    def contains(self, x):
        return isinstance(x, str)


@pytest.mark.parametrize("words", [spaces.Text(5), Missions()], ids=["text", "own space"])
def test_texts_are_left_out_with_a_notice(words):
    class Cut(Scripted):
        def step(self, action):
            return *super().step(action)[:3], self.now == 2, {}

    inner = spaces.Dict({"mission": words, "x": spaces.Discrete(9)})
    space = spaces.Dict({"inner": spaces.Tuple([inner]), "words": words})
    with pytest.warns(
        UserWarning, match=r"observation\['inner'\]\[0\]\['mission'\], observation\['words'\] is text and left"
    ):
        env = adapter(Cut(space, [{"inner": ({"mission": "go", "x": i},), "words": "stop"} for i in range(9)]))
    assert env.observation_example["inner"][0].keys() == {"x"} and env.observation_example.keys() == {"inner"}
    row = begin(env), act(env)
    shown, last = row[1].observations["inner"][0]["x"], row[1].final_observations["inner"][0]["x"]
    assert row[1].truncations.all() and shown.argmax().item() == 2 and last.argmax().item() == 1
