"""Freed memory is kept: taking it again costs no page faults."""

from __future__ import annotations

import platform
import sys

import pytest
import torch

from disco_torch.kernels.cpu_memory import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a parameter of glibc")
def test_memory_that_is_taken_again_costs_no_page_faults() -> None:
    import resource

    keep_freed_memory()

    def faults(times: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(times):
            torch.ones(4, 2**20)  # 16 MiB, 4096 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults(2)
    assert faults(10) < 4096


def test_elsewhere_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    keep_freed_memory.__wrapped__()
