"""Runs in processes of their own, side by side: they end when the process that started them ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Children:
    """The processes that are running, and whether they have been told to stop."""

    running: dict[Hashable, subprocess.Popen[str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: bool = False

    def stop(self) -> None:
        """Tells all processes to stop; each saves its run first, unless it is told a second time."""
        self.stopping = True
        for process in list(self.running.values()):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    def start(self, name: Hashable, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str] | None:
        """Starts the process of a run in a session of its own, which Ctrl-C in the terminal does not reach."""
        with self.lock:
            if self.stopping:
                return None
            self.running[name] = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to: it closes when this process ends, however it ends
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,
            )
            return process

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """While the block runs, Ctrl-C and SIGTERM stop all processes; a second one ends them at once."""

        def stop(number: int, frame: Any) -> None:
            os.write(2, b"disco-torch: stopping all runs, each saves its state first.\n")
            self.stop()

        numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            self.stop()  # nothing is running any more, unless something unforeseen was raised
            for number, handler in before.items():
                signal.signal(number, handler)


def stop_with_parent() -> None:
    """Waits for the end of the process that started this one, then stops this one as Ctrl-C would."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
