"""The embedded rule teaches: agents learn from nothing but its targets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from disco_torch.agents import AgentConfig
from disco_torch.training import PRESETS, TrainConfig, train


def config_of(tmp_path: Path, **changes: object) -> TrainConfig:
    preset = PRESETS["catch-grove25"][1]
    changes |= {"runs": tmp_path, "device": "cpu", "tensorboard": False, "checkpoint_every": 0}
    return dataclasses.replace(preset, **changes)  # type: ignore[arg-type]


def test_it_teaches_small_catch(tmp_path: Path) -> None:
    agent = AgentConfig(dense=(64, 64), lstm_size=32, head_mlp_hiddens=(32,))
    config = config_of(tmp_path, env_args={"rows": 5, "columns": 5}, agent=agent, steps=16 * 16 * 350)
    result = train(config, view=False)
    assert result.metrics[0]["interval_return"] < 0 and result.final_return > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_it_teaches_catch_of_a_size_that_it_never_saw(tmp_path: Path, seed: int) -> None:
    assert train(config_of(tmp_path, seed=seed), view=False).final_return > 0.9
