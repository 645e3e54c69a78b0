"""Whether a replay fits into the memory that is free."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def check_capacity(capacity: int, needed: int, device: torch.device) -> None:
    """Raises where the memory that the rings need is not free."""
    free = free_memory(device)
    if needed > free:
        fits = int(capacity * free / needed)
        elsewhere = ", or set `replay_device` to 'cpu'" if device.type == "cuda" else ""
        raise ValueError(
            f"`replay_capacity` of {capacity} trajectories needs {needed / 2**30:.2f} GiB on {device}, "
            f"{free / 2**30:.2f} GiB are free; at most {fits} fit{elsewhere}."
        )


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():  # counts what the file cache would give up, which the portable number below does not
        available = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
