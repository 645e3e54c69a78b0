"""Statistics that say how sure we are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: ArrayLike, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean and its percentile-bootstrap interval (Efron, 1979).

    Args:
      values: [n], independent outcomes, such as the returns of episodes or one number for each seed.
      confidence: share of intervals that should cover the true mean.
      resamples: of the bootstrap.
      seed: so that the same values give the same interval.
    """
    outcomes = np.asarray(values, dtype=np.float64).ravel()
    if outcomes.size == 0:
        raise ValueError("`values` must hold at least one outcome, got none.")
    draws = np.random.default_rng(seed).integers(outcomes.size, size=(resamples, outcomes.size))
    means = outcomes[draws].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(outcomes.mean()), float(low), float(high))


def mean_bounds(
    values: np.ndarray, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends of `mean_interval` for each column of `values` [n, K], [K] each."""
    n = len(values)
    draws = np.random.default_rng(seed).integers(n, size=(resamples, n))
    shares = (draws[:, :, None] == np.arange(n)).mean(axis=1)  # [resamples, n], of each outcome in each sample
    low, high = np.quantile(shares @ values, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high
