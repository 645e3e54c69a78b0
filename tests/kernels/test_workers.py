"""The processes that compile: graphs arrive as they were, all end in time, no file is left."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_graphs import draw, parted

from disco_torch.kernels import workers
from disco_torch.kernels.fusing import Plan
from disco_torch.kernels.recording import traced
from disco_torch.kernels.workers import read, written

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="there are workers on Linux alone")


def test_a_graph_is_read_as_it_was_written() -> None:
    module = traced(parted, [draw(3, 4)])
    again = read(*written(module))
    assert str(again.graph) == str(module.graph)
    assert [name for name, _ in again.named_buffers()] == [name for name, _ in module.named_buffers()]
    torch.testing.assert_close(list(again(draw(3, 4, seed=1))), list(module(draw(3, 4, seed=1))), rtol=0, atol=0)


@pytest.fixture
def plan() -> Plan:
    return Plan.of(traced(parted, [draw(3, 4)]), [draw(3, 4)], 0)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where plans are while they are being carried out."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children_of(made: workers.Workers) -> list[int]:
    process = made._process.pid
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def is_running(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.is_file() and status.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that take longer than any test to be read: where they should be, there is a pipe."""

    def dump(plan: object, file: Any) -> None:
        Path(file.name).unlink()
        os.mkfifo(file.name)

    monkeypatch.setattr(workers.pickle, "dump", dump)


@LINUX
def test_workers_leave_an_interrupt_to_the_run_and_are_all_stopped(plan: Plan, plans: Path, stuck: None) -> None:
    made = workers.Workers()
    try:
        assert os.getpgid(made._process.pid) != os.getpgid(0)
        files = [made.begin(plan), made.begin(plan)]
        until(lambda: len(children_of(made)) == 2)
        children = children_of(made)
        assert not any(map(made.is_done, files)) and all(map(is_running, children))
    finally:
        made.stop()
    until(lambda: not any(map(is_running, children)))
    assert all(map(made.is_done, files)) and not list(plans.iterdir())


@LINUX
def test_workers_of_a_run_that_is_gone_end_what_they_began_and_leave(plan: Plan, plans: Path, stuck: None) -> None:
    made = workers.Workers()
    try:
        file = made.begin(plan)
        until(lambda: len(children_of(made)) == 1)
        assert made._process.stdin is not None
        made._process.stdin.close()
        time.sleep(0.3)
        assert not made.is_done(file)
        file.open("wb").close()  # an empty plan, at last
        until(lambda: made._process.poll() is not None)
        assert not list(plans.iterdir())
    finally:
        made._process.kill()


@LINUX
def test_workers_that_fail_are_done_and_leave_no_file(monkeypatch: pytest.MonkeyPatch, plan: Plan, plans: Path) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    made = workers.Workers()
    file = made.begin(plan)
    while not made.is_done(file):
        time.sleep(0.01)
    assert list(plans.iterdir())
    made.stop()
    assert not list(plans.iterdir())


@LINUX
def test_plans_that_cannot_be_carried_out_are_let_go_one_by_one(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, plans: Path
) -> None:
    monkeypatch.setattr(workers, "written", lambda module: "no graph")
    made = workers.Workers()
    try:
        for number in (2, 1):
            files = [made.begin(plan) for _ in range(number)]
            until(lambda files=files: all(map(made.is_done, files)))
            assert made._process.poll() is None and not list(plans.iterdir())
    finally:
        made.stop()
