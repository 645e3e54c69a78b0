"""Tables of a comparison: scores by task, and aggregates over tasks with their intervals.

Scores are normalised per task: 0 is a uniform policy, 1 the best peer. The peer of a task is the first of the named rules
that has runs on it, with the best of its settings. A task on which the peer does not rise above the uniform policy says
nothing about rules; it is listed apart, which the peers alone decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from disco_torch.analysis.aggregates import AGGREGATES, aggregate, normalize_scores, probability_of_improvement
from disco_torch.analysis.records import RANDOM, RunRecord
from disco_torch.analysis.statistics import Interval, mean_interval

Measure = Literal["score", "area"]
MEASURES: dict[Measure, str] = {"score": "Final score", "area": "Area under the training curve"}
"""What runs are compared by, and its title."""
HEADINGS = {"iqm": "IQM", "mean": "mean", "median": "median", "optimality_gap": "optimality gap"}


@dataclass(frozen=True)
class References:
    """What scores are normalised by.

    Attributes:
      low: score of the uniform policy by task.
      high: mean score of the peer by task.
      peers: label of the peer by task.
      apart: tasks that cannot be normalised, and why.
    """

    low: dict[str, float]
    high: dict[str, float]
    peers: dict[str, str]
    apart: dict[str, str]


def by_task(records: Sequence[RunRecord], label: str, measure: Measure) -> dict[str, np.ndarray]:
    """Scores of the runs with a label, [seeds] for each task, in the order of the seeds."""
    own: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.label == label:
            own.setdefault(record.task, []).append(record)
    ordered = {task: sorted(runs, key=lambda record: record.seed) for task, runs in own.items()}
    return {task: np.array([getattr(record, measure) for record in runs]) for task, runs in ordered.items()}


def labels_of(records: Sequence[RunRecord]) -> list[str]:
    """The labels of all runs but the uniform policy's, in the order of their first run."""
    return list(dict.fromkeys(record.label for record in records if record.rule != RANDOM))


def tasks_of(records: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(record.task for record in records))


def find_references(records: Sequence[RunRecord], peers: Sequence[str], measure: Measure) -> References:
    """The uniform policy's and the peer's mean for each task.

    The peer rises above the uniform policy where the 95% interval of its mean over seeds lies above that of the uniform one.

    Args:
      records: finished runs.
      peers: names of rules; of those with runs on a task the first is its peer.
      measure: score or area.
    """
    found = References({}, {}, {}, {})
    uniform = by_task(records, RANDOM, measure)
    for task in tasks_of(records):
        rule = next((name for name in peers if any((x.rule, x.task) == (name, task) for x in records)), None)
        if task not in uniform or rule is None:
            missing = "the uniform policy" if task not in uniform else f"a peer, {' or '.join(peers) or 'none was named'}"
            found.apart[task] = f"no runs of {missing}"
            continue
        labels = labels_of([record for record in records if record.rule == rule])
        scores = {label: by_task(records, label, measure).get(task) for label in labels}
        intervals = {label: mean_interval(own) for label, own in scores.items() if own is not None}
        best = max(intervals, key=lambda label: intervals[label].mean)
        if not intervals[best].low > mean_interval(uniform[task]).high:
            found.apart[task] = f"{best} does not rise above the uniform policy"
            continue
        found.low[task], found.high[task] = float(uniform[task].mean()), intervals[best].mean
        found.peers[task] = best
    return found


@dataclass(frozen=True)
class Aggregates:
    """Aggregates over tasks.

    Attributes:
      tasks: the tasks, those on which every label has runs.
      left_out: tasks on which some labels have none, and these.
      values: by label and name of the aggregate: those of `AGGREGATES`, and `improvement`, the probability that a run is
        better than one of the peer on a task drawn at random.
    """

    tasks: list[str]
    left_out: dict[str, list[str]]
    values: dict[str, dict[str, Interval]]


