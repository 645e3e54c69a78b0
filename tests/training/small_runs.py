"""Runs that take a moment, and what is the same between two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from disco_torch import AdamConfig, AgentConfig, TrainConfig
from disco_torch.runs.checkpoint import load_checkpoint

TIMING = ("seconds", "steps_per_second", "updates_per_second", "minutes_left")
TINY_AGENT = AgentConfig(dense=(8,), lstm_size=8, head_mlp_hiddens=(8,))


def small_config(runs: Path, **changes: Any) -> TrainConfig:
    """Ten rollouts of 12 steps on a 4x3 board, where an episode takes 3; learning begins with the second."""
    settings: dict[str, Any] = {
        "env_args": {"rows": 4, "columns": 3},
        "rule": "actor-critic",
        "device": "cpu",
        "steps": 120,
        "num_envs": 2,
        "rollout_length": 6,
        "batch_size": 4,
        "updates_per_rollout": 1,
        "replay_capacity": 8,
        "agent": TINY_AGENT,
        "optimizer": AdamConfig(learning_rate=1e-2),
        "runs": runs,
        "log_every": 2,
        "checkpoint_every": 4,
        "tensorboard": False,
    }
    return TrainConfig(**(settings | changes))


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics without what the clock says; every line must be whole."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMING} for line in lines]


def last_state(folder: Path) -> dict[str, Any]:
    """All that the newest checkpoint of a run has of its session."""
    return load_checkpoint(folder / "checkpoints")["session"]


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Two trees are equal to the last bit, and neither has a part that the other lacks."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    else:
        assert a == b, where
