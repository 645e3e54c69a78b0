"""Compilations side by side: the parts of a larger function are found in one run of it and compiled in processes.

    with together():
        fn(...)        # each part that is to be compiled is begun; it runs once as traced and gives that again and again
    fn(...)            # with all parts compiled

All that a process leaves is an entry of the compiler's cache on disk. After it the same compilation is asked for here, and
finds it there; were a process to fail, it would only take longer. What is in the cache already needs no process.
A large part is two: the longer a graph, the longer it takes to compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from disco_torch.kernels.cutting import halve
from disco_torch.kernels.fusing import CHOICES, Plan, outlines
from disco_torch.kernels.workers import PATIENCE, Workers, cores, products, written

FEW_CORES = 8
"""With fewer, compilations side by side take as long as one after the other, and more memory."""
CACHED = 64 << 20
"""Bytes between the halves of a part. More than a GPU's cache holds would take time to be written and read."""


class Part:
    """A graph that is being compiled. Until it is, all it gives is what it gave for its first arguments.

    Args:
      graph: as it was traced.
      tensors: such as it will be given.
      plan: of its compilation.
      failed: is told why the compilation failed; the graph is used as it is then.
    """

    def __init__(
        self, graph: fx.GraphModule, tensors: list[Tensor], plan: Plan, failed: Callable[[Exception], None]
    ) -> None:
        self.plan = plan
        self._graph, self._tensors, self._failed = graph, tensors, failed
        self._given: list[Tensor] = list(graph(*tensors))
        self._run: Callable[..., Any] | None = None

    def __call__(self, *tensors: Tensor) -> Any:
        return list(self._given) if self._run is None else self._run(*tensors)

    def finish(self) -> None:
        """Takes what a process has made, or makes it."""
        try:
            self._run = carried_out(self.plan, self._tensors)
        except Exception as error:  # a compiler may fail in any way; the graph is always there
            self.give_up(error)
        self._tensors, self._given = [], []

    def give_up(self, error: Exception) -> None:
        """The graph is used as it is, unless it was compiled already."""
        if self._run is None:
            self._failed(error)
            self._run, self._tensors, self._given = self._graph, [], []


class Workshop:
    """Parts, and the processes that compile them, the first of which is begun with the first part."""

    def __init__(self) -> None:
        self._parts: list[tuple[Part, Path | None]] = []
        self._workers: Workers | None = None

    def add(self, part: Part) -> None:
        self._parts.append((part, self._begun(part.plan)))

    def _begun(self, plan: Plan) -> Path | None:
        """The file that is there while a process is at work, or None where none can be begun."""
        try:
            if self._workers is None:
                self._workers = Workers()
            return self._workers.begin(plan)
        except OSError:  # no memory, no room on the disk
            return None

    def finish(self) -> None:
        """Takes over what is ready as it becomes ready."""
        if self._parts:
            with contextlib.suppress(Exception):  # it takes seconds, in which the processes work; parts say if it fails
                import torch._inductor.compile_fx  # noqa: F401
        waiting = list(self._parts)
        deadline = time.monotonic() + PATIENCE
        while waiting:
            late = time.monotonic() > deadline
            for part, file in [each for each in waiting if late or self._is_done(each[1])]:
                part.finish()
                waiting.remove((part, file))
            time.sleep(0.02)

    def _is_done(self, file: Path | None) -> bool:
        return self._workers is None or file is None or self._workers.is_done(file)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.stop()
        for part, _ in self._parts:
            part.give_up(RuntimeError("interrupted"))


_open: list[Workshop] = []


def compiled(
    graph: fx.GraphModule, tensors: list[Tensor], carried: int, failed: Callable[[Exception], None]
) -> Callable[..., Any]:
    """The graph compiled: at once, or with others where `together` is open."""
    plan = Plan.of(graph, tensors, carried)
    if not _open:
        return carried_out(plan, tensors)
    halves = None if plan.carried else halve(plan.module)
    if halves is not None:
        with torch.no_grad():
            between: list[Tensor] = list(halves[0](*tensors))
        if sum(tensor.nbytes for tensor in between) <= CACHED:
            given = tensors, [*between, *tensors]
            first, second = (
                begun(Plan(half, outlines(inputs), plan.options, 0), half, inputs, failed)
                for half, inputs in zip(halves, given, strict=True)
            )
            return lambda *inputs: second(*first(*inputs), *inputs)
    return begun(plan, graph, tensors, failed)


def begun(
    plan: Plan, graph: fx.GraphModule, tensors: list[Tensor], failed: Callable[[Exception], None]
) -> Callable[..., Any]:
    """A part whose compilation has begun, in a process; or what the cache has, at once."""
    if mark_of(plan).is_file():
        return carried_out(plan, tensors)
    part = Part(graph, tensors, plan, failed)
    _open[-1].add(part)
    return part


def carried_out(plan: Plan, tensors: list[Tensor]) -> Callable[..., Any]:
    """The plan carried out, and a mark that it was: next time the cache has it, and no process is needed."""
    mark = mark_of(plan)
    run = plan.carry_out(tensors)
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return run


def mark_of(plan: Plan) -> Path:
    """A file beside the compiler's cache, whose name says all that the plan consists of."""
    from torch._inductor.runtime.runtime_utils import cache_dir

    nodes, constants = written(plan.module)
    numbers = {name: (constant.dtype, constant.device, constant.tolist()) for name, constant in constants.items()}
    devices = {device for *_, device in plan.like if device.type == "cuda"}
    gpus = sorted(torch.cuda.get_device_name(device) for device in devices)
    tag = (torch.__version__, CHOICES, torch.compiler.config.cache_key_tag, gpus, products())
    text = repr((tag, nodes, numbers, plan.like, plan.options))
    return Path(cache_dir()) / "disco-torch" / hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What is recorded meanwhile is compiled side by side, and has been at the end. Until then results mean nothing."""
    if cores() < FEW_CORES or sys.platform != "linux":  # elsewhere a process cannot be had twice, or not safely
        yield
        return
    workshop = Workshop()
    _open.append(workshop)
    try:
        yield
        workshop.finish()
    finally:
        _open.remove(workshop)
        workshop.close()
