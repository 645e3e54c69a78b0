"""Runs with convolutional torsos: chosen from the observations, resumed, traced, evaluated, and better on a board."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import TINY_AGENT, assert_same, last_state, metrics_of, small_config

from disco_torch import AgentConfig, TrainConfig, load_run, train
from disco_torch.training import SMALL_AGENT
from disco_torch.training.folder import RunFolder
from disco_torch.weights.configuration import config_from_plain

AUTO = replace(TINY_AGENT, torso="auto", channels=(2,))


class Picture(gymnasium.Env):
    """A bright spot on the left or on the right; the action of that side pays. And a clock, which says nothing."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        {"view": spaces.Box(0, 255, (32, 40, 3), np.uint8), "clock": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
    )

    def __init__(self) -> None:
        self.side = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.side = int(self.np_random.integers(2))
        view = np.zeros((32, 40, 3), np.uint8)
        view[12:20, 4 + 24 * self.side : 12 + 24 * self.side] = 255
        return {"view": view, "clock": np.ones(2, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.side)
        return self.reset()[0], reward, True, False, {}


def test_the_default_agent_chooses_its_torso_and_says_so(tiny: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert TrainConfig().agent == SMALL_AGENT and SMALL_AGENT.torso == "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = train(env=Picture, **tiny | {"agent": AUTO, "view": True}).folder
    assert "torso impala: convolutions over 32x40 with 3 channels last\n" in capsys.readouterr().out
    assert RunFolder.open(folder).config.agent == replace(AUTO, torso="impala")
    run = load_run(folder, "cpu", env=Picture)
    observation, _ = Picture().reset(seed=0)
    assert run.predict(observation) in (0, 1)
    batch = {name: np.stack([part] * 3) for name, part in observation.items()}
    assert run.predict(batch, deterministic=True).shape == (3,) and len(run.evaluate(2).returns) >= 2
    assert {leaf.dtype for leaf in run.agent.agent.torso.parameters()} == {torch.float32}  # type: ignore[union-attr]


def test_images_are_stored_as_bytes(tiny: dict[str, Any]) -> None:
    stored = last_state(train(env=Picture, **tiny | {"agent": AUTO}).folder)["replay"]["tensors"]
    assert stored["observations.view"].dtype == torch.uint8 and stored["observations.clock"].dtype == torch.float32


@pytest.mark.parametrize(("name", "want"), [("catch", "board"), ("chain", "mlp")])
def test_nothing_is_said_of_a_torso_that_was_set(name: str, want: Any, tmp_path: Path, capsys: Any) -> None:
    config = small_config(tmp_path, env=name, env_args={}, agent=replace(TINY_AGENT, torso=want))
    assert RunFolder.open(train(config).folder).config.agent.torso == want
    assert "torso" not in capsys.readouterr().out
    again = train(replace(config, agent=replace(TINY_AGENT, torso="auto"), name="auto")).folder
    assert ("torso board" in capsys.readouterr().out) == (want == "board")
    assert_same(last_state(again)["learning"], last_state(tmp_path / f"{name}-actor-critic-seed0")["learning"])


@pytest.mark.parametrize("torso", ["board", "impala"])
def test_a_resumed_run_is_the_same_run(torso: Any, tmp_path: Path) -> None:
    agent = replace(TINY_AGENT, torso=torso, channels=(2, 3))
    settings: dict[str, Any] = {"agent": agent, "env_args": {"rows": 6, "columns": 5}}
    whole = train(small_config(tmp_path, name="whole", **settings), view=False).folder
    parts = train(small_config(tmp_path, name="parts", **settings | {"steps": 60}), view=False).folder
    assert train(resume=parts, steps=120, view=False).folder == parts
    assert_same(last_state(whole), last_state(parts))
    assert metrics_of(whole)[-1] == metrics_of(parts)[-1]


@pytest.mark.parametrize("rule", ["birch", "ppo", "policy-gradient"])
def test_a_traced_run_is_the_plain_one(rule: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "rule": rule,
        "env_args": {"rows": 5, "columns": 5},
        "agent": replace(TINY_AGENT, torso="impala", channels=(2, 2)),
    }
    folders = [train(small_config(tmp_path, name=speed, speed=speed, **settings)).folder for speed in ("plain", "traced")]
    plain, traced = (load_run(folder, "cpu").params for folder in folders)
    assert all(torch.allclose(plain[name], traced[name], atol=1e-5) for name in plain)


def test_files_from_before_have_no_convolutions(tmp_path: Path) -> None:
    folder = train(small_config(tmp_path), view=False).folder
    plain = json.loads((folder / "config.json").read_text())["agent"]
    for name in ("torso", "core", "channels", "channel_axis"):
        del plain[name]
    assert config_from_plain(AgentConfig, plain) == TINY_AGENT and TINY_AGENT.torso == "mlp"


def test_learning_where_something_is_on_a_board(tmp_path: Path) -> None:
    """5x5 Catch, where a random policy gets -0.6."""
    agent = AgentConfig(dense=(64,), lstm_size=32, head_mlp_hiddens=(32,), torso="board")
    settings: dict[str, Any] = {"env": "catch", "env_args": {"rows": 5, "columns": 5}, "agent": agent, "runs": tmp_path}
    run = load_run(train(rule="actor-critic", steps=20_000, device="cpu", view=False, **settings).folder, "cpu")
    assert run.evaluate(200).interval.mean > 0.6


def test_learning_where_something_is_in_an_image(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"agent": replace(TINY_AGENT, dense=(16,), torso="auto", channels=(4, 4)), "runs": tmp_path}
    settings |= {"num_envs": 8, "rollout_length": 8, "batch_size": 16, "device": "cpu", "view": False, "tensorboard": False}
    folder = train(env=Picture, rule="actor-critic", steps=4_000, **settings).folder
    assert load_run(folder, "cpu", env=Picture).evaluate(100).interval.mean > 0.9
