"""Processes of one run, as `torchrun` starts them, but in a moment."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch


def start(target: Callable[..., object], *args: Any, size: int = 1, errors: Path | None = None) -> list[BaseProcess]:
    """`target(*args)` in one process, or in several as `torchrun` starts them; their stderr goes to `errors`.

    They are forked from one that has imported everything but done nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["disco_torch.cli", "matplotlib.pyplot", "torch._dynamo", "torch._decomp.decompositions_for_jvp"]
    )
    port = free_port()
    processes = []
    for rank in range(size):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {name: str(value) for name, value in names.items()} if size > 1 else {}
        process = context.Process(target=_in_environment, args=(environment, errors, target, args))
        process.start()
        processes.append(process)
    return processes


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _in_environment(environment: dict[str, str], errors: Path | None, target: Callable[..., object], args: Any) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    if errors is not None:
        sys.stderr = (errors / f"{environment.get('RANK', '0')}.txt").open("w", buffering=1)
    result = target(*args)
    if isinstance(result, int):
        sys.exit(result)


def end(processes: list[BaseProcess], seconds: float = 60.0) -> list[int | None]:
    """Their exit statuses, once they have ended."""
    for process in processes:
        process.join(seconds)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes
