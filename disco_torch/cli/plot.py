"""`disco-torch plot`: learning curves of runs in one figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.analysis import Curve, plot_curve_panels
from disco_torch.reports.groups import training_labels
from disco_torch.training.folder import RunFolder


@dataclass(frozen=True)
class Plot:
    """Plot learning curves, with a panel for each environment.

    Runs that differ in the seed alone are one curve, their mean with its 95% interval.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of the runs to compare."""
    out: Path = Path("curves.png")
    """Image file to write."""

    def run(self) -> int:
        folders = [RunFolder.open(path) for path in self.runs]
        if not folders:
            raise ValueError("`runs` must name at least one run, got none.")
        curves = {folder.path: curve_of(folder) for folder in folders}
        empty = [folder for folder in folders if not curves[folder.path][0]]
        drawn = [folder for folder in folders if folder not in empty]
        panels: dict[str, dict[str, list[Curve]]] = {}
        for folder, (panel, label) in zip(drawn, training_labels(drawn), strict=True):
            panels.setdefault(panel, {}).setdefault(label, []).append(curves[folder.path])
        console = Console()
        for folder in empty:
            say = f"{folder.path} is left out: no episode has ended in it before a line of metrics"
            console.print(say, highlight=False, soft_wrap=True, markup=False)
        if not drawn:
            raise ValueError("`runs` must name at least one run with a return in its metrics, got none.")
        plot_curve_panels(panels, self.out)
        number = "1 run" if len(drawn) == 1 else f"{len(drawn)} runs"
        console.print(f"{number} in {self.out}", highlight=False, soft_wrap=True, markup=False)
        return 0


def curve_of(folder: RunFolder) -> Curve:
    lines = [line for line in folder.read_metrics() if "return" in line]
    return [line["steps"] for line in lines], [line["return"] for line in lines]
