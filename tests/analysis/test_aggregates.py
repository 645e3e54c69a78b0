"""Aggregates over tasks: against hand-computed numbers and the definitions of Agarwal et al. (2021)."""

from __future__ import annotations

import numpy as np
import pytest

from disco_torch.analysis import (
    AGGREGATES,
    aggregate,
    interquartile_mean,
    normalize_scores,
    performance_profile,
    probability_of_improvement,
)

RNG = np.random.default_rng(3)
TASKS = {f"task{i}": RNG.normal(size=5) + i for i in range(7)}


def trimmed_mean(values: np.ndarray) -> float:
    """By hand: sort, leave a quarter (rounded down) out at each end."""
    ordered = sorted(values.tolist())
    cut = len(ordered) // 4
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("number", [1, 3, 4, 7, 8, 35])
def test_the_interquartile_mean_is_the_trimmed_mean_of_all_runs_pooled(number: int) -> None:
    values = np.random.default_rng(number).normal(size=number)
    assert interquartile_mean([values]) == pytest.approx(trimmed_mean(values))
    assert interquartile_mean([values[:1], values[1:]] if number > 1 else [values]) == pytest.approx(trimmed_mean(values))


def test_an_outlier_moves_the_mean_but_not_the_interquartile_mean() -> None:
    scores = {"a": [0.0, 1.0, 2.0, 3.0], "b": [0.0, 1.0, 2.0, 3.0]}
    wild = {"a": [0.0, 1.0, 2.0, 300.0], "b": [0.0, 1.0, 2.0, 3.0]}
    assert aggregate(scores).mean == aggregate(wild).mean == 1.5
    assert aggregate(wild, AGGREGATES["mean"]).mean > 30


def test_aggregates_by_hand() -> None:
    scores = {"a": [0.5, 1.5], "b": [2.0, 2.0], "c": [0.0, 0.5]}
    got = {name: aggregate(scores, statistic).mean for name, statistic in AGGREGATES.items()}
    assert got["mean"] == pytest.approx((1.0 + 2.0 + 0.25) / 3)
    assert got["median"] == 1.0
    assert got["optimality_gap"] == pytest.approx((0.25 + 0.0 + 0.75) / 3)
    assert got["iqm"] == pytest.approx((0.5 + 0.5 + 1.5 + 2.0) / 4)  # 6 scores, one is left out at each end


# Scores by task, two decimals, and what rliable 1.2.0 makes of them: its definitions, not ours.
RLIABLE_X = [[1.35, 1.34, 1.41, 0.91, -0.15], [1.82, 0.97, 0.92, 1.41, 0.51], [1.73, 1.45, 0.77, 0.48, 0.72]]
RLIABLE_X += [[0.69, -0.11, 1.28, 0.09, 0.28], [0.82, 1.94, 1.49, 1.24, 0.1], [0.68, 0.94, 0.88, 0.6, 1.02]]
RLIABLE_Y = [[1.35, 1.17, 1.45, 1.16, 1.38], [0.78, 1.42, 0.26, 0.53, 0.23], [0.53, 0.8, 0.57, 1.59, 1.21]]
RLIABLE_Y += [[1.09, 0.49, 0.48, 1.31, 1.2], [1.26, 1.07, 0.03, 1.21, 0.02], [0.75, 1.02, 0.96, 1.1, 1.07]]
RLIABLE = {
    "iqm": (0.945625, 0.74, 1.133125),
    "mean": (0.9193333333, 0.7413333333, 1.091),
    "median": (1.001, 0.746, 1.171025),
    "optimality_gap": (0.2633333333, 0.1576666667, 0.3806666667),
}
"""Value and 95% interval of 50,000 bootstrap samples."""


def as_tasks(scores: list[list[float]]) -> dict[str, list[float]]:
    return {f"task{i}": own for i, own in enumerate(scores)}


@pytest.mark.parametrize("name", RLIABLE)
def test_aggregates_are_those_of_rliable(name: str) -> None:
    value, low, high = aggregate(as_tasks(RLIABLE_X), AGGREGATES[name], resamples=5000)
    assert value == pytest.approx(RLIABLE[name][0])
    assert (low, high) == pytest.approx(RLIABLE[name][1:], abs=0.02)  # other random numbers


def test_the_probability_of_improvement_is_that_of_rliable() -> None:
    value, low, high = probability_of_improvement(as_tasks(RLIABLE_X), as_tasks(RLIABLE_Y), resamples=5000)
    assert value == pytest.approx(0.46)
    assert (low, high) == pytest.approx((0.3266666667, 0.5966666667), abs=0.02)


