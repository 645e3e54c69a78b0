"""Analysis: statistics and pictures of runs."""

from disco_torch.analysis.aggregates import (
    AGGREGATES,
    aggregate,
    interquartile_mean,
    normalize_scores,
    performance_profile,
    probability_of_improvement,
)
from disco_torch.analysis.plots import Curve, Panel, plot_curve_panels, plot_curves, plot_panels
from disco_torch.analysis.statistics import Interval, mean_interval

__all__ = [
    "AGGREGATES",
    "Curve",
    "Interval",
    "Panel",
    "aggregate",
    "interquartile_mean",
    "mean_interval",
    "normalize_scores",
    "performance_profile",
    "plot_curve_panels",
    "plot_curves",
    "plot_panels",
    "probability_of_improvement",
]
