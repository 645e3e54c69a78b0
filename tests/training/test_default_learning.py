"""Nothing chosen but the environment: the default settings learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disco_torch.training import load_run, train


def trained(tmp_path: Path, **fields: Any) -> Any:
    return train(runs=tmp_path, device="cpu", tensorboard=False, checkpoint_every=0, view=False, **fields)


def test_catch_in_a_few_seconds(tmp_path: Path) -> None:
    result = trained(tmp_path, env="catch", env_args={"rows": 5, "columns": 5}, steps=12_000, log_every=4)
    assert result.metrics[0]["return"] < 0 and result.final_return > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("env", "steps", "least"), [("CartPole-v1", 60_000, 475.0), ("Acrobot-v1", 100_000, -110.0)])
def test_tasks_of_other_people(tmp_path: Path, env: str, steps: int, least: float) -> None:
    result = trained(tmp_path, env=env, steps=steps)
    assert load_run(result.folder).config.rule == "ppo-replay"
    assert result.final_return > least
