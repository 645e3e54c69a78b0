"""The sum over the processes of a run, as an operation that recordings can hold.

To record a function takes no communication: processes may record at different times. Where the operations of a recording
are compiled or captured, it is cut at these sums (`pieces.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

_is_recording = False


class ProcessLost(RuntimeError):
    """Another process of the run has died, or did not answer in time."""


@contextmanager
def lost_processes_named() -> Iterator[None]:
    """Backends differ in what they raise where a process is gone; all of it is a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessLost("another process of this run has died or does not answer") from error


@torch.library.custom_op("disco_torch::sum_across_processes", mutates_args=())
def sum_across_processes(tensor: Tensor) -> Tensor:
    """The sum of the processes' tensors, the same to the last bit in all of them. No gradient flows through it."""
    total = tensor.clone(memory_format=torch.contiguous_format)  # it is reduced in place
    if not _is_recording:
        with lost_processes_named():
            dist.all_reduce(total)
    return total


@sum_across_processes.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


SUM = torch.ops.disco_torch.sum_across_processes.default
"""The sum as the target of a node."""


@contextmanager
def without_communication() -> Iterator[None]:
    """Sums are of this process alone, while a function is recorded and its numbers do not matter."""
    global _is_recording
    before, _is_recording = _is_recording, True
    try:
        yield
    finally:
        _is_recording = before
