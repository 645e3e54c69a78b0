"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from disco_torch.analysis.statistics import mean_interval
from disco_torch.files import replacing

Curve = tuple[Sequence[float], Sequence[float]]
"""Environment steps and the mean return at each."""


def on_common_steps(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Curves interpolated at the same steps, over the range that all of them have: [points], [runs, points]."""
    start = max(steps[0] for steps, _ in curves)
    end = min(steps[-1] for steps, _ in curves)
    grid = np.linspace(start, end, points)
    return grid, np.stack([np.interp(grid, steps, values) for steps, values in curves])


def plot_curves(
    groups: Mapping[str, Sequence[Curve]], path: Path, *, title: str = "", ylabel: str = "episode return"
) -> None:
    """Draws the mean of each group of runs with its 95% interval, and writes a PNG.

    Args:
      groups: label -> curves, one a seed.
      path: of the picture.
    """
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for label, curves in groups.items():
        usable = [curve for curve in curves if len(curve[0]) > 1]
        if not usable:
            continue
        steps, values = on_common_steps(usable)
        (line,) = axes.plot(steps, values.mean(axis=0), label=f"{label} ({len(usable)})" if len(usable) > 1 else label)
        if len(usable) > 1:
            intervals = np.array([mean_interval(values[:, i])[1:] for i in range(values.shape[1])])
            axes.fill_between(steps, intervals[:, 0], intervals[:, 1], color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="environment steps", ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if any(axes.get_legend_handles_labels()[1]):
        axes.legend(frameon=False)
    figure.tight_layout()
    with replacing(path) as file:
        figure.savefig(file, format="png")
    plt.close(figure)