def find_aggregates(
    records: Sequence[RunRecord],
    references: References,
    measure: Measure,
    labels: Sequence[str] = (),
    resamples: int = 2000,
) -> Aggregates:
    """Aggregates of normalised scores, over the tasks that all labels have; the peers of the tasks together are `peer`.

    Args:
      records: finished runs.
      references: what to normalise by.
      measure: score or area.
      labels: whose; those that are not a peer alone unless given.
      resamples: number of bootstrap samples.
    """
    labels = list(labels) or _more_than_peers(records, references)
    named = {label: by_task(records, label, measure) for label in labels}
    peer = {task: by_task(records, label, measure)[task] for task, label in references.peers.items()}
    missing = {task: [label for label in labels if task not in named[label]] for task in references.low}
    tasks = [task for task in references.low if not missing[task]]
    found = Aggregates(tasks, {task: without for task, without in missing.items() if without}, {})
    if not tasks:
        return found

    def normalized(scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return normalize_scores({task: scores[task] for task in tasks}, references.low, references.high)

    base = normalized(peer)
    rows = {**named, "peer": peer}
    if len(names := {references.peers[task] for task in tasks}) == 1 and names <= set(labels):
        del rows["peer"]  # it has a row already
    for label, scores in rows.items():
        own = normalized(scores)
        values = {name: aggregate(own, statistic, resamples=resamples) for name, statistic in AGGREGATES.items()}
        found.values[label] = {**values, "improvement": probability_of_improvement(own, base, resamples=resamples)}
    return found


def _more_than_peers(records: Sequence[RunRecord], references: References) -> list[str]:
    """The labels with runs on a normalised task whose peer they are not."""
    others = {x.label for x in records if references.peers.get(x.task, x.label) != x.label}
    return [label for label in labels_of(records) if label in others]


def task_table(records: Sequence[RunRecord], measure: Measure) -> str:
    """A Markdown table: for each task and label the mean over seeds, its 95% interval and the number of seeds."""
    labels = [*([RANDOM] if any(record.rule == RANDOM for record in records) else []), *labels_of(records)]
    scores = {label: by_task(records, label, measure) for label in labels}
    rows = []
    for task in tasks_of(records):
        steps = max(record.steps for record in records if record.task == task)
        cells = [_cell(scores[label][task]) if task in scores[label] else "-" for label in labels]
        rows.append([f"{task}, {_thousands(steps)}", *cells])
    return markdown([f"{MEASURES[measure]}: task, steps", *labels], rows)


def aggregate_table(aggregates: Aggregates, measure: Measure) -> str:
    """A Markdown table: for each label the aggregates of the normalised scores, with their 95% intervals."""
    tasks = "1 task" if len(aggregates.tasks) == 1 else f"{len(aggregates.tasks)} tasks"
    head = [f"{MEASURES[measure]}, normalised, {tasks}", *HEADINGS.values(), "P(better than the peer)"]
    rows = []
    for label, values in aggregates.values.items():
        rows.append([label, *[_interval(values[name]) for name in [*HEADINGS, "improvement"]]])
    return markdown(head, rows)


def time_table(records: Sequence[RunRecord]) -> str:
    """A Markdown table: seconds of training per 100,000 steps, the median over seeds."""
    labels = labels_of(records)
    rows = []
    for task in tasks_of(records):
        cells = []
        for label in labels:
            own = [1e5 * x.seconds / x.steps for x in records if (x.task, x.label) == (task, label) and x.steps]
            cells.append(f"{np.median(own):.1f}" if own else "-")
        rows.append([task, *cells])
    return markdown(["Seconds per 100k steps", *labels], rows)


def report(records: Sequence[RunRecord], peers: Sequence[str], labels: Sequence[str] = ()) -> str:
    """All tables of a comparison, and what they leave out; aggregates are of `labels`, see `find_aggregates`."""
    parts = []
    for measure in MEASURES:
        references = find_references(records, peers, measure)
        aggregates = find_aggregates(records, references, measure, labels)
        parts.append(task_table(records, measure))
        if aggregates.values:
            parts.append(aggregate_table(aggregates, measure))
        notes = [f"Not normalised: {task}, {why}." for task, why in references.apart.items()]
        notes += [f"Not in the aggregates: {task}, no run of {', '.join(x)}." for task, x in aggregates.left_out.items()]
        parts += ["\n".join(notes)] if notes else []
    return "\n\n".join([*parts, time_table(records)])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _cell(values: np.ndarray) -> str:
    return f"{_interval(mean_interval(values))} ({values.size})" if values.size > 1 else f"{values[0]:.4g} (1)"


def _interval(interval: Interval) -> str:
    return f"{interval.mean:.3g} [{interval.low:.3g}, {interval.high:.3g}]"


def _thousands(steps: int) -> str:
    return f"{steps // 1000}k" if steps and steps % 1000 == 0 else str(steps)
