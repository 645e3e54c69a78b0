"""Learning curves as pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from disco_torch.analysis import Panel, plot_curve_panels, plot_curves, plot_panels
from disco_torch.analysis.plots import Curve, on_common_steps


def line(end: int, slope: float, start: int = 0, points: int = 5) -> Curve:
    steps = np.linspace(start, end, points)
    return steps.tolist(), (slope * steps).tolist()


def test_curves_meet_at_the_steps_that_all_of_them_have() -> None:
    steps, values = on_common_steps([line(100, 1.0, points=11), line(60, 2.0, start=10, points=4)], points=26)
    assert steps[0] == 10 and steps[-1] == 60 and steps.shape == (26,) and values.shape == (2, 26)
    np.testing.assert_allclose(values, [steps, 2.0 * steps])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, kept for a look."""
    drawn: list[Figure] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    return drawn


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 3000


def test_groups_of_several_seeds_and_lengths(tmp_path: Path, figures: list[Figure]) -> None:
    path = tmp_path / "deep" / "curves.png"
    groups = {"first": [line(100, 1.0), line(80, 2.0, points=9), line(120, 3.0)], "second": [line(50, 1.0)], "none": []}
    plot_curves(groups, path, title="a title", ylabel="caught")
    assert is_picture(path) and [file.name for file in path.parent.iterdir()] == ["curves.png"]
    (axes,) = figures[0].axes
    assert axes.get_legend_handles_labels()[1] == ["first (3)", "second"]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("a title", "environment steps", "caught")
    first, second = axes.get_lines()
    assert first.get_xdata()[-1] == 80 and second.get_xdata()[-1] == 50
    np.testing.assert_allclose(first.get_ydata(), 2.0 * np.asarray(first.get_xdata()))  # the mean of the three
    (band,) = axes.collections  # of the group alone that has more than one run
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() == 0 and 160 < heights.max() <= 240  # around 160, within the slopes of 1 and 3


def test_nothing_to_draw_is_an_empty_picture(tmp_path: Path, figures: list[Figure]) -> None:
    plot_curves({"empty": [([], [])]}, tmp_path / "curves.png")
    assert is_picture(tmp_path / "curves.png") and figures[0].axes[0].get_lines() == []


def test_a_run_of_one_point_is_a_marker(tmp_path: Path, figures: list[Figure]) -> None:
    groups = {"short": [([1.0], [2.0])], "mixed": [line(10, 1.0), ([4.0], [3.0])]}
    plot_curves(groups, tmp_path / "curves.png")
    (axes,) = figures[0].axes
    short, mixed, point = axes.get_lines()
    assert (short.get_marker(), short.get_linestyle()) == ("o", "None")
    assert (short.get_xdata().tolist(), short.get_ydata().tolist()) == ([1.0], [2.0])
    assert point.get_xdata().tolist() == [4.0] and point.get_color() == mixed.get_color() != short.get_color()
    assert axes.get_legend_handles_labels()[1] == ["short", "mixed (2)"]


def test_a_panel_for_each_title(tmp_path: Path, figures: list[Figure]) -> None:
    panels = {name: {"rule": [line(10, slope)]} for slope, name in enumerate(["a", "b", "c", "d"], start=1)}
    plot_curve_panels(panels, tmp_path / "curves.png")
    assert [axes.get_title() for axes in figures[0].axes] == ["a", "b", "c", "d"]
    assert [axes.get_lines()[0].get_ydata()[-1] for axes in figures[0].axes] == [10, 20, 30, 40]


def test_no_figure_stays_open(tmp_path: Path) -> None:
    before = plt.get_fignums()
    plot_curves({"one": [line(10, 1.0)]}, tmp_path / "curves.png")
    assert plt.get_fignums() == before


def test_panels_side_by_side(tmp_path: Path, figures: list[Figure]) -> None:
    panels = [Panel("returns", {"catch": line(10, 1.0), "chain": line(8, 2.0)}), Panel("norms", {"g": line(10, 3.0)}, True)]
    plot_panels([*panels, Panel("losses", {}, True)], tmp_path / "curve.png", xlabel="meta-updates", title="a run")
    assert is_picture(tmp_path / "curve.png")
    first, second, third = figures[0].axes
    assert [axes.get_title() for axes in figures[0].axes] == ["returns", "norms", "losses"]
    assert first.get_legend_handles_labels()[1] == ["catch", "chain"] and first.get_xlabel() == "meta-updates"
    np.testing.assert_allclose(first.get_lines()[1].get_ydata(), line(8, 2.0)[1])
    assert [axes.get_yscale() for axes in figures[0].axes] == ["linear", "log", "linear"] and third.get_lines() == []
    assert second.get_lines()[0].get_xdata()[-1] == 10
