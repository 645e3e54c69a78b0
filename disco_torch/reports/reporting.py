"""`make_report`: from the folders of runs to one page about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.files import replacing
from disco_torch.pages import check_page_path
from disco_torch.reports.groups import discovery_labels, short_labels, training_labels
from disco_torch.reports.page import render_report
from disco_torch.reports.runs import DiscoveryRun, ReportedRun, TrainingRun, open_folder, read_lines, read_summary
from disco_torch.reports.scores import GroupScores, group_scores
from disco_torch.training.folder import RunFolder

MAX_RECORDINGS = 3
"""Number of recordings of a run that are shown, the newest ones."""


@dataclass(frozen=True)
class Report:
    """What a page was made of.

    Attributes:
      path: the page.
      training: the training runs.
      discoveries: the discoveries.
    """

    path: Path
    training: list[TrainingRun]
    discoveries: list[DiscoveryRun]

    @property
    def scores(self) -> list[GroupScores]:
        """Final scores of the training runs, by environment, rule and settings."""
        return group_scores(self.training)


def make_report(runs: Sequence[Path | str], out: Path | str = "report.html") -> Report:
    """Writes one self-contained HTML page about runs: training runs, discoveries, or both.

    Args:
      runs: folders of the runs; those that differ in the seed alone are one group.
      out: file to write, .html. It appears complete or not at all.
    """
    page = check_page_path(Path(out))
    training, discoveries = read_runs(runs)
    text = render_report(training, discoveries)
    with replacing(page) as file:
        file.write(text.encode())
    return Report(page, training, discoveries)


def read_runs(runs: Sequence[Path | str]) -> tuple[list[TrainingRun], list[DiscoveryRun]]:
    """Training runs and discoveries from their folders, each with the label of its group."""
    if isinstance(runs, str | Path) or not len(runs):
        raise ValueError(f"`runs` must be a list of at least one folder of a run, got {runs!r}.")
    paths = [Path(run) for run in runs]
    places = [path.resolve() for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ValueError(f"`runs` must differ, got {paths[i]} twice, which would count as two seeds; name it once.")
    folders = [open_folder(path) for path in paths]
    trained = [folder for folder in folders if isinstance(folder, RunFolder)]
    discovered = [folder for folder in folders if isinstance(folder, DiscoveryFolder)]
    named = training_labels(trained)
    labels = short_labels([label for _, label in named], [folder.path.name for folder in trained])
    training = [
        ReportedRun(folder, read_lines(folder), read_summary(folder), label, task, find_recordings(folder.path))
        for folder, label, (task, _) in zip(trained, labels, named, strict=True)
    ]
    starts = short_labels(discovery_labels(discovered), [folder.path.name for folder in discovered])
    discoveries = [
        ReportedRun(folder, read_lines(folder), read_summary(folder), label)
        for folder, label in zip(discovered, starts, strict=True)
    ]
    return training, discoveries


def find_recordings(folder: Path) -> list[Path]:
    """The newest animations in a run's folder, by name."""
    found = sorted((path for path in folder.rglob("*.gif") if path.is_file()), key=lambda path: path.stat().st_mtime)
    return sorted(found[-MAX_RECORDINGS:])
