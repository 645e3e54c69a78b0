"""The lock of a run: one process at a time, and none that is dead."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disco_torch.runs import RunInUse, run_lock

HOLD = """
import os, sys, time
from pathlib import Path
from disco_torch.runs import run_lock
with run_lock(Path(sys.argv[1])):
    if "fork" in sys.argv and os.fork() == 0:
        Path(sys.argv[1], "child").write_text(str(os.getpid()))
        time.sleep(60)
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(folder: Path, *how: str) -> subprocess.Popen[str]:
    """Another process that holds the run."""
    command = [sys.executable, "-c", HOLD, str(folder), *how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    process = hold(tmp_path)
    message = f"the run {tmp_path} is open in another process, process {process.pid} on {socket.gethostname()}; wait until"
    for _ in range(2):  # a refusal does not disturb the holder
        with pytest.raises(RunInUse, match=re.escape(message)), run_lock(tmp_path):
            pass
    process.communicate("\n", timeout=30)
    with run_lock(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == ""


@pytest.mark.parametrize("how", [[], ["fork"]], ids=["alone", "with a worker that survives"])
def test_a_killed_process_holds_nothing(tmp_path: Path, how: list[str]) -> None:
    process = hold(tmp_path, *how)
    process.kill()
    process.wait(30)
    assert f"process {process.pid}" in (tmp_path / ".lock").read_text()
    with run_lock(tmp_path):
        assert f"process {os.getpid()}" in (tmp_path / ".lock").read_text()
    if how:
        while not (tmp_path / "child").is_file():
            time.sleep(0.01)
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_an_error_inside_gives_it_up(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), run_lock(tmp_path):
        print(1 // 0)
    hold(tmp_path).communicate("\n", timeout=30)


def test_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disco_torch.runs.lock.fcntl", None)
    with run_lock(tmp_path), run_lock(tmp_path):
        pass
