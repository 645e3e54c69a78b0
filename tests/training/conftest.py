"""Settings that the tests of what a user brings share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import TINY_AGENT


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run of 4 rollouts."""
    settings: dict[str, Any] = {"rule": "actor-critic", "device": "cpu", "steps": 48, "num_envs": 2, "rollout_length": 6}
    settings |= {"batch_size": 4, "replay_capacity": 8, "agent": TINY_AGENT, "tensorboard": False, "runs": tmp_path}
    return settings | {"view": False}
