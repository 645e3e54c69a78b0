"""The table of results in README: runs its commands one after the other, each in its own process, and prints Markdown.

    python benchmarks/readme_table.py --results results.json
    python benchmarks/readme_table.py --results results.json --golden DIR --weights disco_103.npz --readme README.md
    python benchmarks/readme_table.py --results results.json --finished

What a command printed is kept in the file, so that a second call runs only what is missing. All of it comes from one commit:
at another one, what the file holds is printed, but nothing is added. About 20 minutes on one idle CPU core. Without
`--golden` the reference quantities are those of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2, 3)
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
DISCO_TORCH = (sys.executable, "-m", "disco_torch")


@dataclass(frozen=True)
class Row:
    """A line of the table: what was measured, the command as a reader types it, and how the result is obtained."""

    what: str
    command: str
    measure: Callable[[Results], str]


class NotMeasured(Exception):
    """The file holds no result of a command, and it must not be run."""


class Results:
    """What commands printed, kept in a JSON file together with the commit, the machine and the day.

    Args:
      path: file to read from, if it exists, and to write to.
      threads: number of CPU threads of each command.
      finished: run nothing; what the file lacks is `NotMeasured`.
    """

    def __init__(self, path: Path, threads: int, finished: bool = False) -> None:
        self._path, self._threads, self._finished = path, threads, finished
        commit = text_of(["git", "describe", "--always", "--dirty"], {})
        self._here = {"commit": commit, "threads": threads, "machine": f"{processor()}, PyTorch {torch.__version__}"}
        self._content: dict[str, Any] = {**self._here, "date": str(date.today()), "printed": {}}
        if path.is_file():
            self._content = json.loads(path.read_text())

    def printed(self, key: str, *commands: list[str]) -> str:
        """Output of the commands, run in one temporary folder unless the file has it under this key."""
        printed = self._content["printed"]
        if key not in printed:
            if self._finished:
                raise NotMeasured(key)
            for name, here in self._here.items():
                if self._content[name] != here:
                    raise SystemExit(f"`--results` is of {name} {self._content[name]}, this is {here}; give a new file.")
            print(f"running {key}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                variables = {"OMP_NUM_THREADS": str(self._threads), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
                printed[key] = "\n".join(text_of(command, variables, folder) for command in commands)
            self._path.write_text(json.dumps(self._content, indent=1))
        return str(printed[key])

    @property
    def caption(self) -> str:
        content = self._content
        return f"Commit {content['commit']}, {content['date']}, {content['machine']}, {content['threads']} thread(s)."


def text_of(command: list[str], variables: dict[str, str], folder: str | Path = ROOT) -> str:
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def numbers_after(pattern: str, text: str) -> list[float]:
    """All numbers on the first line that the pattern begins, behind it."""
    found = re.search(pattern + r"(.*)", text)
    if found is None:
        raise SystemExit(f"no line with {pattern!r} in what was printed:\n{text}")
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", found.group(1))]


def reference_row(golden: str, weights: str) -> Row:
    options = ["--weights", weights] if weights else []

    def measure(results: Results) -> str:
        text = results.printed(f"verify {golden}", [*DISCO_TORCH, "verify", golden, *options])
        found = re.search(r"(\d+ of \d+ quantities) agree in float64; largest error (\S+)\.", text)
        if found is None:
            raise SystemExit(f"unexpected output of `verify`:\n{text}")
        return f"{found.group(1)} within 1e-9 in float64; largest relative error {found.group(2)}"

    shown = "disco-torch verify DIR --weights disco_103.npz" if weights else "disco-torch verify tests/golden"
    return Row("Quantities of the JAX reference", f"`{shown}`", measure)


def training_row(task: str, preset: str, rule: str = "birch") -> Row:
    """Greedy returns of new episodes after training with a preset, which is one of the rule."""

    def measure(results: Results) -> str:
        returns = []
        for seed in SEEDS:
            train = [*DISCO_TORCH, "train", "--preset", preset, "--seed", str(seed), "--device", "cpu"]
            evaluate = [*DISCO_TORCH, "evaluate", "runs/run", "--episodes", "100"]
            text = results.printed(f"{preset} seed {seed}", [*train, "--name", "run"], evaluate)
            returns.append(numbers_after("greedy", text)[1])
        return f"mean return {', '.join(f'{value:.4g}' for value in returns)}"

    command = f"`disco-torch train --preset {preset} --seed S`, then `evaluate`"
    return Row(f"{task} with `{rule}`, seeds 0 to 3", command, measure)


def memory_row() -> Row:
    def measure(results: Results) -> str:
        command = [sys.executable, str(ROOT / "benchmarks/meta_gradient.py"), "--updates", "20", "--repeats", "1"]
        *_, plain, mixed, ratio = numbers_after(r"(?m)^ *20 ", results.printed("memory", command))
        return f"{mixed:.0f} MiB instead of {plain:.0f} ({ratio:.2f} of it)"

    what = "Peak memory of a meta-gradient through 20 updates, in mixed mode instead of plain autograd"
    return Row(what, "`python benchmarks/meta_gradient.py --updates 20`", measure)


def update_row() -> Row:
    def measure(results: Results) -> str:
        command = [sys.executable, str(ROOT / "benchmarks/learner.py"), "--sizes", "small", "--speeds", "traced", "compiled"]
        text = results.printed("learner", command)
        plain, traced, compiled = (numbers_after(rf" {path} +(?=\d)", text)[0] for path in ("plain", "traced", "compiled"))
        faster = f"traced {plain / traced:.2f} and compiled {plain / compiled:.2f} times as fast"
        return f"{plain:.0f} ms plain, {traced:.0f} ms traced, {compiled:.0f} ms compiled: {faster}"

    what = "Update of an agent with a rule of Disco103's size (29 steps, 64 trajectories, 3 actions)"
    return Row(what, "`python benchmarks/learner.py --sizes small --speeds traced compiled`", measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="JSON file that keeps what has been measured")
    parser.add_argument("--golden", default=str(ROOT / "tests/golden"), help="folder of reference files")
    parser.add_argument("--weights", default="", help="file of the released Disco103 weights")
    parser.add_argument("--threads", type=int, default=1, help="number of CPU threads of each command")
    parser.add_argument("--finished", action="store_true", help="run nothing and print the rows that are complete")
    parser.add_argument("--readme", type=Path, help="file whose table, between its two markers, is replaced")
    args = parser.parse_args()
    results = Results(args.results, args.threads, args.finished)
    golden, weights = (str(Path(path).resolve()) if path else "" for path in (args.golden, args.weights))
    rows = [
        reference_row(golden, weights),
        training_row("Catch 8x8", "catch-birch"),
        training_row("CartPole-v1", "cartpole-birch"),
        training_row("Catch 8x8", "catch-actor-critic", "actor-critic"),
        memory_row(),
        update_row(),
    ]
    lines = ["| what | result | command |", "|---|---|---|"]
    for row in rows:
        with contextlib.suppress(NotMeasured):
            lines.append(f"| {row.what} | {row.measure(results)} | {row.command} |")
    table = "\n".join([*lines, "", results.caption])
    print(table)
    if args.readme is not None:
        replace_table(args.readme, table)


def replace_table(path: Path, table: str) -> None:
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"`--readme` must hold the lines {BEGIN} and {END} once each, got {path} without them.")
    before, rest = text.split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
