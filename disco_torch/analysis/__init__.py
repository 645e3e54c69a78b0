"""Analysis: statistics and pictures of runs."""

from disco_torch.analysis.plots import Curve, plot_curves
from disco_torch.analysis.statistics import Interval, mean_interval

__all__ = ["Curve", "Interval", "mean_interval", "plot_curves"]
