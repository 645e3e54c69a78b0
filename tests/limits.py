"""Runs a piece of code in a process of its own that may neither allocate nor take much."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SETUP = """
import faulthandler, json, resource, signal, sys, warnings
from pathlib import Path
sys.path[:0] = {paths!r}
import numpy as np
import torch
import disco_torch, disco_torch.weights, disco_torch.files
torch.set_num_threads(1)
faulthandler.enable()
memory = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (memory + {more_bytes}, memory + {more_bytes}))
"""
"""An allocation takes address space whether it is touched or not; the imports, which take gigabytes of it, go first."""


def run_limited(code: str, *arguments: object, more_bytes: int = 2**30, timeout: float = 60.0) -> str:
    """The output of `code`, which may allocate `more_bytes` beyond what the imports take; raises where it fails."""
    tests = Path(__file__).parent
    setup = SETUP.format(paths=[str(tests), str(tests.parent)], more_bytes=more_bytes)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", setup + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout
