"""Many independent jobs, each in a process of its own with one thread: one that crashes takes no other with it."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_torch.runs.children import Children, stop_with_parent
from disco_torch.runs.world import check_alone

Request = Mapping[str, Any]
"""What a job is asked for; it must be possible to write it as JSON."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
      request: what it was asked for.
      answer: what it returned; None where it failed or was stopped.
      error: the last line that it printed, where it failed.
      stopped: whether all jobs were told to stop before it ended.
    """

    request: Request
    answer: Any = None
    error: str = ""
    stopped: bool = False


def run_batch(
    target: str, requests: Sequence[Request], *, processes: int, on_end: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """Calls a function once for each request, each call in a new process with one thread, and returns how each ended.

    Ctrl-C and SIGTERM tell all processes to stop and start no more; those that end on SIGTERM are `stopped`.

    Args:
      target: function of one request whose result can be written as JSON, as "module:function"; the processes find
        modules where this one does.
      requests: what to call it with, in this order.
      processes: number of processes at a time.
      on_end: called at the end of each job, one at a time.
    """
    if processes < 1:
        raise ValueError(f"`processes` must be at least 1, got {processes}.")
    check_alone("a batch of jobs")
    children, reporting = Children(), threading.Lock()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
    }

    def run(number: int) -> Outcome:
        outcome = _run_job(children, number, target, requests[number], Path(place), environment)
        with reporting:
            on_end(outcome)
        return outcome

    with tempfile.TemporaryDirectory() as place, children.stopped_by_signals(), ThreadPoolExecutor(processes) as pool:
        return list(pool.map(run, range(len(requests))))


def _run_job(
    children: Children, number: int, target: str, request: Request, place: Path, environment: dict[str, str]
) -> Outcome:
    answer = place / f"{number}.json"
    asked = json.dumps({"target": target, "request": dict(request), "answer": str(answer)})
    code = "from disco_torch.runs.batch import answer_request; answer_request()"
    process = children.start(number, [sys.executable, "-c", code, asked], environment)
    if process is None:
        return Outcome(request, stopped=True)
    last = ""
    assert process.stdout is not None and process.stdin is not None
    for line in process.stdout:
        last = line.strip() or last
    status = process.wait()
    process.stdin.close()
    process.stdout.close()
    children.running.pop(number)
    if status == 0 and answer.is_file():
        return Outcome(request, json.loads(answer.read_text()))
    if children.stopping:
        return Outcome(request, stopped=True)
    return Outcome(request, error=last or f"exit status {status}")


def answer_request() -> None:
    """What the process of one job does: calls the function that it was asked for and writes down what it returns."""
    asked = json.loads(sys.argv[1])
    threading.Thread(target=stop_with_parent, daemon=True).start()
    module, _, name = asked["target"].partition(":")
    result = getattr(importlib.import_module(module), name)(asked["request"])
    Path(asked["answer"]).write_text(json.dumps(result, allow_nan=False))
