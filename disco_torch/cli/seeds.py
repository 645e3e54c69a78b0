"""`disco-torch train --seeds 0-4`: the same run with several seeds, in processes side by side, and one summary."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from disco_torch.analysis import mean_interval
from disco_torch.cli.train import Train
from disco_torch.runs.children import Children, stop_with_parent
from disco_torch.runs.world import check_alone

MAX_SEEDS = 1000


def parse_seeds(text: str) -> list[int]:
    """The seeds of `0-4`, `0,3,5` or a mixture of the two, in this order."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MAX_SEEDS:
            raise ValueError(
                f"`--seeds` must be numbers and ranges such as 0-4 or 0,3,5, at most {MAX_SEEDS}, got {text!r}; a range "
                "goes from the smaller to the larger number."
            )
        seeds += range(first, last + 1)
    if len(set(seeds)) != len(seeds) or len(seeds) > MAX_SEEDS:
        raise ValueError(f"`--seeds` must name each seed once and at most {MAX_SEEDS} of them, got {text!r}.")
    return seeds


@dataclass(frozen=True)
class SeedResult:
    """How the run of one seed ended."""

    seed: int
    status: int
    folder: str = ""
    final_return: float | None = None
    best_return: float | None = None
    stopped: bool = False
    stopped_because: str = ""
    error: str = ""

    @property
    def failed(self) -> bool:
        return self.status != 0 and not self.stopped

    @property
    def outcome(self) -> str:
        if self.failed:
            return f"failed: {self.error}"
        return "stopped" if self.stopped and not self.stopped_because else self.stopped_because or "done"


def run_seeds(command: Train, args: list[str]) -> int:
    """Trains one agent for each seed and prints a summary; the status is 1 if any of the runs failed.

    Args:
      command: the command as it was parsed.
      args: the arguments that it was parsed from, which each process parses again.
    """
    seeds = parse_seeds(command.seeds)
    if command.resume is not None:
        raise ValueError("`--seeds` starts new runs and cannot be given with `--resume`; resume each run by itself.")
    if command.jobs < 0:
        raise ValueError(f"`--jobs` must be at least 0, got {command.jobs}.")
    check_alone("`--seeds`")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = min(command.jobs or cores, len(seeds))
    environment = {"OMP_NUM_THREADS": str(max(1, cores // jobs)), **os.environ}
    console = Console()
    say(console, f"{len(seeds)} seeds, {jobs} at a time")
    children = Children()
    with tempfile.TemporaryDirectory() as place, children.stopped_by_signals(), ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda seed: run_seed(children, seed, args, Path(place), environment, console), seeds))
    summarize(results, console)
    return 1 if any(result.failed for result in results) else 0


def run_seed(
    children: Children, seed: int, args: list[str], place: Path, environment: dict[str, str], console: Console
) -> SeedResult:
    """One run in a process of its own, whose lines are printed behind the seed."""
    answer = place / f"{seed}.json"
    request = json.dumps({"args": args, "seed": seed, "answer": str(answer)})
    code = "from disco_torch.cli.seeds import train_one; train_one()"
    process = children.start(seed, [sys.executable, "-c", code, request], environment)
    if process is None:
        return SeedResult(seed, 0, stopped=True)
    last = ""
    assert process.stdout is not None and process.stdin is not None
    for line in process.stdout:
        last = line.strip() or last
        say(console, f"seed {seed}: {line.rstrip()}")
    status = process.wait()
    process.stdin.close()
    process.stdout.close()
    children.running.pop(seed)
    if status == 0 and answer.is_file():
        return SeedResult(seed, 0, **json.loads(answer.read_text()))
    if children.stopping and status in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return SeedResult(seed, status, stopped=True)
    return SeedResult(seed, status or 1, error=last.removeprefix("disco-torch: ") or f"exit status {status}")


def train_one() -> None:
    """What the process of one seed does: parses the arguments again and trains with its own seed."""
    request = json.loads(sys.argv[1])
    threading.Thread(target=stop_with_parent, daemon=True).start()
    from disco_torch.cli import MISTAKES, parse

    try:
        command = parse(request["args"])
        assert isinstance(command, Train)
        name = f"{command.config.name}-seed{request['seed']}" if command.config.name else ""
        config = dataclasses.replace(command.config, seed=request["seed"], name=name)
        result = dataclasses.replace(command, config=config, seeds="").train()
    except MISTAKES as error:
        print(f"disco-torch: {error}", file=sys.stderr)
        sys.exit(2)
    numbers = {"final_return": result.final_return, "best_return": result.best_return}
    answer = {name: value if value == value else None for name, value in numbers.items()}  # NaN: there was none
    how = {"folder": str(result.folder), "stopped": result.stopped, "stopped_because": result.stopped_because}
    Path(request["answer"]).write_text(json.dumps(answer | how))


def summarize(results: list[SeedResult], console: Console) -> None:
    """Prints one line for each seed, and the mean over the runs that are complete with its 95% interval."""
    table = Table("seed", "mean return of the last episodes", "best evaluation", "outcome", "folder")
    for result in results:
        shown = ["-" if value is None else f"{value:.4g}" for value in (result.final_return, result.best_return)]
        table.add_row(str(result.seed), *shown, Text(result.outcome), Text(result.folder))
    console.print(table)
    complete = [r for r in results if not r.failed and (not r.stopped or r.stopped_because)]
    returns = [r.final_return for r in complete if r.final_return is not None]
    if len(returns) > 1:
        mean, low, high = mean_interval(returns)
        say(console, f"mean return over {len(returns)} seeds: {mean:.4g}, 95% interval {low:.4g} to {high:.4g}")
    elif returns:
        say(console, f"mean return of the one complete run: {returns[0]:.4g}")
    for result in results:
        if result.failed:
            say(console, f"seed {result.seed} failed: {result.error}")
        elif result.outcome == "stopped" and result.folder:
            say(console, f"seed {result.seed} was stopped; resume with `disco-torch train --resume {result.folder}`")
        elif result.outcome == "stopped":
            say(console, f"seed {result.seed} was stopped before it saved its state at the end, or was not started")
    if len(complete) > 1:
        say(console, f"plot them with `disco-torch plot {' '.join(result.folder for result in complete)}`")


def say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
