"""Runs a workload in its own process: once for each line on standard input, and prints what it took.

    python serve.py learner '{"speed": "plain", ...}'     `learner.make_work(speed="plain", ...)`

One process for each workload separates their memory, allows several Python environments, and leaves nothing behind for the
next row of a table. The peers, which run where PyTorch or this package may be missing, import `serve`.
"""

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Work = Callable[[int], Any]
"""Runs the workload once; the argument selects one of several inputs, which take turns."""

if "OMP_NUM_THREADS" in os.environ and hasattr(os, "sched_setaffinity"):  # JAX takes as many threads as it sees cores
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["OMP_NUM_THREADS"])])


def cpu_memory() -> tuple[float, float]:
    """Resident MiB, now and at most since the last call; NaN where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        now, most = (int(next(x for x in lines if x.startswith(field)).split()[1]) / 1024 for field in ("VmRSS", "VmHWM"))
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        return float("nan"), float("nan")
    return now, most


def serve(
    work: Work, wait: Callable[[], Any] = lambda: None, memory: Callable[[], tuple[float, float]] = cpu_memory
) -> None:
    """Runs the workload on request until standard input is closed.

    Args:
      work: the workload. A line holds the number of the first input and the number of runs.
      wait: returns when everything that was launched has finished.
      memory: MiB held now, and at most since its last call. A run's memory is what it takes besides what was held before.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        first, runs = map(int, line.split())
        time.sleep(0.02)  # threads of the run before may still be spinning
        held, _ = memory()
        wait()
        started = time.perf_counter()
        for i in range(first, first + runs):
            work(i)
        wait()
        seconds = time.perf_counter() - started
        print("seconds", seconds / runs, memory()[1] - held, flush=True)


def cuda_memory() -> tuple[float, float]:
    """MiB that PyTorch has reserved on the GPU, now and at most since the last call."""
    import torch

    now, most = torch.cuda.memory_reserved() / 2**20, torch.cuda.max_memory_reserved() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return now, most


def main(module: str, setting: dict[str, Any]) -> None:
    import torch

    from disco_torch.kernels import keep_freed_memory

    keep_freed_memory()  # as the entry points of runs do
    if not setting["device"].startswith("cuda"):
        return serve(importlib.import_module(module).make_work(**setting))
    torch.set_float32_matmul_precision("high")  # TF32, as JAX does
    work = importlib.import_module(module).make_work(**setting)
    torch.cuda.empty_cache()
    serve(work, torch.cuda.synchronize, cuda_memory)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the benchmark has ended
        main(sys.argv[1], json.loads(sys.argv[2]))
