"""Freed memory is kept: taking it again costs no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from disco_torch.kernels.memory import keep_freed_memory

FAULTS = """
import resource, torch
from disco_torch.kernels.memory import keep_freed_memory

torch.set_num_threads(1)
keep_freed_memory()

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        held = [torch.ones(4, 2**20) for _ in range(16)]  # 16 x 16 MiB, 65,536 pages
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(2)
print(faults(10))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a parameter of glibc")
def test_memory_that_is_taken_again_costs_no_page_faults() -> None:
    """In a process of its own: the C library learns from what was freed before, and other threads have faults, too."""
    fresh = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(fresh.stdout) < 4096  # without `keep_freed_memory`, every round has tens of thousands


def test_elsewhere_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed_memory.__wrapped__()
