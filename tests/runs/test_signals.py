"""How a run is asked to stop, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from disco_torch.runs import close_in_time, stop_signals

HANG = """
import multiprocessing, sys, time
from pathlib import Path
from disco_torch.runs import stop_signals

worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
worker.start()
with stop_signals() as asked:
    Path(sys.argv[1]).write_text(str(worker.pid))
    worker.join()  # as one waits for an environment that hangs
"""

CLOSE = """
import multiprocessing, sys, time
from pathlib import Path
from disco_torch.runs import close_in_time

worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
worker.start()

def close():
    Path(sys.argv[1]).write_text(str(worker.pid))
    worker.join()

close_in_time(close, lambda: sys.argv[2] == "before")
"""


def test_the_first_signal_is_a_request_and_a_second_interrupt_interrupts() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_signals() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGTERM)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ctrl_c_and_what_a_launcher_sends_after_it_are_one_request() -> None:
    """`torchrun` sends its processes a SIGTERM when it is interrupted, as they are."""
    with stop_signals() as asked:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert asked()


def test_the_time_of_grace_ends_with_the_run() -> None:
    """A program that calls `train` again and again would gather a thread for each SIGTERM."""
    before = set(threading.enumerate())
    with stop_signals():
        signal.raise_signal(signal.SIGTERM)
        (timer,) = set(threading.enumerate()) - before
    timer.join(5)
    assert not timer.is_alive()


@pytest.mark.parametrize("told", ["before", "while it hangs"])
def test_sigterm_ends_a_process_whose_environments_do_not_close(tmp_path: Path, told: str) -> None:
    path = tmp_path / "worker"
    process = subprocess.Popen(
        [sys.executable, "-c", CLOSE, str(path), told],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"DISCO_TORCH_GRACE_SECONDS": "0.5"},
    )
    deadline = time.monotonic() + 60
    while not (path.is_file() and path.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    worker = int(path.read_text())
    if told == "while it hangs":
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors == "disco-torch: told to stop, but the run hangs; ended while environments were closed.\n"
    while is_alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_environments_that_close_in_time_end_nothing() -> None:
    before, closed = set(threading.enumerate()), []
    close_in_time(lambda: closed.append(1), lambda: True)
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert closed == [1] and set(threading.enumerate()) == before


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_second_sigterm_ends_a_process_that_hangs_and_its_workers(tmp_path: Path) -> None:
    path = tmp_path / "worker"
    process = subprocess.Popen([sys.executable, "-c", HANG, str(path)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (path.is_file() and path.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    worker = int(path.read_text())
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert is_alive(worker)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors == "disco-torch: told to stop twice; ended without a new checkpoint.\n"
    while is_alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.02)
