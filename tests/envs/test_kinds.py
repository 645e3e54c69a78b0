"""What kind of numbers each leaf of an observation holds, from spaces, dtypes and what environments say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from disco_torch.envs import FAMILIES, Catch, kinds_by_name, kinds_of_space, make_env


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "image"),
        (spaces.Box(0, 255, (4, 32, 32), np.uint8), "image"),
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), "numbers"),  # MiniGrid: codes of 0 .. 10
        (spaces.Box(0, 255, (128,), np.uint8), "numbers"),
        (spaces.Box(0, 100, (84, 84), np.uint8), "numbers"),
        (spaces.Box(0, 1, (5, 5), np.uint8), "unit"),
        (spaces.Box(0, 1, (64, 64), np.int64), "unit"),
        (spaces.Box(0, 1, (10, 10, 4), np.bool_), "unit"),
        (spaces.Box(-1, 1, (5,), np.int8), "numbers"),
        (spaces.Box(0.0, 1.0, (5,), np.float32), "numbers"),
        (spaces.Box(-np.inf, np.inf, (5,), np.float64), "numbers"),
        (spaces.Discrete(16), "unit"),
        (spaces.MultiDiscrete([3, 4]), "unit"),
        (spaces.MultiBinary(4), "unit"),
    ],
)
def test_kinds_of_spaces(space: spaces.Space[Any], kind: str) -> None:
    assert kinds_of_space(space) == kind
    both = spaces.Tuple([spaces.Dict({"a": space}), spaces.Discrete(2)])
    assert kinds_of_space(both) == ({"a": kind}, "unit")


def test_gymnasium_environments_say_their_kinds() -> None:
    env = make_env("CartPole-v1", 2)
    assert kinds_by_name(env, "observation") == {"observation": "numbers"}
    env.close()
    env = make_env("FrozenLake-v1", 2)
    assert kinds_by_name(env, "observation") == {"observation": "unit"}
    env.close()


NUMBERS = {"lander", "swing"}


@pytest.mark.parametrize("name", sorted({"catch", *FAMILIES} - NUMBERS))
def test_our_own_show_numbers_of_0_to_1(name: str) -> None:
    env = make_env(name, 4)
    assert kinds_by_name(env, "o") == {"o": "unit"}
    generator = torch.Generator().manual_seed(0)
    state, step = env.reset(generator)
    for _ in range(10):
        assert step.observations.min() >= 0 and step.observations.max() <= 1
        state, step = env.step(state, torch.randint(env.num_actions, (4,), generator=generator), generator)


@pytest.mark.parametrize("name", sorted(NUMBERS & set(FAMILIES)))
def test_bodies_show_numbers_of_any_scale(name: str) -> None:
    assert kinds_by_name(make_env(name, 4), "o") == {"o": "numbers"}


def test_without_a_word_the_dtype_tells() -> None:
    env: Any = Catch(2, rows=4, columns=3)
    env.observation_kinds = None
    env.observation_example = {
        "board": torch.zeros(3, dtype=torch.bool),
        "image": torch.zeros(40, 40, 3, dtype=torch.uint8),
        "codes": torch.zeros(7, 7, 3, dtype=torch.uint8),
        "speed": torch.zeros(3),
    }
    kinds = {"o/board": "unit", "o/image": "image", "o/codes": "numbers", "o/speed": "numbers"}
    assert kinds_by_name(env, "o") == kinds


@pytest.mark.parametrize("wrong", ["number", {"a": "unit"}])
def test_kinds_that_do_not_fit_are_refused(wrong: Any) -> None:
    env: Any = Catch(2, rows=4, columns=3)
    env.observation_kinds = wrong
    message = r"`observation_kinds` of .* must name one of \['image', 'unit', 'numbers'\] for each of \['o'\], got"
    with pytest.raises(ValueError, match=message):
        kinds_by_name(env, "o")
