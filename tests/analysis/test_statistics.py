"""Intervals that say how sure we are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_torch.analysis import mean_interval
from disco_torch.analysis.statistics import mean_bounds

OUTCOMES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30)


@given(OUTCOMES)
def test_the_mean_lies_in_the_range_and_the_interval_too(values: list[float]) -> None:
    mean, low, high = mean_interval(values, resamples=200)
    assert mean == pytest.approx(np.mean(values))
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= high <= max(values) + slack


def test_around_the_mean() -> None:
    values = np.random.default_rng(0).normal(size=50)
    mean, low, high = mean_interval(values)
    assert low < mean < high


def test_equal_outcomes_leave_no_doubt() -> None:
    assert mean_interval([2.5] * 7) == (2.5, 2.5, 2.5)
    assert mean_interval([4.0]) == (4.0, 4.0, 4.0)


def test_the_same_values_give_the_same_interval_and_another_seed_another() -> None:
    values = np.random.default_rng(4).normal(size=20)
    assert mean_interval(values) == mean_interval(values) != mean_interval(values, seed=1)


def test_shift_and_scale_carry_over() -> None:
    values = np.random.default_rng(1).exponential(size=25)
    plain, moved = mean_interval(values), mean_interval(3.0 * values - 2.0)
    assert moved == pytest.approx([3.0 * number - 2.0 for number in plain])


def test_more_confidence_is_wider_and_more_outcomes_are_narrower() -> None:
    values = np.random.default_rng(2).normal(size=400)

    def width(values: np.ndarray, **kwargs: float) -> float:
        _, low, high = mean_interval(values, **kwargs)  # type: ignore[arg-type]
        return high - low

    assert width(values, confidence=0.5) < width(values) < width(values, confidence=0.99)
    assert width(values) == pytest.approx(0.5 * width(values[:100]), rel=0.25)  # as 1 / sqrt(n)


@pytest.mark.parametrize(("confidence", "deviations"), [(0.95, 1.96), (0.6827, 1.0)])
def test_many_outcomes_give_the_interval_of_the_normal_distribution(confidence: float, deviations: float) -> None:
    values = np.random.default_rng(5).normal(3.0, 2.0, size=500)
    mean, low, high = mean_interval(values, confidence, resamples=10_000)
    expected = deviations * values.std() / np.sqrt(values.size)
    assert [mean - low, high - mean] == pytest.approx([expected, expected], rel=0.06)


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        _, low, high = mean_interval(random.normal(1.0, 2.0, size=30), resamples=300)
        covered += low <= 1.0 <= high
    assert 0.89 <= covered / 300 <= 0.98  # the percentile interval is a little narrow for 30 outcomes


def test_no_outcome_is_an_error() -> None:
    with pytest.raises(ValueError, match="`values` must hold at least one outcome, got none"):
        mean_interval([])


def test_bounds_of_columns_are_those_of_each() -> None:
    values = np.random.default_rng(1).normal(size=(6, 4))
    low, high = mean_bounds(values, resamples=300)
    for i in range(4):
        assert (low[i], high[i]) == pytest.approx(mean_interval(values[:, i], resamples=300)[1:])
