"""Scores over several tasks and seeds, put together soundly.

Definitions of Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice" (NeurIPS 2021). Scores
are given by task: a mapping from each task to its scores, one for each seed; tasks may have different numbers of seeds.
Normalise them first (`normalize_scores`), so that tasks can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from disco_torch.analysis.statistics import Interval

Scores = Mapping[str, ArrayLike]
"""Scores by task, [seeds] each."""
Statistic = Callable[[list[np.ndarray]], Any]
"""A number for a list with the scores of each task, [seeds] each. Those here keep axes in front: [K, seeds] gives [K]."""


def normalize_scores(scores: Scores, low: Mapping[str, float], high: Mapping[str, float]) -> dict[str, np.ndarray]:
    """(score - low) / (high - low) for each task: 0 is as good as `low`, say a random policy, 1 as `high`, say a peer.

    Raises where `high` is not above `low`: such a task says nothing about agents, and belongs in a list of its own.
    """
    normalized = {}
    for task, values in scores.items():
        if task not in low or task not in high:
            raise ValueError(f"`low` and `high` must name every task, got none for {task!r}.")
        if not high[task] > low[task]:
            raise ValueError(
                f"`high` must be above `low` for {task!r}, got {high[task]} and {low[task]}; leave the task out."
            )
        normalized[task] = (_checked(task, values) - low[task]) / (high[task] - low[task])
    return normalized


def interquartile_mean(tasks: Sequence[np.ndarray]) -> Any:
    """The mean of the middle half of all scores, runs and tasks pooled: a quarter is cut off at each end."""
    pooled = np.sort(np.concatenate(tasks, axis=-1), axis=-1)
    size = pooled.shape[-1]
    cut = int(0.25 * size)
    return pooled[..., cut : size - cut].mean(axis=-1)


def mean_score(tasks: Sequence[np.ndarray]) -> Any:
    """The mean over tasks of the mean over seeds."""
    return np.mean([task.mean(axis=-1) for task in tasks], axis=0)


def median_score(tasks: Sequence[np.ndarray]) -> Any:
    """The median over tasks of the mean over seeds."""
    return np.median([task.mean(axis=-1) for task in tasks], axis=0)


def optimality_gap(tasks: Sequence[np.ndarray], target: float = 1.0) -> Any:
    """How far scores fall short of `target` on average: the mean over tasks of mean(max(0, target - score))."""
    return np.mean([np.maximum(0.0, target - task).mean(axis=-1) for task in tasks], axis=0)


AGGREGATES: dict[str, Statistic] = {
    "iqm": interquartile_mean,
    "mean": mean_score,
    "median": median_score,
    "optimality_gap": optimality_gap,
}
"""The aggregates of a table, by name."""


def aggregate(
    scores: Scores, statistic: Statistic = interquartile_mean, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """An aggregate of all scores and its percentile-bootstrap interval, stratified: seeds are resampled within each task."""
    tasks = _checked_tasks(scores)
    rng = np.random.default_rng(seed)
    drawn = [_resample(rng, task, resamples) for task in tasks]
    values = np.asarray(statistic(drawn))
    if values.shape != (resamples,):  # a statistic that does not keep the axis in front
        values = np.array([statistic([task[i] for task in drawn]) for i in range(resamples)])
    return _interval(float(statistic(tasks)), values, confidence)


def probability_of_improvement(
    ours: Scores, theirs: Scores, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """How likely a run of ours is better than one of theirs on a task that is drawn at random.

        P = mean over tasks of P(x > y) + P(x = y) / 2,    x a score of ours, y one of theirs

    Args:
      ours, theirs: scores of the same tasks.
      confidence: share of intervals that should cover the true probability.
      resamples: number of bootstrap samples; seeds are drawn anew within each task, for both.
      seed: so that the same scores give the same interval.
    """
    if set(ours) != set(theirs):
        raise ValueError(
            f"`ours` and `theirs` must hold the same tasks, got {sorted(set(ours) ^ set(theirs))} in one alone."
        )
    pairs = [(_checked(task, ours[task]), _checked(task, theirs[task])) for task in sorted(ours)]
    if not pairs:
        raise ValueError("`ours` must hold at least one task, got none.")
    rng = np.random.default_rng(seed)
    drawn = [(_resample(rng, x, resamples), _resample(rng, y, resamples)) for x, y in pairs]
    return _interval(float(_mean_win(pairs)), _mean_win(drawn), confidence)


def performance_profile(
    scores: Scores, thresholds: ArrayLike, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The share of runs whose score is above each threshold, the mean over tasks; and the ends of its intervals.

    Args:
      scores: by task.
      thresholds: [K].

    Returns:
      Shares, lower and upper ends, [K] each.
    """
    tasks, levels = _checked_tasks(scores), np.asarray(thresholds, dtype=np.float64)
    rng = np.random.default_rng(seed)

    def profile(parts: list[np.ndarray]) -> np.ndarray:  # [..., K]
        return np.mean([(part[..., None] > levels).mean(axis=-2) for part in parts], axis=0)

    drawn = profile([_resample(rng, task, resamples) for task in tasks])
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return profile(tasks), low, high


def _mean_win(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The mean over tasks of the share of pairs that x wins; axes in front are kept."""
    differences = [np.sign(x[..., :, None] - y[..., None, :]) for x, y in pairs]  # [..., seeds of x, seeds of y]
    return np.asarray(np.mean([0.5 + 0.5 * difference.mean(axis=(-2, -1)) for difference in differences], axis=0))


def _resample(rng: np.random.Generator, task: np.ndarray, resamples: int) -> np.ndarray:
    """Bootstrap samples of a task's scores, [resamples, seeds]."""
    return task[rng.integers(task.size, size=(resamples, task.size))]


def _interval(value: float, values: np.ndarray, confidence: float) -> Interval:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))


def _checked_tasks(scores: Scores) -> list[np.ndarray]:
    if not scores:
        raise ValueError("`scores` must hold at least one task, got none.")
    return [_checked(task, scores[task]) for task in sorted(scores)]


def _checked(task: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"the scores of {task!r} must be at least one finite number, one for each seed, got {values!r}.")
    return array
