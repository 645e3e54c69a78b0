"""The processes of one run and how they communicate, through torch.distributed alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Its functions have the process group of the moment as a default argument. Imported within a run, as compilers do, it
# would keep the group alive behind the run's end, and a process that exits while a group's threads work may be aborted.
import torch.distributed.nn.functional
from torch import Tensor

from disco_torch.kernels import ProcessLost, lost_processes_named, sum_across_processes
from disco_torch.runs.process import resolve_device

T = TypeVar("T")
__all__ = ["ProcessLost", "ProcessMean", "World", "check_alone", "is_first_process"]
TIMEOUT = timedelta(minutes=10)
"""How long a process waits for the others: longer than it takes to write a checkpoint or to compile graphs."""


_runs = itertools.count()


@cache
def _rendezvous() -> tuple[dist.Store, int, int]:
    """Where the processes meet, and rank and number of this one: made once, as a process may have several runs in a row."""
    store, rank, size = next(dist.rendezvous("env://"))
    return store, rank, size


@dataclass(frozen=True)
class ProcessMean:
    """The mean over the processes of a run of what each of them has, the same to the last bit in all of them.

    No gradient flows through it.
    """

    size: int
    """Number of processes."""

    def __call__(self, tensor: Tensor) -> Tensor:
        # detached: statistics are constants of every loss, and gradients themselves are not differentiated.
        return sum_across_processes(tensor.detach()) / self.size


@dataclass(frozen=True)
class World:
    """The processes of a run, and which of them this one is; by default this one alone.

    All methods but `device` are collective: all processes call them together, in the same order. `sum` and what
    `mean_across_processes` returns may be called in recorded functions.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes on this machine."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return self.rank == 0

    @classmethod
    @contextmanager
    def from_environment(cls, timeout: timedelta = TIMEOUT) -> Iterator[World]:
        """The processes that `torchrun` started, or this one alone; the process group is destroyed when the block ends."""
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            yield cls()
            return
        with lost_processes_named():
            store, rank, size = _rendezvous()
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            own = dist.PrefixStore(f"run-{next(_runs)}", store)
            dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)
        try:
            yield cls(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
        except ProcessLost:
            raise  # to destroy the group would wait for the lost process
        except BaseException:
            dist.destroy_process_group()
            raise
        else:
            dist.destroy_process_group()

    def device(self, name: str) -> torch.device:
        """The device of a name such as `auto` in this process; with several GPUs each process takes its own."""
        device = resolve_device(name)
        if device.type != "cuda" or self.size == 1:
            return device
        if device.index is not None:
            raise ValueError(f"`device` must be `cuda` with several processes, which take one GPU each, got {name!r}.")
        if self.local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"`--nproc-per-node` must be at most the number of GPUs, {torch.cuda.device_count()}, got process "
                f"{self.local_rank + 1} on this machine."
            )
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors, the same to the last bit in all of them."""
        return tensor if self.size == 1 else sum_across_processes(tensor.detach())

    @property
    def mean_across_processes(self) -> ProcessMean | None:
        """What a learner averages with; None where this process is alone. Its calls are collective."""
        return None if self.size == 1 else ProcessMean(self.size)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true in any of the processes."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(int(flag))).item())

    def gather(self, value: T) -> list[T] | None:
        """The processes' values by rank, in the first process; None in the others. Tensors must be on the CPU."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        with lost_processes_named():
            dist.gather_object(value, gathered)
        return gathered

    def gather_in_all(self, value: T) -> list[T]:
        """The processes' values by rank, in all of them. Tensors must be on the CPU."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        with lost_processes_named():
            dist.all_gather_object(gathered, value)
        return gathered

    def share(self, make: Callable[[], T]) -> T:
        """What the first process makes, in all of them; a ValueError or OSError is raised in all of them, too."""
        if self.size == 1:
            return make()
        shared: list[Any] = [None, None]
        if self.is_first:
            try:
                shared[0] = make()
            except (ValueError, OSError) as error:
                shared[1] = error
        with lost_processes_named():
            dist.broadcast_object_list(shared)
        value, failure = shared
        if failure is not None:
            raise failure
        return value

    def barrier(self) -> None:
        """Waits until all processes have called it."""
        self.any(False)


def is_first_process() -> bool:
    """Whether this is the first process, also where there is no `World` yet."""
    return os.environ.get("RANK", "0") == "0"


def check_alone(what: str) -> None:
    """Raises where `torchrun` has started several processes, for what starts processes of its own."""
    if (size := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ValueError(f"{what} must have one process, got {size}; it starts others itself, leave out torchrun.")
