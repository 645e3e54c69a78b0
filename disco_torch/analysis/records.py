"""Finished runs of a comparison: one line of JSON each, in a file that grows."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CURVE_POINTS = 50
"""Number of points of a stored learning curve."""
RANDOM = "random"
"""Name of the policy that draws actions uniformly, in place of a rule's."""


@dataclass(frozen=True)
class RunRecord:
    """What one run of a comparison came to.

    Attributes:
      task: name of the task.
      rule: name of the rule, or of another library's algorithm.
      seed: random seed of the run.
      steps: environment steps of training.
      score: mean return of the evaluation episodes after training.
      area: area under the training curve, the mean return over all steps of training.
      settings: settings of the rule that differ from the defaults, by dotted name.
      task_settings: settings of the task, by dotted name.
      curve: environment steps, and the mean return of the episodes that ended since the point before.
      greedy_score: as `score`, with the most probable actions; None where it was not measured.
      seconds: wall-clock time of training.
      version: of the library that trained.
    """

    task: str
    rule: str
    seed: int
    steps: int
    score: float
    area: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    curve: tuple[Sequence[float], Sequence[float]] = ((), ())
    greedy_score: float | None = None
    seconds: float = 0.0
    version: str = ""

    def __post_init__(self) -> None:
        for name, kind in {"task": str, "rule": str, "seed": int, "steps": int, "settings": Mapping}.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"`{name}` of a run must be {kind.__name__}, got {getattr(self, name)!r}.")
        for name in ("score", "area"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"`{name}` of a run must be a finite number, got {value!r}.")

    @property
    def label(self) -> str:
        """The rule and its settings in short; runs with the same label differ in task and seed alone."""
        changes = ", ".join(f"{name} {value}" for name, value in sorted(self.settings.items()))
        return f"{self.rule} ({changes})" if changes else self.rule

    @property
    def key(self) -> str:
        """What makes it the same run as another: task, rule, settings, seed and steps."""
        own = [self.task, self.rule, dict(self.settings), dict(self.task_settings), self.seed, self.steps]
        return json.dumps(own, sort_keys=True)


def read_records(path: Path) -> list[RunRecord]:
    """The runs of a file, of two lines for the same run the later; none where there is no file.

    A last line that a process was killed at is left out; any other line that cannot be read is an error.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records: dict[str, RunRecord] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = _parse(line)
        except ValueError as error:
            if number == len(lines):  # no newline follows it
                break
            raise ValueError(
                f"line {number} of {path} must be a run of a comparison, as JSON: {error}; remove the line, or name "
                "another file."
            ) from error
        records[record.key] = record
    return list(records.values())


def append_record(path: Path, record: RunRecord) -> None:
    """Adds a run to a file, in one write that is on the disk when this returns. What is left of a broken last line goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(dataclasses.asdict(record), allow_nan=False).encode() + b"\n"
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        content = file.read()
        if not content.endswith(b"\n") and content:
            last = content.rpartition(b"\n")[2]
            try:
                _parse(last)
                line = b"\n" + line
            except ValueError:
                file.truncate(size - len(last))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _parse(line: bytes) -> RunRecord:
    plain = json.loads(line)
    if not isinstance(plain, dict):
        raise ValueError(f"expected an object, got {type(plain).__name__}")
    names = {field.name for field in dataclasses.fields(RunRecord)}
    if unknown := sorted(set(plain) - names):
        raise ValueError(f"unknown {', '.join(unknown)}")
    try:
        return RunRecord(**plain)
    except TypeError as error:  # a field is missing
        raise ValueError(str(error).partition(" ")[2]) from error


def binned_curve(
    steps: Sequence[float], returns: Sequence[float], total: int, points: int = CURVE_POINTS
) -> tuple[list[int], list[float]]:
    """A learning curve of equal intervals: the mean of the returns within each, and the step that it ends at.

    Args:
      steps: [N], environment steps at the end of each episode, or of each group of episodes, ascending.
      returns: [N], its return, or the mean of the group.
      total: environment steps of the run.
      points: number of intervals; those in which nothing ended are left out.
    """
    edges = np.linspace(0, total, points + 1)[1:]
    bins = np.minimum(np.searchsorted(edges, np.asarray(steps, dtype=np.float64)), points - 1)
    values = np.asarray(returns, dtype=np.float64)
    filled = sorted(set(bins.tolist()))
    return [round(float(edges[i])) for i in filled], [float(f"{values[bins == i].mean():.6g}") for i in filled]


def area_under_curve(steps: Sequence[float], returns: Sequence[float], total: int) -> float:
    """The mean return over all steps of training, from a learning curve.

        area = 1/total * sum_i returns_i * (steps_i - steps_{i-1}),    steps_0 = 0

    The last return is held to the end of the run: what ended there had begun before.

    Args:
      steps: [N], ascending; where each interval ends.
      returns: [N], mean return of the episodes that ended within it.
      total: environment steps of the run.
    """
    if not len(steps):
        raise ValueError(
            f"`returns` must hold at least one, got none: no episode ended within {total} steps; take more steps."
        )
    ends = np.minimum(np.asarray(steps, dtype=np.float64), total)
    ends[-1] = total
    return float(np.diff(ends, prepend=0.0) @ np.asarray(returns, dtype=np.float64) / total)