def test_profiles_are_those_of_rliable() -> None:
    shares, _, _ = performance_profile(as_tasks(RLIABLE_X), [0.0, 0.5, 1.0, 1.5], resamples=10)
    assert shares == pytest.approx([0.9333333333, 0.8, 0.4, 0.1])


def test_a_statistic_of_ones_own_needs_no_axes_in_front() -> None:
    best = aggregate(TASKS, lambda tasks: float(max(task.max() for task in tasks)), resamples=100)
    assert best.mean == best.high == max(values.max() for values in TASKS.values()) > best.low
    plain = aggregate(TASKS, lambda tasks: sum(task.mean() for task in tasks) / len(tasks), resamples=100)
    assert plain == pytest.approx(aggregate(TASKS, AGGREGATES["mean"], resamples=100))


def test_the_bootstrap_is_stratified() -> None:
    """Tasks of constant scores leave no doubt, however far apart they are: seeds are drawn within a task, not tasks."""
    for statistic in AGGREGATES.values():
        mean, low, high = aggregate({"a": [0.0] * 5, "b": [10.0] * 5}, statistic, resamples=50)
        assert mean == low == high


def test_intervals_cover_the_true_value_about_as_often_as_they_say() -> None:
    rng, covered = np.random.default_rng(0), 0
    for i in range(100):
        scores = {f"task{k}": rng.normal(loc=k, size=10) for k in range(6)}
        _, low, high = aggregate(scores, AGGREGATES["mean"], resamples=200, seed=i)
        covered += low <= 2.5 <= high
    assert 84 <= covered <= 100


def test_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    ours, theirs = {"a": [1.0, 2.0], "b": [0.0, 0.0]}, {"a": [1.0, 0.0], "b": [0.0, 1.0]}
    # a: (1>1 tie, 1>0, 2>1, 2>0) = 3.5 / 4; b: (tie, lost, tie, lost) = 1 / 4
    assert probability_of_improvement(ours, theirs).mean == pytest.approx((3.5 / 4 + 1 / 4) / 2)
    assert probability_of_improvement(TASKS, TASKS).mean == pytest.approx(0.5)
    better = {task: values + 100 for task, values in TASKS.items()}
    assert probability_of_improvement(better, TASKS) == (1.0, 1.0, 1.0)


def test_both_ways_round_probabilities_add_up_to_one() -> None:
    other = {task: np.random.default_rng(5).normal(size=4) + 2 for task in TASKS}
    there, back = (probability_of_improvement(*pair).mean for pair in ((TASKS, other), (other, TASKS)))
    assert there + back == pytest.approx(1.0)


def test_a_profile_falls_from_one_to_zero() -> None:
    shares, low, high = performance_profile(TASKS, np.linspace(-10, 20, 31), resamples=100)
    assert shares[0] == 1.0 and shares[-1] == 0.0 and (np.diff(shares) <= 0).all()
    assert (low <= shares + 1e-12).all() and (shares <= high + 1e-12).all()
    exact, _, _ = performance_profile({"a": [0.0, 1.0], "b": [2.0]}, [0.5, 1.0])
    assert exact.tolist() == [0.75, 0.5]  # above, not at


def test_normalised_scores() -> None:
    got = normalize_scores({"a": [0.0, 5.0], "b": [-200.0]}, {"a": 0.0, "b": -500.0}, {"a": 10.0, "b": -100.0})
    assert got["a"].tolist() == [0.0, 0.5] and got["b"].tolist() == [0.75]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: aggregate({}), "`scores` must hold at least one task, got none"),
        (lambda: aggregate({"a": []}), "the scores of 'a' must be at least one finite number"),
        (lambda: aggregate({"a": [1.0, float("nan")]}), "the scores of 'a' must be at least one finite number"),
        (lambda: aggregate({"a": [[1.0]]}), "the scores of 'a' must be at least one finite number, one for each seed"),
        (lambda: probability_of_improvement({"a": [1.0]}, {"b": [1.0]}), r"the same tasks, got \['a', 'b'\] in one alone"),
        (lambda: probability_of_improvement({}, {}), "`ours` must hold at least one task, got none"),
        (lambda: normalize_scores({"a": [1.0]}, {}, {"a": 1.0}), "must name every task, got none for 'a'"),
        (
            lambda: normalize_scores({"a": [1.0]}, {"a": 1.0}, {"a": 1.0}),
            "`high` must be above `low` for 'a', got 1.0 and 1.0; leave the task out",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
