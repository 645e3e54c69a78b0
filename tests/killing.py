"""Kills inside a write: a process that ends itself at a chosen byte of a chosen file, as a power cut would.

`Kill` says where. `live` runs the command line in a process of its own with such a kill, and `kinds` counts them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from disco_torch.discovery.config import DiscoverConfig

KINDS = {
    "configuration": r"config\.json",
    "checkpoint": r"checkpoint-\d+\.pt",
    "snapshot": r"rule-\d+\.(safetensors|moments\.pt)",
    "summary": r"summary\.json|curve\.png",
}
"""Files that are written whole before they take their names, by kind; `metrics` are appended to."""
AFTER = -1
"""Instead of a byte: the file is whole and has its name; what follows, such as removing the oldest one, is not done."""


@dataclass(frozen=True)
class Kill:
    """In the `number`-th write of a kind in a process, behind so many bytes; where they are too many, before the rename."""

    kind: str
    number: int
    left: int


def draw_kill(kind: str, dice: random.Random, sizes: dict[str, int]) -> Kill:
    """A write and a byte of it; at times none, all of them, or just behind it."""
    number = dice.randint(1, {"configuration": 1, "metrics": 4}.get(kind, 2))
    if kind == "metrics":
        return Kill(kind, number, dice.randint(0, sizes[kind]))
    return Kill(kind, number, dice.choice([0, 2**62, AFTER, *[dice.randint(1, sizes[kind]) for _ in range(5)]]))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class DyingFile:
    """A file that takes so many bytes, and then the process is gone."""

    def __init__(self, file: Any, left: int) -> None:
        self.file, self.left = file, left

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) >= self.left:
            self.file.write(view[: self.left])
            self.file.flush()
            die()
        self.left -= len(view)
        return self.file.write(view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def install(kill: Kill) -> None:
    """Makes this process die in one of its writes."""
    from disco_torch import files
    from disco_torch.runs.sinks import JsonlSink

    original, write, seen = files.replacing, JsonlSink.write, [0]

    @contextmanager
    def replacing(path: Path) -> Iterator[BinaryIO]:
        seen[0] += (is_it := re.fullmatch(KINDS.get(kill.kind, "$"), path.name) is not None)
        if not is_it or seen[0] != kill.number:
            with original(path) as file:
                yield file
            return
        with original(path) as file:
            yield file if kill.left == AFTER else DyingFile(file, kill.left)  # type: ignore[misc]
            if kill.left != AFTER:
                die()
        die()

    def writing(sink: JsonlSink, metrics: Any) -> None:
        seen[0] += 1
        if seen[0] == kill.number:
            sink._file = DyingFile(sink._file, kill.left)  # type: ignore[assignment]
        write(sink, metrics)

    if kill.kind == "metrics":
        JsonlSink.write = writing  # type: ignore[method-assign]
    for name, module in list(sys.modules.items()):
        if name.startswith("disco_torch") and getattr(module, "replacing", None) is original:
            module.replacing = replacing  # type: ignore[attr-defined]


def _life(arguments: list[str] | DiscoverConfig, kill: Kill | None) -> None:
    import torch

    from disco_torch.cli import main
    from disco_torch.discovery import discover

    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if kill is not None:
        install(kill)
    if isinstance(arguments, list):
        sys.exit(main(arguments))
    discover(arguments, view=False)


def begin(arguments: list[str] | DiscoverConfig, kill: Kill | None = None) -> BaseProcess:
    """The command line, or a new discovery, in a process forked from one that has imported everything but done nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["disco_torch.cli", "matplotlib.pyplot", "torch._dynamo", "torch._decomp.decompositions_for_jvp"]
    )
    process = context.Process(target=_life, args=(arguments, kill))
    process.start()
    return process


def end(process: BaseProcess, seconds: float = 600.0) -> int | None:
    process.join(seconds)
    code = process.exitcode
    process.kill()
    return code


def kill_behind_a_checkpoint(process: BaseProcess, newest: Any, dice: random.Random) -> None:
    """At a random moment, some time after the next checkpoint is there."""
    before, deadline = newest(), time.monotonic() + 60
    while newest() <= before and time.monotonic() < deadline:
        assert process.is_alive(), "it ended by itself; make the run longer"
        time.sleep(0.001)
    time.sleep(dice.uniform(0.0, 0.05))
    process.kill()
