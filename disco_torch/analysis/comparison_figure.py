"""The figure of a comparison: aggregates with their intervals, and the learning curves of each task."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disco_torch.analysis.comparison import (
    HEADINGS,
    MEASURES,
    Measure,
    find_aggregates,
    find_references,
    labels_of,
    tasks_of,
)
from disco_torch.analysis.plots import draw_group, pyplot, style_axes, write_figure
from disco_torch.analysis.records import RANDOM, RunRecord
from disco_torch.analysis.statistics import Interval

COLUMNS = 4


def plot_comparison(records: Sequence[RunRecord], peers: Sequence[str], path: Path, labels: Sequence[str] = ()) -> None:
    """Draws the aggregates by each measure, where scores can be normalised, the curves of each task, and one legend.

    Bands and bars are 95% intervals over seeds; the grey line of a task is the uniform policy.

    Args:
      records: finished runs.
      peers: names of the rules that scores are normalised by, see `find_references`.
      path: PNG file to write.
      labels: those to aggregate, see `find_aggregates`.
    """
    values: dict[Measure, dict[str, dict[str, Interval]]] = {}
    for measure in MEASURES:
        found = find_aggregates(records, find_references(records, peers, measure), measure, labels)
        values |= {measure: found.values} if found.values else {}
    tasks = tasks_of(records)
    count = len(values) + len(tasks) + 1
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure, grid = pyplot().subplots(rows, columns, figsize=(4.6 * columns, 3.6 * rows), dpi=120, squeeze=False)
    every = list(grid.flat)
    for axes in every[count:]:
        axes.remove()
    cycle = pyplot().rcParams["axes.prop_cycle"].by_key()["color"]
    colors = {label: cycle[i % len(cycle)] for i, label in enumerate(labels_of(records))}
    for axes, (measure, own) in zip(every, values.items(), strict=False):
        _draw_aggregates(axes, own, colors, measure)
    _draw_legend(every[count - 1], colors, "peer" in {label for own in values.values() for label in own})
    for axes, task in zip(every[len(values) :], tasks, strict=False):
        _draw_task(axes, [record for record in records if record.task == task], colors)
        axes.set(xlabel="environment steps", ylabel="episode return", title=task)
        style_axes(axes, legend=False)
    write_figure(figure, path)


def _draw_aggregates(axes: Any, values: dict[str, dict[str, Interval]], colors: dict[str, str], measure: Measure) -> None:
    """A point with a bar for each label and aggregate, one row of labels below each name."""
    names = list(HEADINGS)
    step = 0.8 / len(values)
    for i, (label, own) in enumerate(values.items()):
        for j, name in enumerate(names):
            mean, low, high = own[name]
            place, color = j + (i - (len(values) - 1) / 2) * step, colors.get(label, "black")
            axes.errorbar(mean, place, xerr=[[mean - low], [high - mean]], fmt="o", color=color, capsize=2)
    axes.set_yticks(range(len(names)), list(HEADINGS.values()))
    axes.invert_yaxis()
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="normalised (uniform policy 0, peer 1)", title=MEASURES[measure])
    style_axes(axes, legend=False)


def _draw_legend(axes: Any, colors: dict[str, str], with_peer: bool) -> None:
    """The colours of all labels, in a panel of their own."""
    shown = {**colors, **({"peer": "black"} if with_peer else {}), "uniform policy": "grey"}
    for label, color in shown.items():
        axes.plot([], [], color=color, label="\n".join(textwrap.wrap(label, 42)))
    axes.axis("off")
    axes.legend(frameon=False, loc="center", fontsize="small").set_in_layout(False)


def _draw_task(axes: Any, records: Sequence[RunRecord], colors: dict[str, str]) -> None:
    uniform = [record.score for record in records if record.rule == RANDOM]
    for label in labels_of(records):
        curves = [record.curve for record in records if record.label == label and len(record.curve[0])]
        if curves:
            draw_group(axes, label, curves, colors[label])
    if uniform:
        axes.axhline(sum(uniform) / len(uniform), color="grey", linewidth=0.8)
