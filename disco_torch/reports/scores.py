"""Final scores of groups of runs, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from disco_torch.analysis import Interval, aggregate, probability_of_improvement
from disco_torch.reports.runs import TrainingRun


@dataclass(frozen=True)
class GroupScores:
    """The runs of one environment that differ in the seed alone.

    Attributes:
      task: environment with its arguments.
      label: rule and settings.
      runs: all of them.
      scores: by the name of the run, of those that are complete and have a finite one.
    """

    task: str
    label: str
    runs: Sequence[TrainingRun]
    scores: Mapping[str, float]

    @property
    def iqm(self) -> Interval | None:
        """Interquartile mean of the scores and its 95% bootstrap interval; None without any."""
        return aggregate({self.task: list(self.scores.values())}) if self.scores else None

    @property
    def mean(self) -> float:
        return sum(self.scores.values()) / len(self.scores) if self.scores else math.nan


def group_scores(runs: Sequence[TrainingRun]) -> list[GroupScores]:
    """The groups in the order of their first run, environment by environment."""
    tasks = list(dict.fromkeys(run.task for run in runs))
    keys = dict.fromkeys((run.task, run.label) for run in runs)
    found = []
    for task, label in sorted(keys, key=lambda key: tasks.index(key[0])):
        own = [run for run in runs if (run.task, run.label) == (task, label)]
        scores = {str(run.folder.path): run.score for run in own if math.isfinite(run.score)}
        found.append(GroupScores(task, label, own, scores))
    return found


def improvements(groups: Sequence[GroupScores], tasks: Sequence[str]) -> dict[tuple[str, str], Interval]:
    """How likely a run of one label is better than one of another on a task drawn at random, by both labels.

    Labels that lack a score on one of the tasks are left out.
    """
    scores: dict[str, dict[str, list[float]]] = {}
    for group in groups:
        if group.task in tasks and group.scores:
            scores.setdefault(group.label, {})[group.task] = list(group.scores.values())
    whole = {label: own for label, own in scores.items() if set(own) == set(tasks)}
    pairs = [(ours, theirs) for ours in whole for theirs in whole if ours != theirs]
    return {pair: probability_of_improvement(whole[pair[0]], whole[pair[1]]) for pair in pairs}
