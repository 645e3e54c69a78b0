"""Analysis: statistics and pictures of runs."""

from disco_torch.analysis.plots import Curve, Panel, plot_curve_panels, plot_curves, plot_panels
from disco_torch.analysis.statistics import Interval, mean_interval

__all__ = ["Curve", "Interval", "Panel", "mean_interval", "plot_curve_panels", "plot_curves", "plot_panels"]
