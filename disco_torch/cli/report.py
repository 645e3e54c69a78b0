"""`disco-torch report`: one page about runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.cli.seeds import say
from disco_torch.reports import make_report
from disco_torch.reports.page import title_of


@dataclass(frozen=True)
class Report:
    """Write one HTML page about training runs and discoveries: curves, scores with intervals, settings, recordings.

    Runs that differ in the seed alone are one group. The page needs no network and no other file.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of the runs, of either kind; `hf:ORG/NAME` is one on the Hugging Face Hub."""
    out: Path = Path("report.html")
    """Page to write, an .html file."""

    def run(self) -> int:
        found = make_report(self.runs, self.out)
        say(Console(), f"{title_of(found.training, found.discoveries)} in {self.out}")
        return 0
