"""Tasks that take a memory are learned with one, and not without. They train for minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

from disco_torch import AdamConfig, AgentConfig, load_run, train
from disco_torch.envs import make_env

LSTM = AgentConfig(dense=(64,), core="lstm", core_size=64)
SETTINGS: dict[str, Any] = {"rule": "actor-critic", "device": "cpu", "updates_per_rollout": 2, "tensorboard": False}
CORES = pytest.mark.parametrize("core", ["lstm", "none"])


def mean_return(runs: Path, core: Any, **settings: Any) -> float:
    """Of 200 episodes after training, which stops at the target return."""
    folder = train(**SETTINGS | settings, agent=replace(LSTM, core=core), runs=runs, view=False).folder
    return load_run(folder, "cpu", wrappers=settings.get("wrappers")).evaluate(200).interval.mean


@pytest.mark.slow
@CORES
def test_a_cue_is_remembered_for_20_steps(core: str, tmp_path: Path) -> None:
    """Level 89 of `recall`: 2 cues, decoys in a fifth of the steps. Guessing gets 0.27 at best."""
    levels = make_env("recall", 1, level_seed=89).reset(torch.Generator())[0].levels
    assert levels.delay.item() == 20 and levels.cues.item() == 2 and levels.decoys.item() > 0.2
    settings: dict[str, Any] = {"env": "recall", "env_args": {"level_seed": 89}, "target_return": 0.95}
    settings |= {"steps": 200_000, "rollout_length": 48, "optimizer": AdamConfig(learning_rate=3e-3)}
    mean = mean_return(tmp_path, core, **settings)
    assert mean > 0.85 if core == "lstm" else mean < 0.45


def without_velocities(env: gymnasium.Env) -> gymnasium.Env:
    space: Any = env.observation_space
    shown = spaces.Box(space.low[::2], space.high[::2], dtype=space.dtype)  # position and angle
    return TransformObservation(env, lambda observation: observation[::2], shown)


@pytest.mark.slow
@CORES
def test_cartpole_without_velocities(core: str, tmp_path: Path) -> None:
    """A memory of two observations is enough to tell how fast cart and pole are."""
    settings: dict[str, Any] = {"env": "CartPole-v1", "wrappers": [without_velocities], "target_return": 475.0}
    settings |= {"steps": 500_000, "rollout_length": 32, "schedule": "cosine", "optimizer": AdamConfig(learning_rate=1e-3)}
    mean = mean_return(tmp_path, core, **settings)
    assert mean > 400 if core == "lstm" else mean < 120
