"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from disco_torch.analysis.statistics import mean_bounds
from disco_torch.files import replacing

Curve = tuple[Sequence[float], Sequence[float]]
"""Environment steps and the mean return at each."""


def on_common_steps(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Curves interpolated at the same steps, over the range that all of them have: [points], [runs, points]."""
    start = max(steps[0] for steps, _ in curves)
    end = min(steps[-1] for steps, _ in curves)
    grid = np.linspace(start, end, points)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves])


@dataclass(frozen=True)
class Panel:
    """One of the plots side by side in a figure: a curve for each label."""

    title: str
    curves: Mapping[str, Curve]
    log_scale: bool = False


def plot_panels(panels: Sequence[Panel], path: Path, *, xlabel: str, title: str = "") -> None:
    """Draws panels side by side, of curves over the same thing, and writes a PNG."""
    plt = pyplot()
    figure, all_axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4), dpi=120, squeeze=False)
    for axes, panel in zip(all_axes[0], panels, strict=True):
        for label, (steps, values) in panel.curves.items():
            axes.plot(steps, values, label=label)
        if panel.log_scale and any(value > 0 for _, values in panel.curves.values() for value in values):
            axes.set_yscale("log")
        axes.set(xlabel=xlabel, title=panel.title)
        style_axes(axes)
    figure.suptitle(title)
    write_figure(figure, path)


def plot_curves(
    groups: Mapping[str, Sequence[Curve]], path: Path, *, title: str = "", ylabel: str = "episode return"
) -> None:
    """Draws the mean of each group of runs with its 95% interval, and writes a PNG.

    Args:
      groups: label -> curves, one for each seed. A curve of one point is drawn as a marker.
      path: file to write.
      title: title of the figure.
      ylabel: label of the vertical axis.
    """
    plot_curve_panels({title: groups}, path, ylabel=ylabel)


def plot_curve_panels(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path, *, ylabel: str = "episode return"
) -> None:
    """`plot_curves` with a panel for each title, such as that of an environment, side by side in rows of three."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (7, 4) if len(panels) == 1 else (5 * columns, 4 * rows)
    figure, grid = pyplot().subplots(rows, columns, figsize=size, dpi=120, squeeze=False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    for axes, (title, groups) in zip(grid.flat, panels.items(), strict=False):
        for label, curves in groups.items():
            draw_group(axes, label, curves)
        axes.set(xlabel="environment steps", ylabel=ylabel, title=title)
        style_axes(axes)
    write_figure(figure, path)


def draw_group(axes: Any, label: str, curves: Sequence[Curve], color: str | None = None) -> None:
    """The mean of the runs of a group and its 95% interval; runs of one point are markers of the same colour."""
    lines = [curve for curve in curves if len(curve[0]) > 1]
    points = [curve for curve in curves if len(curve[0]) == 1]
    named = f"{label} ({len(lines) + len(points)})" if len(lines) + len(points) > 1 else label
    if lines:
        steps, values = on_common_steps(lines)
        (line,) = axes.plot(steps, values.mean(axis=0), label=named, color=color)
        named, color = "_nolegend_", line.get_color()
        if len(lines) > 1:
            axes.fill_between(steps, *mean_bounds(values), color=color, alpha=0.2, linewidth=0)
    if points:
        steps, values = np.array([curve[0][0] for curve in points]), np.array([curve[1][0] for curve in points])
        axes.plot(steps, values, linestyle="none", marker="o", color=color, label=named)


def pyplot() -> Any:
    """Imports matplotlib when it is needed, since that takes a second; no screen is needed."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot as plt

    return plt


def style_axes(axes: Any, legend: bool = True) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and any(axes.get_legend_handles_labels()[1]):
        axes.legend(frameon=False)


def write_figure(figure: Any, path: Path) -> None:
    figure.tight_layout()
    with replacing(path) as file:
        figure.savefig(file, format="png")
    pyplot().close(figure)
