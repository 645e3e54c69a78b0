"""How a run is asked to stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

GRACE_VARIABLE, GRACE_SECONDS = "DISCO_TORCH_GRACE_SECONDS", 30.0


@contextmanager
def stop_signals(at_the_end: str = "ended without a new checkpoint") -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C or SIGTERM into a flag that the loop reads.

    A second Ctrl-C raises `KeyboardInterrupt`. Where the loop does not read the flag within 30 seconds of a SIGTERM (or what
    `DISCO_TORCH_GRACE_SECONDS` says), since it waits for an environment that hangs, the process and its workers end; a
    second SIGTERM ends them at once. The run then has its last checkpoint.

    Args:
      at_the_end: what is said where the process is ended.
    """
    seen: set[int] = set()
    noticed = threading.Event()
    timers: list[threading.Timer] = []

    def end_unless_noticed() -> None:
        if not noticed.is_set():
            end_now(signal.SIGTERM, f"told to stop, but the run hangs; {at_the_end}")

    def ask(number: int, frame: Any) -> None:
        if number in seen and number == signal.SIGTERM:
            end_now(number, f"told to stop twice; {at_the_end}")
        elif seen and number == signal.SIGINT:
            raise KeyboardInterrupt
        seen.add(number)
        if number == signal.SIGTERM:
            timer = threading.Timer(grace_seconds(), end_unless_noticed)
            timer.daemon = True
            timers.append(timer)
            timer.start()

    def is_asked() -> bool:
        if seen:
            noticed.set()
        return bool(seen)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, which alone may handle signals
        before = {}
    try:
        yield is_asked
    finally:
        noticed.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in timers:  # else its thread would outlive the run by the whole time of grace
            timer.cancel()


def close_in_time(close: Callable[[], None], asked_to_stop: Callable[[], bool]) -> None:
    """Closes the environments of a run. If that hangs, a SIGTERM ends the process and its workers, as in `stop_signals`.

    Args:
      close: closes them.
      asked_to_stop: of the run; where it was asked, the time of grace begins anew.
    """
    with stop_signals("ended while environments were closed"):
        if asked_to_stop() and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
        close()


def grace_seconds() -> float:
    """How long a run has to notice a SIGTERM."""
    try:
        return max(0.0, float(os.environ.get(GRACE_VARIABLE, "")))
    except ValueError:
        return GRACE_SECONDS


def end_now(number: int, why: str) -> None:
    """Ends the worker processes and this one, without waiting for anything."""
    for worker in multiprocessing.active_children():
        worker.kill()
    # Not `print`, which must not be entered twice: the signal may have come in the middle of one.
    os.write(2, f"disco-torch: {why}.\n".encode())
    os._exit(128 + number)
