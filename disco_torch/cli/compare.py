"""`disco-torch compare`: rules against each other, on tasks of your own."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from rich.console import Console

from disco_torch.analysis import RANDOM, RunRecord, plot_comparison, read_records, report
from disco_torch.cli.imports import Imports
from disco_torch.cli.seeds import parse_seeds, say
from disco_torch.training import Contender, Task, TrainConfig, compare, default_config
from disco_torch.training.comparison import EVAL_EPISODES, changed_settings, label_of, select_records


@dataclass(frozen=True)
class Compare:
    """Compare rules: every rule on every task with every seed, in processes of one thread, and tables at the end.

    Runs that are in the file of finished runs are not repeated, so that a comparison that was stopped goes on where it was.
    """

    tasks: tuple[str, ...]
    """Tasks: an environment, with options of `train` behind it in the same quotes, such as "catch --steps 64000"; `NAME=` in
    front names the task in tables."""
    rules: tuple[str, ...]
    """Rules, each with options of `train` behind it in the same quotes, such as "birch --optimizer.learning-rate 1e-3"."""
    seeds: str = "0-4"
    """Seeds, such as `0-4` or `0,3,5`."""
    steps: int = TrainConfig.steps
    """Environment steps of tasks that do not name their own."""
    episodes: int = EVAL_EPISODES
    """Number of evaluation episodes after each run, with fresh seeds."""
    processes: int = 0
    """Number of runs side by side; 0 for as many as there are cores."""
    device: str = "cpu"
    """Device to learn on."""
    out: Path = Path("comparison.jsonl")
    """File of the finished runs, one line of JSON each, to which new ones are added."""
    also: tuple[Path, ...] = ()
    """Further files of finished runs to show beside, such as another library's."""
    peers: tuple[str, ...] = ()
    """Rules whose mean score counts as 1 when scores are normalised, the first that has runs on a task; defaults to the last
    of the rules. The uniform policy counts as 0."""
    figure: Path | None = None
    """Image file to write: aggregates, and the learning curves of each task."""
    table_only: bool = False
    """Train nothing; show the finished runs."""
    imports: Imports = ()
    """Module to import first, such as one that registers environments or rules; may be given several times."""

    def run(self) -> int:
        tasks = [parse_task(text, self.steps) for text in self.tasks]
        contenders = [parse_contender(text) for text in self.rules]
        return run_comparison(self, tasks, contenders)


def parse_task(text: str, steps: int) -> Task:
    """The task of `[NAME=]ENVIRONMENT [options]`."""
    first, config = _parse("--tasks", text, default := TrainConfig(steps=steps))
    name, _, env = first.rpartition("=")
    return Task(name or env, env, config.steps, changed_settings(replace(config, steps=steps), default))


def parse_contender(text: str) -> Contender:
    """The rule of `RULE [options]`."""
    rule, config = _parse("--rules", text, default_config(text.partition(" ")[0]))
    return Contender(rule, changed_settings(config))


def _parse(option: str, text: str, default: TrainConfig) -> tuple[str, TrainConfig]:
    """The first word of a text, and the settings that the options behind it stand for."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"`{option}` must be a name with options behind it, got {text!r}: {error}.") from error
    if not words or words[0].startswith("-"):
        raise ValueError(f"`{option}` must begin with a name, got {text!r}; options come behind it, in the same quotes.")
    return words[0], tyro.cli(TrainConfig, prog=f"disco-torch compare {option}", args=words[1:], default=default)


def run_comparison(command: Compare, tasks: Sequence[Task], contenders: Sequence[Contender]) -> int:
    """Runs what is missing, prints the tables and draws the figure; the status is 1 if a run failed or was stopped."""
    seeds = parse_seeds(command.seeds)
    _check(command, tasks, contenders)
    console = Console()
    beside = [record for path in command.also for record in read_records(path)]
    outcomes = []
    if not command.table_only:
        outcomes = compare(
            tasks,
            [Contender(RANDOM), *contenders],
            seeds,
            command.out,
            processes=command.processes or _cores(),
            episodes=command.episodes,
            device=command.device,
            imports=command.imports,
            known=beside,
            say=lambda line: say(console, line),
        )
    found = list({record.key: record for record in (*beside, *read_records(command.out))}.values())
    labels = [label_of(contender) for contender in contenders]
    chosen = select_records(found, tasks, seeds)
    shown = [record for label in (RANDOM, *labels) for record in chosen if record.label == label]
    shown += [record for record in chosen if record.rule in command.peers and record.label not in labels]
    if shown:
        _show(command, shown, command.peers or (contenders[-1].rule,), labels, console)
    else:
        say(console, f"no finished run of these tasks in {command.out}")
    failed = [outcome for outcome in outcomes if outcome.answer is None]
    if failed:
        stopped = sum(outcome.stopped for outcome in failed)
        say(console, f"{len(failed) - stopped} runs failed, {stopped} were stopped; the same command runs those alone")
    return 1 if failed else 0


def _show(command: Compare, records: list[RunRecord], peers: Sequence[str], labels: Sequence[str], console: Console) -> None:
    say(console, report(records, peers, labels))
    if command.figure is not None:
        plot_comparison(records, peers, command.figure, labels)
        say(console, f"figure in {command.figure}")


def _check(command: Compare, tasks: Sequence[Task], contenders: Sequence[Contender]) -> None:
    for option, names in (("tasks", [task.name for task in tasks]), ("rules", [label_of(own) for own in contenders])):
        if not names:
            raise ValueError(f"`--{option}` must name at least one, got none.")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"`--{option}` must differ, got {twice} twice; name a task with NAME= in front.")
    if command.processes < 0:
        raise ValueError(f"`--processes` must be at least 0, got {command.processes}.")
    for path in command.also:
        if not path.is_file():
            raise ValueError(f"`--also` must be files of finished runs, got {path}, which is none.")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
