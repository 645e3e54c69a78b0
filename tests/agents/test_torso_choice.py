"""Which torso `auto` stands for."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from disco_torch.agents import Agent, AgentConfig, choose_torso, describe_torso
from disco_torch.envs import make_env
from disco_torch.envs.kinds import kinds_of_space
from disco_torch.envs.spaces import observation_example
from disco_torch.rules import ActorCritic

AUTO = AgentConfig(dense=(6,), torso="auto")


def box(shape: tuple[int, ...], high: float = 1.0, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "want"),
    [
        (box((10, 10, 4), 1, np.bool_), "board"),  # MinAtar
        (box((7, 7, 3), 255, np.uint8), "board"),  # MiniGrid
        (box((24, 3, 3), 9.0), "board"),
        (box((8, 8), 1, np.int8), "board"),
        (box((8, 8), 5, np.uint8), "board"),
        (box((8, 8), 5, np.int64), "mlp"),
        (box((4, 4)), "mlp"),  # the last four states of a pole
        (box((10, 2), 1, np.int8), "mlp"),
        (box((25, 25), 1, np.int8), "mlp"),
        (box((3, 5, 30), 1, np.int8), "mlp"),
        (box((4, 84, 84), 255, np.uint8), "impala"),
        (box((64, 64, 3), 255, np.uint8), "impala"),
        (box((4, 64, 64, 3), 255, np.uint8), "impala"),
        (box((64, 64), 255, np.uint8), "impala"),
        (box((64, 64, 3)), "mlp"),
        (box((2, 2, 2, 40, 40), 255, np.uint8), "mlp"),
        (box((4,)), "mlp"),
        (spaces.Discrete(16), "mlp"),
        (spaces.Dict({"a": box((5, 5, 3)), "b": box((9,))}), "board"),
        (spaces.Dict({"a": box((5, 5, 3)), "b": box((40, 40, 3), 255, np.uint8)}), "impala"),
        (spaces.Tuple((box((3,)), spaces.Discrete(3))), "mlp"),
    ],
)
def test_what_a_space_is_read_with(space: Any, want: str) -> None:
    chosen = choose_torso(AUTO, observation_example(space), kinds_of_space(space))
    assert chosen == AgentConfig(dense=(6,), torso=want)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "want"),
    [("catch", "board"), ("grid", "board"), ("bricks", "board"), ("invaders", "board"), ("chain", "mlp"), ("swing", "mlp")],
)
def test_the_environments_of_the_package(name: str, want: str) -> None:
    env = make_env(name, 1)
    assert choose_torso(AUTO, env.observation_example, env.observation_kinds).torso == want
    Agent(env.observation_example, 3, ActorCritic().outputs(3), AgentConfig(dense=(6,), torso=want))  # type: ignore[arg-type]


def test_an_agent_chooses_by_dtypes_and_keeps_what_it_chose() -> None:
    for example, want in ((torch.zeros(5, 5, dtype=torch.bool), "board"), (torch.zeros(5, 5), "mlp")):
        assert Agent(example, 3, ActorCritic().outputs(3), AUTO).config.torso == want
    assert Agent(torch.zeros(5, 5), 3, ActorCritic().outputs(3), AUTO, torso=torch.nn.Flatten(2)).config == AUTO


def test_what_is_set_stands() -> None:
    board = torch.zeros(5, 5, 2)
    for torso in ("mlp", "impala", "nature"):
        config = AgentConfig(torso=torso)  # type: ignore[arg-type]
        assert choose_torso(config, board) is config
    assert choose_torso(AgentConfig(torso="auto", observation_scale=(2.0,)), board).torso == "mlp"
    assert choose_torso(AgentConfig(torso="auto", channels=(8,)), board).channels == (8,)
    assert choose_torso(AgentConfig(torso="auto", channels=(8,)), torch.zeros(5)).channels == ()
    narrow = torch.zeros(32, 40, dtype=torch.uint8)
    assert choose_torso(AgentConfig(torso="auto", channels=(8,) * 5), narrow).torso == "impala"
    assert choose_torso(AgentConfig(torso="auto", channels=(8,) * 6), narrow).torso == "mlp"
    assert choose_torso(AgentConfig(torso="auto", channel_axis="last"), torch.zeros(2, 5, 5)).torso == "mlp"


def test_the_choice_in_a_line() -> None:
    example = {"map": torch.zeros(3, 5, 6), "view": torch.zeros(40, 32, 3, dtype=torch.uint8), "x": torch.zeros(2)}
    agent = Agent(example, 3, ActorCritic().outputs(3), AUTO)
    want = "torso impala: convolutions over 5x6 with 3 channels, 40x32 with 3 channels last"
    assert describe_torso(agent.config, agent.torso) == want
    vector = Agent(torch.zeros(4), 3, ActorCritic().outputs(3), AUTO)
    assert describe_torso(vector.config, vector.torso) == ""


def test_minatar_and_minigrid() -> None:
    for package, name in (("minatar", "MinAtar/Breakout-v1"), ("minigrid", "MiniGrid-Empty-5x5-v0")):
        pytest.importorskip(package)
        if package == "minatar":
            importlib.import_module("minatar.gym").register_envs()  # it is no attribute of the package
        space = gymnasium.make(name).observation_space
        space = space["image"] if isinstance(space, spaces.Dict) else space
        assert choose_torso(AUTO, observation_example(space), kinds_of_space(space)).torso == "board"
