"""The tables of a report, as HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disco_torch.analysis import Interval
from disco_torch.pages import NOTHING, html_table
from disco_torch.reports.runs import DiscoveryRun, ReportedRun, TrainingRun
from disco_torch.reports.scores import GroupScores, improvements
from disco_torch.reports.snapshots import Snapshot
from disco_torch.weights.configuration import flat_config

HIDDEN = ("name", "runs", "objects")
"""Settings that no table shows: where a run is stored, and the spaces of its environment."""
SYSTEM = {
    "device": "processor or GPU",
    "platform": "platform",
    "threads": "threads",
    "python": "Python",
    "torch": "PyTorch",
    "disco_torch": "disco-torch",
    "commit": "commit",
}


def number(x: float) -> str:
    return f"{x:.4g}" if math.isfinite(x) else NOTHING


def count(x: int) -> str:
    return f"{x:,}"


def with_interval(interval: Interval | None, is_sure: bool = False) -> str:
    """A number and its interval; `is_sure` leaves the interval out, where a single run has none."""
    if interval is None:
        return NOTHING
    return number(interval.mean) if is_sure else f"{number(interval.mean)} [{number(interval.low)}, {number(interval.high)}]"


def scores_table(groups: Sequence[GroupScores]) -> str:
    head = ["environment", "rule and settings", "runs", "IQM [95% interval]", "mean", "lowest", "highest"]
    rows = []
    for group in groups:
        values = list(group.scores.values())
        runs = str(len(values)) if len(values) == len(group.runs) else f"{len(values)} of {len(group.runs)}"
        ends = [number(min(values)), number(max(values))] if values else [NOTHING, NOTHING]
        rows.append([group.task, group.label, runs, with_interval(group.iqm, len(values) == 1), number(group.mean), *ends])
    return html_table(head, rows)


def improvement_tables(groups: Sequence[GroupScores]) -> list[tuple[str, str]]:
    """A title and a table for each environment with several groups, and one for those that share several environments."""
    tasks = list(dict.fromkeys(group.task for group in groups))
    found = [(task, _improvement_table(groups, [task])) for task in tasks]
    if len(tasks) > 1:
        found.append(("an environment drawn at random", _improvement_table(groups, tasks)))
    return [(title, table) for title, table in found if table]


def _improvement_table(groups: Sequence[GroupScores], tasks: Sequence[str]) -> str:
    found = improvements(groups, tasks)
    labels = list(dict.fromkeys(ours for ours, _ in found))
    single = {x.label for x in groups if x.task in tasks and len(x.scores) == 1}
    rows = []
    for ours in labels:
        cells = [with_interval(found.get((ours, other)), {ours, other} <= single) for other in labels]
        rows.append([ours, *cells])
    return html_table(["a run of ... is better than one of", *labels], rows, texts=1) if rows else ""


def settings_table(runs: Sequence[ReportedRun[Any]]) -> str:
    """The settings in which groups differ, and the seeds: a column for each group. Empty for one run."""
    columns = {key: [run for run in runs if (run.task, run.label) == key] for key in _keys(runs)}
    leaves = {key: [_leaves(run) for run in own] for key, own in columns.items()}
    names = dict.fromkeys(name for own in leaves.values() for each in own for name in each)
    rows = []
    for name in names:
        cells = [list(dict.fromkeys(_shown(each.get(name, NOTHING)) for each in own)) for own in leaves.values()]
        if len({tuple(cell) for cell in cells}) > 1 or any(len(cell) > 1 for cell in cells):
            rows.append([name, *(", ".join(cell) for cell in cells)])
    tasks = {task for task, _ in columns}
    head = [label if len(tasks) < 2 or not task else f"{task}: {label}" for task, label in columns]
    return html_table(["setting", *head], rows, texts=len(head) + 1) if rows else ""


def all_settings(runs: Sequence[ReportedRun[Any]]) -> list[tuple[str, str]]:
    """For each group its name and a table of all settings, as its first run has them."""
    found = []
    for task, label in _keys(runs):
        first = next(run for run in runs if (run.task, run.label) == (task, label))
        rows = [[name, _shown(value)] for name, value in _leaves(first).items()]
        found.append((f"{task}, {label}" if task else label, html_table(["setting", "value"], rows)))
    return found


def _keys(runs: Sequence[ReportedRun[Any]]) -> list[tuple[str, str]]:
    """The groups, environment by environment."""
    tasks = list(dict.fromkeys(run.task for run in runs))
    return sorted(dict.fromkeys((run.task, run.label) for run in runs), key=lambda key: tasks.index(key[0]))


def _leaves(run: ReportedRun[Any]) -> dict[str, Any]:
    leaves = flat_config(run.folder.plain_config())
    return {
        name.removeprefix("config."): value
        for name, value in leaves.items()
        if name.split(".")[1].partition("[")[0] not in HIDDEN
    }


def _shown(value: Any) -> str:
    """A setting in few letters. Of a whole path the last two parts: pages are sent to others."""
    text = "" if value is None else str(value)
    if isinstance(value, str) and Path(value).is_absolute():
        text = str(Path(*Path(value).parts[-2:]))
    return text if len(text) <= 80 else f"{text[:79]}\N{HORIZONTAL ELLIPSIS}"


def training_table(runs: Sequence[TrainingRun]) -> str:
    head = ["run", "state", "final return", "last evaluation", "best evaluation", "steps", "episodes", "updates"]
    rows = []
    for run in runs:
        evaluations = run.curve("eval_return")[1]
        numbers = [run.last_return, *(evaluations[-1:] or [math.nan]), max(evaluations, default=math.nan)]
        counts = [count(run.reached(name)) for name in ("steps", "episodes", "updates")]
        rows.append([run.name, run.status, *map(number, numbers), *counts, *_times(run)])
    return html_table([*head, "seconds", "steps per second"], rows)


def discovery_table(runs: Sequence[DiscoveryRun]) -> str:
    head = ["run", "state", "meta-updates", "agent updates", "steps", "lives", "gradients not finite"]
    names = ("meta_updates", "updates", "steps", "lives")
    rows = []
    for run in runs:
        lost = count(round(sum(run.curve("nonfinite")[1])))
        rows.append([run.name, run.status, *(count(run.reached(name)) for name in names), lost, *_times(run)])
    return html_table([*head, "seconds", "steps per second"], rows)


def _times(run: ReportedRun[Any]) -> list[str]:
    seconds = run.seconds
    rate = run.reached("steps") / seconds if seconds > 0 else math.nan
    return [count(round(seconds)) if seconds >= 10 else number(seconds), number(rate)]


def final_returns_table(runs: Sequence[DiscoveryRun], families: Sequence[str]) -> str:
    """The last mean return in each family of environments, a row for each discovery."""
    rows = [[run.name, *(number((run.curve(f"return/{name}")[1] or [math.nan])[-1]) for name in families)] for run in runs]
    return html_table(["run", *families], rows, texts=1) if families else ""


def snapshots_table(snapshots: Sequence[Snapshot]) -> str:
    """All snapshots of the discoveries, with the scores of agents that other runs of the report trained with them."""
    tasks = list(dict.fromkeys(task for snapshot in snapshots for task in snapshot.scores))
    rows = []
    for snapshot in snapshots:
        scores = [
            f"{with_interval(group.iqm, len(group.scores) == 1)} ({len(group.scores)})" if group else NOTHING
            for group in (snapshot.scores.get(task) for task in tasks)
        ]
        rows.append([snapshot.run, snapshot.path.name, count(snapshot.meta_updates), snapshot.checksum, *scores])
    return html_table(["run", "rule file", "meta-updates", "SHA-256", *tasks], rows)


def systems_table(runs: Sequence[ReportedRun[Any]]) -> str:
    """What runs were computed with, those of the same system in one row; runs without a summary do not say."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        system = run.summary.get("system")
        known: Mapping[str, Any] = system if isinstance(system, dict) else {}
        cells = [str(known.get(name) or NOTHING) for name in SYSTEM]
        cells[-1] = cells[-1][:12]
        groups.setdefault(tuple(cells), []).append(run.name)
    rows = [
        [", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more", *key]
        for key, names in groups.items()
    ]
    return html_table(["runs", *SYSTEM.values()], rows)
