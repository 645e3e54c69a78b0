"""What all benchmarks share: timing in turns, memory, a peer in another process, and the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

Work = Callable[[int], Any]
"""One piece of work, on the inputs of that number; several different inputs take turns."""


@dataclass(frozen=True)
class Measured:
    """Median seconds of a piece of work; and of its first run, with all that is prepared in it, seconds and memory."""

    seconds: float
    warm_up: float
    mib: float


def measure(works: Mapping[str, Work], repeats: int, device: str) -> dict[str, Measured]:
    """Runs all works in turns, so that whatever else the machine does falls on all of them alike."""
    first = {name: first_run(work, device) for name, work in works.items()}
    for work in works.values():
        timed(work, 1, device)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for i in range(repeats):
        for name, work in works.items():
            seconds[name].append(timed(work, 2 + i, device))
    return {name: Measured(statistics.median(seconds[name]), *first[name]) for name in works}


def first_run(work: Work, device: str) -> tuple[float, float]:
    """Seconds, and the most MiB that the run took besides what was taken before; NaN where this cannot be seen."""
    if isinstance(work, Peer):
        return work(0), float("nan")
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        seconds = timed(work, 0, device)
        return seconds, (torch.cuda.max_memory_reserved() - before) / 2**20
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the largest resident memory so far
        before_mib = resident("VmRSS")
    except OSError:
        return timed(work, 0, device), float("nan")
    return timed(work, 0, device), resident("VmHWM") - before_mib


def timed(work: Work, i: int, device: str) -> float:
    if isinstance(work, Peer):
        return work(i)  # its own clock: without the way between processes
    synchronise(device)
    started = time.perf_counter()
    work(i)
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def resident(field: str) -> float:
    """A line of /proc/self/status, MiB."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(field)).split()[1]) / 1024


class Peer:
    """A program in another environment that does the same work when it is told to, and says how long that took.

    Args:
      python, python_path: the peer's Python and its PYTHONPATH.
      script: which work, a file beside this one.
      setting: its arguments.
    """

    def __init__(self, python: str, python_path: str, script: str, setting: Mapping[str, Any]) -> None:
        env = {**os.environ, "PYTHONPATH": python_path}
        command = [python, str(Path(__file__).parent / script), json.dumps(setting)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __call__(self, i: int) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{i}\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"the peer ended with status {self._process.wait()}; its last words are above.")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def parser(description: str | None, repeats: int = 9) -> argparse.ArgumentParser:
    """With the options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--threads", type=int, default=0, help="of the CPU; all that PyTorch takes unless given")
    options.add_argument("--repeats", type=int, default=repeats)
    options.add_argument("--speeds", nargs="+", default=[], help="plain, traced, captured, compiled")
    return options


def add_peer(options: argparse.ArgumentParser) -> None:
    options.add_argument("--peer", default="", help="the Python of an environment with JAX and the reference")
    options.add_argument("--peer-path", default="", help="its PYTHONPATH")


def begin(args: argparse.Namespace) -> list[str]:
    """Prints where this runs, and returns the speeds to compare, the plain path first."""
    if args.threads:
        torch.set_num_threads(args.threads)
    gpu = args.device.startswith("cuda")
    if gpu:
        torch.set_float32_matmul_precision("high")
    where = torch.cuda.get_device_name() if gpu else f"{platform.processor() or platform.machine()}, CPU"
    print(f"{where}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}, {date.today()}")
    chosen = args.speeds or (["captured", "compiled"] if gpu else ["traced"])
    return ["plain", *(name for name in chosen if name != "plain")]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as they need be."""
    lines = [list(columns), *([written(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def written(cell: Any) -> str:
    """Numbers with three digits that count, or all before the point."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"


def rows_of(label: Sequence[Any], results: Mapping[str, Measured], per_run: float = 0.0) -> list[list[Any]]:
    """A line for each result: time, ratios to the plain path and to the peer (how many times faster), warm-up and memory."""
    lines = []
    for name, result in results.items():
        line = [*label, name, 1e3 * result.seconds, results["plain"].seconds / result.seconds]
        line.append(results["peer"].seconds / result.seconds if "peer" in results else "-")
        line += [result.warm_up, result.mib] + ([per_run / result.seconds] if per_run else [])
        lines.append(line)
    return lines


COLUMNS = ("path", "ms", "x plain", "x peer", "warm-up s", "MiB")
