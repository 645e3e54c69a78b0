"""The figures of a report. A group of runs has one colour in all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from disco_torch.analysis import Curve
from disco_torch.analysis.plots import draw_group
from disco_torch.pages import LINES, Figure, Panel, widen_range
from disco_torch.reports.runs import ReportedRun
from disco_torch.reports.scores import GroupScores

Colors = Mapping[str, str]
"""Colour of each label."""
MAX_TITLE = 44
LEAST_RANGE = 0.01
"""Least range of an axis, as a share of the largest number on it."""


def colors_of(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label, in the order of their first run; beyond eight they begin anew."""
    return {label: LINES[i % len(LINES)] for i, label in enumerate(dict.fromkeys(labels))}


def curves_figure(name: str, metric: str, runs: Sequence[ReportedRun[Any]], colors: Colors, title: str = "") -> Figure:
    """A metric over steps: a panel for each environment, a line for each group with its interval over seeds.

    Args:
      name: of the figure.
      metric: its name in the metrics.
      runs: whose.
      colors: by label.
      title: what the metric is, in front of the environment.
    """
    panels = []
    for task in dict.fromkeys(run.task for run in runs):
        own = [run for run in runs if run.task == task and run.curve(metric)[0]]
        if own:
            named = f"{title}, {task}" if title else task
            panels.append(curve_panel(named, metric, own, colors, "environment steps"))
    return Figure(name, panels)


def curve_panel(
    title: str, metric: str, runs: Sequence[ReportedRun[Any]], colors: Colors, xlabel: str, log_scale: bool = False
) -> Panel:
    """A metric of some runs over their length."""
    lines = [(run.label, run.curve(metric), run.is_complete) for run in runs]
    return Panel(cut(title), partial(_draw_curves, lines, colors, xlabel, log_scale))


def _draw_curves(
    lines: Sequence[tuple[str, Curve, bool]], colors: Colors, xlabel: str, log_scale: bool, axes: list[Any]
) -> None:
    (each,) = axes
    for label in dict.fromkeys(label for label, _, _ in lines):
        complete = [curve for name, curve, is_complete in lines if name == label and is_complete]
        if complete:
            draw_group(each, "", complete, colors[label])
        for name, (steps, values), is_complete in lines:
            if name == label and not is_complete:
                marker = "o" if len(steps) == 1 else None
                each.plot(steps, values, color=colors[label], linewidth=0.8, linestyle="--", marker=marker)
    if log_scale and all(value > 0 for _, (_, values), _ in lines for value in values):
        each.set_yscale("log")
        for axis_format in (each.yaxis.set_major_formatter, each.yaxis.set_minor_formatter):
            axis_format(_plain_logs())
    else:
        widen_range(each, LEAST_RANGE * max(map(abs, each.get_ylim())))
    each.set(xlabel=xlabel)
    each.xaxis.set_major_formatter(in_thousands())


def scores_figure(groups: Sequence[GroupScores], colors: Colors) -> Figure:
    """Interquartile means with their intervals, and a dot for each run; a panel for each environment."""
    panels = []
    for task in dict.fromkeys(group.task for group in groups):
        own = [group for group in groups if group.task == task and group.scores]
        if own:
            panels.append(Panel(cut(task), partial(_draw_scores, own, colors), 0.3 * len(own) + 0.95))
    return Figure("scores", panels)


def _draw_scores(groups: Sequence[GroupScores], colors: Colors, axes: list[Any]) -> None:
    (each,) = axes
    for row, group in enumerate(groups):
        color, values, iqm = colors[group.label], list(group.scores.values()), group.iqm
        assert iqm is not None
        each.plot(values, [row] * len(values), linestyle="none", marker="o", markersize=4, color=color, alpha=0.45)
        if len(values) > 1:
            each.plot([iqm.low, iqm.high], [row, row], color=color, linewidth=3, alpha=0.5, solid_capstyle="butt")
        each.plot([iqm.mean], [row], marker="D", markersize=5, color=color)
    each.set_yticks(range(len(groups)), [cut(group.label, 26) for group in groups])
    each.set(ylim=(len(groups) - 0.5, -0.5), xlabel="final return")
    each.grid(axis="y", visible=False)
    each.locator_params(axis="x", nbins=6)


def discovery_figure(
    name: str,
    metrics: Mapping[str, str],
    runs: Sequence[ReportedRun[Any]],
    colors: Colors,
    is_log: Callable[[str], bool] = lambda metric: False,
) -> Figure:
    """Metrics of discoveries over meta-updates, a panel for each that some run has; `metrics` has their titles."""
    panels = []
    for metric, title in metrics.items():
        own = [run for run in runs if run.curve(metric)[0]]
        if own:
            panels.append(curve_panel(title, metric, own, colors, "meta-updates", is_log(metric)))
    return Figure(name, panels)


def cut(text: str, length: int = MAX_TITLE) -> str:
    """A text of at most so many letters, in which no letter has a meaning for Matplotlib."""
    short = text if len(text) <= length else f"{text[: length - 1]}\N{HORIZONTAL ELLIPSIS}"
    return short.replace("$", r"\$")


def in_thousands() -> Any:
    """Ticks such as 20k and 1.5M."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _plain_logs() -> Any:
    """Ticks of a logarithmic axis such as 0.02, without powers."""
    from matplotlib.ticker import LogFormatter

    class PlainLogs(LogFormatter):
        def _num_to_string(self, x: float, vmin: float, vmax: float) -> str:
            return f"{x:g}"

    return PlainLogs(minor_thresholds=(2, 0.5))
