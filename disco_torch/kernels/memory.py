"""Memory that tensors free on a CPU, kept for the next ones."""

from __future__ import annotations

import ctypes
import functools
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's parameters, as in its malloc.h."""


@functools.cache
def keep_freed_memory() -> None:
    """Lets the C library keep what was freed, where it is glibc; elsewhere this does nothing.

    An update takes and frees the same tens of MiB again and again. glibc gives them back to the system each time, and every
    page that is taken anew costs a fault: a tenth of an update. Now the process keeps the most that it ever had in use.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(TRIM_THRESHOLD, 2**31 - 1)
    mallopt(MMAP_THRESHOLD, 32 * 2**20)  # the most that it takes; larger tensors still come from the system
