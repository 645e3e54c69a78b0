"""What a run sets for its whole process, and what the names of devices and speeds stand for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from disco_torch.kernels import SPEEDS, Speed, keep_freed_memory


def configure_process(device: torch.device) -> None:
    """Settings of the whole process: TF32 matmuls on a GPU, as JAX uses, and freed memory kept for the next tensors.

    Entry points such as `train` and `discover` call it; no constructor does.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    keep_freed_memory()


@contextlib.contextmanager
def one_cpu_thread() -> Iterator[None]:
    """One thread for PyTorch's operations on the CPU, unless the variable OMP_NUM_THREADS says how many.

    For many small operations: several threads gain nothing then, and where another process has one of the cores, each
    operation waits for the thread that has none.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resolve_device(name: str) -> torch.device:
    """The device of a name; `auto` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"`device` must be one that this machine has, got {name!r} without a GPU; use cpu.")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"`device` must be `cpu`, `cuda` or `auto`, got {name!r}.") from error


def resolve_speed(name: str, device: torch.device, on_cpu: str = "plain") -> Speed:
    """The speed of a name.

    Args:
      name: a speed's name; `auto` is `captured` on a GPU and `on_cpu` elsewhere.
      device: the device to run on.
      on_cpu: `plain` where most runs are over before tracing has paid for the seconds that it takes.
    """
    if name == "auto":
        name = "captured" if device.type == "cuda" else on_cpu
    return SPEEDS[name]
