"""Panels that are drawn once and used twice: as SVG inside of a page, in its light and dark colours, and in a PNG."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from disco_torch.analysis.plots import pyplot

INK = "#010203"
"""Colour of texts and axes, which a page replaces by its own."""
LINES = ("#4a86d8", "#e08a2e", "#3fa37c", "#a66bc4", "#d0597e", "#8a8f3c", "#3aa5b8", "#a5714d")
"""Colours of lines, which can be told apart on light and dark."""
WIDTH = 4.4
"""Width of a panel in inches; a page shows it in its natural size on a phone."""
SIDES = (0.16, 0.975)
"""Where the axes of a panel with `fixed_sides` begin and end, in shares of its width."""
COLUMNS = 2
SVG_DPI = 72
"""Dots per inch of Matplotlib's SVG files."""
PNG_COLORS = 64
"""Number of colours of a PNG, which makes it a third as large."""
STYLE: dict[str, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "axes.formatter.useoffset": False,  # an offset would stand where the title is
    "svg.fonttype": "none",
    "svg.hashsalt": "disco-torch",  # the same figure is the same text
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "grid.color"), INK),
}


@dataclass(frozen=True)
class Panel:
    """One plot, or several below each other with one horizontal axis.

    Attributes:
      title: above it.
      draw: draws on the axes, one for each of `rows`.
      height: in inches.
      rows: number of axes.
      fixed_sides: whether its axes begin and end at `SIDES`, so that several panels and a cursor are in line.
    """

    title: str
    draw: Callable[[list[Any]], None]
    height: float = 2.7
    rows: int = 1
    fixed_sides: bool = False


@dataclass(frozen=True)
class Figure:
    """Panels with a name, which is that of their section on a page and of their PNG file."""

    name: str
    panels: Sequence[Panel]


def panel_svg(panel: Panel) -> str:
    """The panel as an SVG element for a page: nothing in it refers to anything outside, and its ink is the page's."""
    with _drawn([panel], columns=1, dpi=SVG_DPI) as figure:
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href").replace(INK, "currentColor")
    tag, rest = svg.split(">", 1)
    tag = re.sub(r' (width|height)="[^"]*"', "", tag)
    return f'{tag} role="img" aria-label="{html.escape(panel.title)}">{rest}'.strip()


def figure_png(figure: Figure, dpi: int = 90) -> bytes:
    """All panels of a figure side by side in two columns, as a PNG."""
    from PIL import Image

    with _drawn(figure.panels, min(COLUMNS, len(figure.panels)), dpi) as drawn:
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    smaller = io.BytesIO()
    Image.open(buffer).convert("RGB").quantize(PNG_COLORS).save(smaller, format="PNG", optimize=True)
    return smaller.getvalue()


@contextmanager
def _drawn(panels: Sequence[Panel], columns: int, dpi: int) -> Iterator[Any]:
    """A figure of Matplotlib with the panels in it, in rows of `columns`, with letters as wide as it is saved with."""
    plt = pyplot()
    lines = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    heights = [max(panel.height for panel in line) for line in lines]
    with plt.rc_context(STYLE):
        whole = plt.figure(figsize=(WIDTH * columns, sum(heights)), dpi=dpi)
        try:
            grid = whole.add_gridspec(len(lines), columns, height_ratios=heights, left=0, right=1, bottom=0, top=1)
            for i, line in enumerate(lines):
                for j, panel in enumerate(line):
                    _draw_panel(whole.add_subfigure(grid[i, j]), panel, heights[i])
            yield whole
        finally:
            plt.close(whole)


def _draw_panel(part: Any, panel: Panel, height: float) -> None:
    axes = part.subplots(panel.rows, 1, sharex=True, squeeze=False)[:, 0]
    panel.draw(list(axes))
    axes[0].set_title(panel.title, loc="left")
    # In inches, so that a panel looks the same in a page and, beside a higher one, in a PNG.
    foot = 0.45 if axes[-1].get_xlabel() else 0.25
    bottom, top = height - panel.height + foot, height - 0.28
    left, right = SIDES
    part.subplots_adjust(left=left, right=right, bottom=bottom / height, top=top / height, hspace=0.28)
    if not panel.fixed_sides:
        part.subplots_adjust(left=_label_width(axes, part.get_dpi()), right=0.97)


def _label_width(axes: Sequence[Any], dpi: float) -> float:
    """Share of a panel's width for what stands on the left of its axes, as wide as it is drawn, up to a half."""
    boxes = [(each.get_window_extent(), each.yaxis.get_tightbbox()) for each in axes]
    widest = max((inside.x0 - labels.x0 for inside, labels in boxes if labels is not None), default=0.0)
    return min(0.52, max(0.125, 0.02 + widest / dpi / WIDTH))


def widen_range(axes: Any, least: float) -> None:
    """Gives the vertical axis at least this range: what changes less is drawn as next to constant."""
    low, high = axes.get_ylim()
    room = max(0.0, least - (high - low)) / 2
    axes.set_ylim(low - room, high + room)


def add_legend(axes: Any, columns: int = 4) -> None:
    """A legend at the top, with room made above all that is drawn."""
    rows = -(-len(axes.get_legend_handles_labels()[1]) // columns)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + (0.1 + 0.11 * rows) * (high - low))
    axes.legend(loc="upper right", ncols=columns, fontsize=7.5, columnspacing=1.0, handlelength=1.2)
