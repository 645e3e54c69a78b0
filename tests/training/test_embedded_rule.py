"""The embedded rule teaches: agents learn from nothing but its targets."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from disco_torch.agents import AgentConfig
from disco_torch.training import PRESETS, TrainConfig, train

SMALL_BOARD = {"rows": 5, "columns": 5}


def config_of(tmp_path: Path, **changes: object) -> TrainConfig:
    preset = PRESETS["catch-birch"][1]
    changes |= {"runs": tmp_path, "device": "cpu", "tensorboard": False, "checkpoint_every": 0}
    return dataclasses.replace(preset, **changes)  # type: ignore[arg-type]


def test_agents_are_updated_by_its_targets(tmp_path: Path) -> None:
    agent = AgentConfig(dense=(64, 64), lstm_size=32, head_mlp_hiddens=(32,))
    config = config_of(tmp_path, env_args=SMALL_BOARD, agent=agent, log_every=1)
    config = dataclasses.replace(config, steps=10 * config.steps_per_rollout)
    lines = [line for line in train(config, view=False).metrics if "total_loss" in line]
    assert [line["updates"] for line in lines] == [1, 2, 3]
    assert all(math.isfinite(line["total_loss"]) for line in lines)
    assert all(line["global_update_norm"] > 0 for line in lines[:-1])  # at the end the rate has fallen to 0


@pytest.mark.slow
def test_it_teaches_small_catch(tmp_path: Path) -> None:
    result = train(config_of(tmp_path, env_args=SMALL_BOARD, steps=20_000), view=False)
    assert result.metrics[0]["interval_return"] < 0.2 and result.final_return > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_it_teaches_catch_of_a_size_that_it_never_saw(tmp_path: Path, seed: int) -> None:
    assert train(config_of(tmp_path, seed=seed, steps=64_000), view=False).final_return > 0.9
