"""What the folder of a run says about it, for a report: whatever is missing or damaged is said in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from disco_torch.analysis import Curve
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.runs.folder import ConfiguredFolder
from disco_torch.runs.sinks import Metrics
from disco_torch.training.folder import RunFolder
from disco_torch.weights.hub import fetch_run, is_hub_name

F = TypeVar("F", RunFolder, DiscoveryFolder)


@dataclass(frozen=True)
class ReportedRun(Generic[F]):
    """One run of a report.

    Attributes:
      folder: its folder, with its configuration.
      lines: its metrics, numbers alone.
      summary: what it wrote at its end; empty for a run that was killed or is going on.
      label: of the runs that it is one seed of.
      task: environment with its arguments; empty for a discovery.
      recordings: animations in its folder.
    """

    folder: F
    lines: list[Metrics]
    summary: Mapping[str, Any]
    label: str = ""
    task: str = ""
    recordings: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def length(self) -> int:
        """How long the run should be: steps, or meta-updates."""
        return getattr(self.folder.config, self.folder.length)

    def reached(self, counter: str | None = None) -> int:
        """How far it is by one of its counters; unless given, the one that its length is counted in."""
        name = counter or self.folder.length
        last = last_number(self.lines, name, self.summary.get(name))
        return int(last) if math.isfinite(last) else 0

    @property
    def seconds(self) -> float:
        return last_number(self.lines, "seconds", self.summary.get("seconds"))

    @property
    def reason(self) -> str:
        """Why the run ended before its last step on purpose; empty where it did not."""
        is_of_now = self.summary.get(self.folder.length) == self.reached()
        return str(self.summary.get("stopped_because", "")) if is_of_now else ""

    @property
    def is_complete(self) -> bool:
        """Whether it came to its end, or stopped on purpose."""
        return self.reached() >= self.length or bool(self.reason)

    @property
    def status(self) -> str:
        if self.reached() >= self.length:
            return "finished"
        unit = self.folder.length.replace("_", "-")
        return f"stopped: {self.reason}" if self.reason else f"unfinished, {self.reached():,} of {self.length:,} {unit}"

    @property
    def last_return(self) -> float:
        """Mean return of the last episodes; NaN where none has ended, or where it is not finite."""
        return next((line["return"] for line in reversed(self.lines) if "return" in line), math.nan)

    @property
    def score(self) -> float:
        """Mean return of a complete run's last episodes; NaN where there is none to compare."""
        return self.last_return if self.is_complete else math.nan

    def curve(self, name: str) -> Curve:
        """A metric over the run, where it is finite."""
        return curve_of(self.lines, name, self.folder.length)

    @property
    def problems(self) -> list[str]:
        """What is to be known about the run before its numbers are read."""
        found: list[str] = (
            [] if self.is_complete else [f"{self.status}; it is drawn with a thin line and left out of the scores"]
        )
        if isinstance(self.folder, RunFolder):
            if not any("return" in line for line in self.lines):
                found.append("no episode has ended before a line of metrics, so that it has no return")
            elif self.is_complete and not math.isfinite(self.score):
                found.append("its last return is not finite, so that it is left out of the scores")
        shown = ("return", "eval_return", "entropy", "total_loss", "meta_loss", "meta_grad_norm")
        bad = [name for name in shown if any(not math.isfinite(line.get(name, 0.0)) for line in self.lines)]
        if bad:
            found.append(f"not finite in some lines of its metrics, which are left out of figures: {', '.join(bad)}")
        warnings: object = self.summary.get("warnings", [])
        return [*found, *map(str, warnings if isinstance(warnings, list) else [])]


TrainingRun = ReportedRun[RunFolder]
DiscoveryRun = ReportedRun[DiscoveryFolder]


def open_folder(path: Path) -> RunFolder | DiscoveryFolder:
    """The folder of a run of either kind; raises where it is none."""
    if is_hub_name(path):
        path = fetch_run(path, "runs")
    file = path / "config.json"
    if not file.is_file():
        within = path.is_dir() and any(path.glob("*/config.json"))
        fix = f"name the runs in it, {path / '*'}" if within else "name folders that `train` or `discover` has written"
        raise ValueError(f"`runs` must be folders of runs, with a config.json in each, got {path}; {fix}.")
    try:
        is_discovery = DiscoveryFolder.length in json.loads(file.read_bytes())
    except (ValueError, TypeError, RecursionError):
        is_discovery = False  # the error below says what is wrong with it
    return DiscoveryFolder.open(path) if is_discovery else RunFolder.open(path)


def read_lines(folder: ConfiguredFolder[Any]) -> list[Metrics]:
    """The metrics of a run, with the entries that are numbers."""
    return [{name: value for name, value in line.items() if is_number(value)} for line in folder.read_metrics()]


def read_summary(folder: ConfiguredFolder[Any]) -> Mapping[str, Any]:
    """What a run wrote at its end; empty where it has not come there, or its file is damaged."""
    try:
        summary = json.loads((folder.path / "summary.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return summary if isinstance(summary, dict) else {}


def curve_of(lines: Sequence[Metrics], name: str, over: str) -> Curve:
    """A metric over a counter: the lines in which both are finite, in ascending order."""
    points = {line[over]: line[name] for line in lines if name in line and over in line}
    finite = sorted((x, y) for x, y in points.items() if math.isfinite(x) and math.isfinite(y))
    return [x for x, _ in finite], [y for _, y in finite]


def last_number(lines: Sequence[Metrics], name: str, summarized: Any = None) -> float:
    """The last value of a metric that grows, or that of the summary where it is greater; NaN where there is none."""
    known = [*[line[name] for line in lines if name in line][-1:], *([summarized] if is_number(summarized) else [])]
    return max((float(value) for value in known if math.isfinite(value)), default=math.nan)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
