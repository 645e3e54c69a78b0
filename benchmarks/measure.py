"""What all benchmarks share: workers that take turns, each in its own process, their options, and the table."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from disco_torch.kernels.passes import PASSES, WITHOUT
from disco_torch.kernels.recording import STRICT

HERE = Path(__file__).parent
TURN = 0.05


@dataclass(frozen=True)
class Measured:
    """Median seconds of a run; and seconds and MiB of the first run, which includes all preparation."""

    seconds: float
    warm_up: float
    mib: float


class Worker:
    """A process that runs a workload on request and reports the time; see `serve.py`.

    Args:
      command: the Python interpreter and the script to run.
      setting: arguments of the workload.
      **environment: environment variables to change for it.
    """

    def __init__(self, command: Sequence[str], setting: Mapping[str, Any], **environment: str) -> None:
        platforms = "cuda" if setting["device"].startswith("cuda") else "cpu"
        env = {**os.environ, "JAX_PLATFORMS": platforms, **environment}
        whole, pipe = [*command, json.dumps(setting)], subprocess.PIPE
        # In its own process group: Ctrl-C reaches only the benchmark, which ends its workers.
        self._process = subprocess.Popen(whole, stdin=pipe, stdout=pipe, text=True, env=env, process_group=0)
        atexit.register(self._process.kill)
        self._answer("ready")

    def __call__(self, i: int, runs: int = 1) -> tuple[float, float]:
        """Mean seconds of `runs` runs, on inputs i and those after, and MiB."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{i} {runs}\n")
        self._process.stdin.flush()
        seconds, mib = map(float, self._answer("seconds"))
        return seconds, mib

    def _answer(self, name: str) -> list[str]:
        """The words after the name on the next line that starts with it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(name):
                return line.split()[1:]
        raise RuntimeError(f"a worker ended with status {self._process.wait()}; its output is above.")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(workers: Mapping[str, Worker], repeats: int) -> dict[str, Measured]:
    """Runs all workers in turn, so that other load on the machine affects all of them equally; then ends them.

    A turn is one run, or as many short ones as take about `TURN` seconds.
    """
    first = {name: worker(0) for name, worker in workers.items()}
    runs = {name: 1 + int(TURN / worker(1)[0]) for name, worker in workers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for i in range(repeats):
        for name, worker in workers.items():
            seconds[name].append(worker(2 + i, runs[name])[0])
    for worker in workers.values():
        worker.close()
    return {name: Measured(statistics.median(seconds[name]), *first[name]) for name in workers}


def own_works(module: str, paths: Sequence[str], setting: Mapping[str, Any]) -> dict[str, Worker]:
    """`make_work(speed=path, ...)` of a benchmark for every path."""
    command = [sys.executable, str(HERE / "serve.py"), module]
    return {path: Worker(command, {"speed": path, **setting}) for path in paths}


def peer_works(args: argparse.Namespace, script: str, setting: Mapping[str, Any]) -> dict[str, Worker]:
    """The same workload with the JAX reference, where an environment for it is given."""
    if not args.peer:
        return {}
    return {"jax": Worker([args.peer, str(HERE / script)], setting, PYTHONPATH=args.peer_path)}


def parser(description: str | None, repeats: int = 9) -> argparse.ArgumentParser:
    """With the options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--threads", type=int, default=0, help="number of CPU threads of each worker; defaults to all")
    options.add_argument("--repeats", type=int, default=repeats)
    options.add_argument(
        "--speeds", nargs="+", default=[], help="execution modes to compare: plain, traced, captured, compiled"
    )
    options.add_argument("--no-plain", action="store_true", help="leave out the plain path")
    options.add_argument("--without", nargs="+", default=[], choices=tuple(PASSES), help="graph passes to leave out")
    return options


def add_peer(options: argparse.ArgumentParser) -> None:
    options.add_argument("--peer", default="", help="Python interpreter of an environment with JAX and the reference")
    options.add_argument("--peer-path", default="", help="PYTHONPATH of that interpreter")


def begin(args: argparse.Namespace) -> list[str]:
    """Prints where this runs, and returns the speeds to compare, the plain path first unless it is left out.

    Sets for this process and all workers that a stage that fails raises, and which passes are left out.
    """
    os.environ[STRICT], os.environ[WITHOUT] = "1", " ".join(args.without)
    if args.threads:
        torch.set_num_threads(args.threads)
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    gpu = args.device.startswith("cuda")
    where = torch.cuda.get_device_name() if gpu else f"{platform.processor() or platform.machine()}, CPU"
    without = f", without {', '.join(args.without)}" if args.without else ""
    print(f"{where}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}, {date.today()}{without}", flush=True)
    chosen = args.speeds or (["captured", "compiled"] if gpu else ["traced"])
    return ["plain"] * (not args.no_plain) + [name for name in chosen if name != "plain"]


def run(main: Callable[[], None]) -> None:
    """A benchmark's main function; on Ctrl-C it ends without a traceback."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; what was measured stands above.")


class Table:
    """A table with columns of fixed width, printed row by row.

    Args:
      label: title of the first column.
      width: width of the first column.
      rate: title of the column of rates per second; empty for none.
      ratios: workers that the others are compared with, where present.
    """

    def __init__(self, label: str, width: int, rate: str = "", ratios: Sequence[str] = ("plain", "jax")) -> None:
        self._ratios = ratios
        self._widths = [width, 12, 10, *[8] * len(ratios), 10, 8, *[max(10, len(rate))] * bool(rate)]
        self._print([label, "path", "ms", *(f"x {name}" for name in ratios), "warm-up s", "MiB", *[rate] * bool(rate)])

    def add(self, label: str, results: Mapping[str, Measured], per_run: float = 0.0) -> None:
        """A line for each result: time, how many times faster than others, warm-up and memory, and the rate."""
        for name, result in results.items():
            ratios = [results[other].seconds / result.seconds if other in results else "-" for other in self._ratios]
            rate = [per_run / result.seconds] if per_run else []
            self._print([label, name, 1e3 * result.seconds, *ratios, result.warm_up, result.mib, *rate])

    def _print(self, cells: Sequence[Any]) -> None:
        print_row(cells, self._widths)


def print_row(cells: Sequence[Any], widths: Sequence[int]) -> None:
    """A line of a table, at once."""
    print("  ".join(written(cell).rjust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)


def written(cell: Any) -> str:
    """Numbers with three digits that count, or all before the point."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
