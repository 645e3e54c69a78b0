"""How a run is asked to stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C or SIGTERM into a flag that the loop reads.

    A second Ctrl-C raises `KeyboardInterrupt`. A second SIGTERM ends the process and its workers at once, even where the
    loop waits for an environment that hangs; the run then has its last checkpoint.
    """
    seen: set[int] = set()

    def ask(number: int, frame: Any) -> None:
        if number in seen and number == signal.SIGTERM:
            end_now(number)
        elif seen and number == signal.SIGINT:
            raise KeyboardInterrupt
        seen.add(number)

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, which alone may handle signals
        before = {}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_now(number: int) -> None:
    """Ends the worker processes and this one, without waiting for anything."""
    for worker in multiprocessing.active_children():
        worker.kill()
    # Not `print`, which must not be entered twice: the signal may have come in the middle of one.
    os.write(2, b"disco-torch: told to stop twice; ended without a new checkpoint.\n")
    os._exit(128 + number)
