"""The learning rate over a run."""

from __future__ import annotations

import math

import pytest

from disco_torch import AdamConfig, TrainConfig
from disco_torch.training.learning_rate import learning_rate


def rates(steps: list[int], **settings: object) -> list[float]:
    config = TrainConfig(steps=1000, optimizer=AdamConfig(learning_rate=0.5), **settings)  # type: ignore[arg-type]
    return [learning_rate(config, step) for step in steps]


def test_constant() -> None:
    assert rates([1, 500, 1000, 2000]) == [0.5] * 4


def test_warm_up_rises_in_a_line_and_stays() -> None:
    assert rates([0, 50, 100, 200, 900], warmup_steps=200) == pytest.approx([0.0, 0.125, 0.25, 0.5, 0.5])


def test_cosine_falls_to_zero_at_the_last_step() -> None:
    assert rates([0, 250, 500, 1000], schedule="cosine") == pytest.approx(
        [0.5, 0.25 * (1 + math.sqrt(0.5)), 0.25, 0.0], abs=1e-12
    )
    assert rates([1200], schedule="cosine") == pytest.approx([0.0], abs=1e-12)  # a last rollout may go past the end


def test_warm_up_and_cosine_multiply() -> None:
    both = rates([100, 400], schedule="cosine", warmup_steps=200)
    cosine = rates([100, 400], schedule="cosine")
    assert both == pytest.approx([0.5 * cosine[0], cosine[1]])


def test_cosine_never_rises() -> None:
    falling = rates(list(range(0, 1001, 10)), schedule="cosine")
    assert falling == sorted(falling, reverse=True)
