"""Analysis: statistics and pictures of runs."""

from disco_torch.analysis.aggregates import (
    AGGREGATES,
    aggregate,
    interquartile_mean,
    normalize_scores,
    performance_profile,
    probability_of_improvement,
)
from disco_torch.analysis.atari import ATARI_RETURNS, atari_scores
from disco_torch.analysis.comparison import find_aggregates, find_references, report
from disco_torch.analysis.comparison_figure import plot_comparison
from disco_torch.analysis.crafter import ACHIEVEMENTS, crafter_score, crafter_success_rates
from disco_torch.analysis.plots import Curve, Panel, plot_curve_panels, plot_curves, plot_panels
from disco_torch.analysis.procgen import PROCGEN_RETURNS, procgen_scores
from disco_torch.analysis.records import RANDOM, RunRecord, append_record, area_under_curve, binned_curve, read_records
from disco_torch.analysis.statistics import Interval, mean_interval

__all__ = [
    "ACHIEVEMENTS",
    "AGGREGATES",
    "ATARI_RETURNS",
    "PROCGEN_RETURNS",
    "RANDOM",
    "Curve",
    "Interval",
    "Panel",
    "RunRecord",
    "aggregate",
    "append_record",
    "area_under_curve",
    "atari_scores",
    "binned_curve",
    "crafter_score",
    "crafter_success_rates",
    "find_aggregates",
    "find_references",
    "interquartile_mean",
    "mean_interval",
    "normalize_scores",
    "performance_profile",
    "plot_comparison",
    "plot_curve_panels",
    "plot_curves",
    "plot_panels",
    "probability_of_improvement",
    "procgen_scores",
    "read_records",
    "report",
]
