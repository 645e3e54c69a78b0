"""Environments by name."""

from __future__ import annotations

import pytest
import torch

from disco_torch.envs import Catch, GymnasiumEnvironment, make_env


def test_catch_is_made_of_tensors():
    env = make_env("catch", 5, rows=6, columns=7)
    assert isinstance(env, Catch) and env.num_envs == 5 and env.observation_example.shape == (6, 7)


def test_other_names_are_gymnasium_ids():
    env = make_env("CartPole-v1", 2, device=torch.device("cpu"))
    assert isinstance(env, GymnasiumEnvironment) and env.name == "CartPole-v1" and env.num_actions == 2
    env.close()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Cartpole-v1", "'CartPole-v1'"),
        ("cacth", "'catch'"),
        ("invader", "'invaders'"),
        ("disco_torch/catch", "'disco_torch/Catch-v0'"),
    ],
)
def test_unknown_names_are_answered_with_near_ones(name, near):
    with pytest.raises(
        ValueError, match="must be 'catch', a family of levels or an environment that Gymnasium knows"
    ) as info:
        make_env(name, 1)
    assert f"got '{name}'" in str(info.value) and near in str(info.value).split("did you mean")[1]


def test_unknown_names_without_near_ones():
    hint = r"have names such as 'minatar/breakout'\. One of another package .*; one of your own as .* --import MODULE"
    with pytest.raises(ValueError, match=rf"got 'Qq/Zz'\. Atari, .* {hint}"):
        make_env("Qq/Zz", 1)


def test_number_of_environments():
    with pytest.raises(
        ValueError, match="`num_envs` must be greater than 0, got 0; it is the number of parallel environments"
    ):
        make_env("CartPole-v1", 0)


@pytest.mark.parametrize(
    ("name", "argument"), [("catch", "rows"), ("catch", "columns"), ("grid", "size"), ("bricks", "rows")]
)
@pytest.mark.parametrize("value", [5.5, "x", [1], 10**14, 10**30])
def test_sizes_that_no_environment_can_be_made_of(name: str, argument: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"`({argument}|env_args)` must be .*, got "):
        make_env(name, 2, **{argument: value})
