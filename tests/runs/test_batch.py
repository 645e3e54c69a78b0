"""Jobs in processes of their own: answers, errors, crashes and a stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disco_torch.runs.batch import Outcome, run_batch

JOBS = """
import os, signal, time
import torch


def job(request):
    if request["what"] == "raise":
        raise ValueError("not this one")
    if request["what"] == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if request["what"] == "wait":
        open(request["started"], "w").close()
        time.sleep(600)
    return {"twice": 2 * request["x"], "threads": torch.get_num_threads()}
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "jobs_of_a_test.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "jobs_of_a_test:job"


def test_one_that_fails_takes_no_other_with_it(jobs: str) -> None:
    seen: list[Outcome] = []
    requests = [{"what": "answer", "x": 4}, {"what": "raise"}, {"what": "crash"}]
    outcomes = run_batch(jobs, requests, processes=3, on_end=seen.append)
    assert [outcome.request for outcome in outcomes] == requests and len(seen) == 3
    assert outcomes[0].answer == {"twice": 8, "threads": 1} and not outcomes[0].error
    assert outcomes[1].answer is None and outcomes[1].error == "ValueError: not this one"
    assert outcomes[2].answer is None and outcomes[2].error == f"exit status {-signal.SIGKILL}"
    assert not any(outcome.stopped for outcome in outcomes)


def test_no_processes() -> None:
    with pytest.raises(ValueError, match="`processes` must be at least 1, got 0"):
        run_batch("a:b", [{}], processes=0)


def test_no_batch_in_each_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"a batch of jobs must have one process, got 2; .* leave out torchrun"):
        run_batch("a:b", [{}], processes=1)


def test_a_signal_stops_what_runs_and_starts_nothing_more(jobs: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from disco_torch.runs.batch import run_batch
requests = [{{"what": "wait", "started": {str(started)!r}}}, {{"what": "answer", "x": 1}}]
print([(outcome.stopped, outcome.answer) for outcome in run_batch({jobs!r}, requests, processes=1)])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ})
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out.strip() == "[(True, None), (True, None)]" and process.returncode == 0
