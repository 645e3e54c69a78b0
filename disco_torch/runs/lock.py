"""One process at a time writes into the folder of a run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no locks of this kind on this system
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"


class RunInUse(ValueError):
    """Another process has the run open."""


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Holds the run in a folder for this process; raises where another process holds it.

    The operating system keeps the lock and gives it up when the process ends, however it ends. A record lock (`lockf`), not
    `flock`: forked workers of an environment do not inherit it, so that one that survives a killed run does not hold it.
    On file systems without locks this does nothing.
    """
    if fcntl is None:
        yield
        return
    with (folder / LOCK_FILE).open("a+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read() or "which it does not name"
            raise RunInUse(
                f"the run {folder} is open in another process, {holder}; wait until it has ended, or stop it."
            ) from None
        except OSError:  # this file system has no locks
            yield
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # the file stays: to remove it would race with a process that has opened it
