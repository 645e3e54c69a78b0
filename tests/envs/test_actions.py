"""Actions as numbers: joint actions and bins."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from disco_torch import BinActions
from disco_torch.envs import make_env, make_space, number_actions
from disco_torch.envs.space_config import describe_space

SPACES = [
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([2, 3], start=[0, 5]),
    spaces.MultiDiscrete([[2, 2], [3, 1]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 2)),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_every_action_has_one_number(space):
    coding = number_actions(space)
    actions = coding.decode(np.arange(coding.num_actions))
    assert actions.shape == (coding.num_actions, *space.shape) and actions.dtype == space.dtype
    assert all(space.contains(action) for action in actions)
    assert len({action.tobytes() for action in actions}) == coding.num_actions
    assert coding.num_actions == {"Discrete": 3, "MultiDiscrete": 6 if space.shape == (2,) else 12}.get(
        type(space).__name__, 2 ** int(np.prod(space.shape))
    )


def test_the_last_digit_runs_fastest():
    assert number_actions(spaces.MultiDiscrete([2, 3])).decode(np.array([0, 1, 3])).tolist() == [[0, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(("space", "count"), [(spaces.MultiBinary(13), 8192), (spaces.MultiDiscrete([17, 241]), 4097)])
def test_too_many_joint_actions(space, count):
    assert number_actions(spaces.MultiBinary(12)).num_actions == 4096
    with pytest.raises(ValueError, match=rf"must have at most 4096 joint actions, got .*, which has {count}; leave out"):
        number_actions(space)


def test_bins_of_one_number():
    env = make_env("Pendulum-v1", 2, wrappers=[lambda env: BinActions(env, 5)])
    assert env.num_actions == 5
    single = BinActions(gymnasium.make("Pendulum-v1"), 5)
    assert single.action_space == spaces.Discrete(5)
    assert [single.action(i).tolist() for i in range(5)] == [[-2.0], [-1.0], [0.0], [1.0], [2.0]]
    assert single.action(np.int64(1)).dtype == np.float32
    env.reset(torch.Generator())
    assert env.step(None, torch.tensor([0, 4]), torch.Generator())[1].rewards.shape == (2,)


class Arm(gymnasium.Env):
    observation_space = spaces.Discrete(1)
    action_space = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 10.0]), dtype=np.float64)


def test_bins_of_several_numbers():
    env = BinActions(Arm(), (3, 2))
    assert env.action_space == spaces.MultiDiscrete([3, 2])
    assert env.action(np.array([1, 1])).tolist() == [0.0, 10.0] and env.action(np.array([2, 0])).tolist() == [1.0, 0.0]
    assert BinActions(Arm(), 4).action_space == spaces.MultiDiscrete([4, 4])


@pytest.mark.parametrize("bins", [1, (3,), (3, 1)])
def test_bins_that_are_none(bins):
    with pytest.raises(ValueError, match="`bins` must be at least 2, one for all or one for each of 2 numbers, got"):
        BinActions(Arm(), bins)


@pytest.mark.parametrize("space", [spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (1,))])
def test_nothing_to_bin(space):
    env = Arm()
    env.action_space = space
    with pytest.raises(ValueError, match="`env` must have a bounded Box of actions, got"):
        BinActions(env, 3)


@pytest.mark.parametrize(
    "space",
    [
        *SPACES,
        spaces.Box(0, 255, (2, 3), np.uint8),
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Box(-1, 1, (1,)), spaces.MultiBinary(2)])}),
    ],
    ids=str,
)
def test_spaces_as_plain_values(space):
    assert make_space(describe_space(space)) == space


def test_bounds_that_differ_are_left_out():
    box = spaces.Box(np.array([0.0, 1.0], np.float32), np.array([2.0, 2.0], np.float32))
    assert make_space(describe_space(box)) == spaces.Box(-np.inf, 2.0, (2,))
    with pytest.raises(ValueError, match=r"`space` must be made of Box, .*, got Text"):
        describe_space(spaces.Text(3))
