"""Recorded functions: the Python of a computation runs once; on every later call its tensor operations are replayed.

The plain function stays the definition. A recording of it goes through up to four stages:

    record    one run writes down every tensor operation (`make_fx`), with all transforms (grad, jvp, vmap) worked out.
    simplify  passes over the graph: what is computed twice is computed once, what nobody reads is dropped (`passes.py`).
    compile   elementwise operations are fused into kernels by `torch.compile` (`compiling.py`).
    capture   on a GPU, all kernels are launched at once, as a CUDA graph (`capturing.py`).

Where a stage fails, a warning of one line says so and the stage before it is used. With `DISCO_TORCH_STRICT=1`, as in the
tests and benchmarks, it raises instead.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch.kernels.capturing import Captured
from disco_torch.kernels.collectives import without_communication
from disco_torch.kernels.compiling import compiled, on_copies
from disco_torch.kernels.passes import run_passes
from disco_torch.kernels.pieces import in_pieces, sums_over_processes
from disco_torch.kernels.private import one_fake_mode
from disco_torch.types import TREE_FIELDS, flatten_tree, unflatten_tree

STRICT = "DISCO_TORCH_STRICT"
_by_parameter = ContextVar("by_parameter", default=False)


@dataclass(frozen=True)
class Speed:
    """Which stages to go through. The default is none: the plain function.

    Attributes:
      trace: Record the operations and simplify them.
      compile: Fuse them; takes from seconds to a minute for each new combination of shapes.
      capture: Replay them as a CUDA graph; on a CPU this does nothing.
    """

    trace: bool = False
    compile: bool = False
    capture: bool = False


SPEEDS = {
    "plain": Speed(),
    "traced": Speed(trace=True),
    "captured": Speed(trace=True, capture=True),
    "compiled": Speed(trace=True, compile=True, capture=True),
}
"""The settings that runs know by name."""


class Recorded:
    """A pure function of trees of tensors, recorded once for each combination of shapes.

    `fn` must be pure: tensors in, tensors out, nothing written in place but parts of a carried state, no randomness of its
    own, no decision that depends on the tensors' contents. It runs without a graph of gradients.

    Args:
      fn: the plain function.
      speed: stages to go through.
      name: for warnings.
      carry: the first argument is a state, which the first of the results replaces. Treat the state that you pass in as
        consumed: the recording, or `fn` itself, may overwrite it, and the next call the one that it returned.
      before_recording: called before each recording, which changes state of the whole process: waits until no other thread
        computes.
      by_parameter: compiled for a GPU, optimisers work on each parameter instead of one vector of them all. An update of one
        agent gains 10%, of 64 agents 9%; one of two agents gains nothing and takes 10 s longer to compile.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        speed: Speed,
        name: str = "",
        *,
        carry: bool = False,
        before_recording: Callable[[], None] | None = None,
        by_parameter: bool = False,
    ) -> None:
        self.fn, self.speed, self.carry, self.before_recording = fn, speed, carry, before_recording
        self.by_parameter = by_parameter and speed.compile
        self.name = name or getattr(fn, "__name__", "function")
        self.warm_up_seconds = 0.0
        self._recordings: dict[Any, Callable[[list[Tensor]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        if self.speed == Speed():
            with torch.no_grad():
                return self.fn(*args)
        tensors, outline = outline_of(args)
        recording = self._recordings.get(outline)
        if recording is None:
            if self.before_recording is not None:
                self.before_recording()
            started = time.perf_counter()
            recording = self._recordings[outline] = self._record(args)
            self.warm_up_seconds += time.perf_counter() - started
        with torch.no_grad():
            return recording(tensors)

    def _record(self, args: tuple[Any, ...]) -> Callable[[list[Tensor]], Any]:
        leaves, structure = flatten_tree(args)
        is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]  # without the tensors: they can be freed
        out_structure: Any = None

        def of_tensors(*tensors: Tensor) -> list[Tensor]:
            """`fn` as a function of the tensors in its arguments; all else is fixed."""
            nonlocal out_structure
            rest = iter(tensors)
            filled = [next(rest) if given else other for given, other in zip(is_tensor, others, strict=True)]
            with torch.no_grad():
                outputs, out_structure = flatten_tree(self.fn(*unflatten_tree(filled, structure)))
            return [output.contiguous() for output in outputs]

        # One object each: a recording takes those that are the same object now to be the same on every later call.
        tensors, carried = [tensor.detach() for tensor in outline_of(args)[0]], 0
        if self.carry and self.speed.capture and on_gpu(tensors):
            carried = len(outline_of(args[0])[0])
            tensors = [tensor.clone() for tensor in tensors]  # the first of them are written into
        run = self._staged(of_tensors, tensors, carried)
        return lambda tensors: unflatten_tree(list(run(*tensors)), out_structure)

    def _staged(self, fn: Callable[..., Any], tensors: list[Tensor], carried: int) -> Callable[..., Any]:
        """`fn` after all stages that are asked for and do not fail."""
        speed = self.speed
        if speed.trace or speed.compile:
            graph = self._stage("trace", lambda: record(fn, tensors, self.by_parameter), plain=lambda: fn(*tensors))
            if graph is None:
                return fn
            if sums_over_processes(graph):
                return self._in_pieces(graph, tensors)
            return self._finished(graph, tensors, carried)
        return self._captured(fn, tensors, carried)

    def _in_pieces(self, graph: fx.GraphModule, tensors: list[Tensor]) -> Callable[..., Any]:
        """A graph that communicates with other processes: nothing of that is compiled or captured."""
        if not (self.speed.compile or (self.speed.capture and on_gpu(tensors))):
            return graph
        finish = lambda piece, inputs: self._finished(piece, inputs, 0)  # noqa: E731
        return self._stage("cut", lambda: in_pieces(graph, finish)) or graph

    def _finished(self, graph: fx.GraphModule, tensors: list[Tensor], carried: int) -> Callable[..., Any]:
        """A graph after the stages that follow its recording."""
        fn: Callable[..., Any] = graph
        if self.speed.compile:
            fn = self._stage("compile", lambda: without_gc()(compiled)(graph, tensors, carried)) or graph
        return self._captured(fn, tensors, carried)

    def _captured(self, fn: Callable[..., Any], tensors: list[Tensor], carried: int) -> Callable[..., Any]:
        if not (self.speed.capture and on_gpu(tensors)):
            return fn
        captured = self._stage("capture", lambda: Captured(fn, tensors, carried))
        return captured or (on_copies(fn, carried) if carried and self.speed.compile else fn)

    def _stage(self, stage: str, apply: Callable[[], Any], plain: Callable[[], Any] | None = None) -> Any:
        """What a stage returns, or None where it fails, with a warning. Where `plain` fails, its own error is raised."""
        try:
            return apply()
        except Exception as error:  # a compiler may fail in any way; the plain path is always there
            if plain is not None:
                plain()
            if is_strict():
                raise
            reason, *more = str(error).strip().splitlines() or [""]
            if reason.endswith("raised:") and more:  # what `torch.compile` puts before the compiler's own words
                reason = f"{reason} {more[0]}"
            message = f"could not {stage} {self.name} ({type(error).__name__}: {reason}); it runs without."
            warnings.warn(message, stacklevel=5)
            return None


def is_strict() -> bool:
    """Whether a stage that fails raises instead of leaving the one before it."""
    return os.environ.get(STRICT, "") not in ("", "0")


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Without Python's search for reference cycles: a quarter of the time to compile, whose objects stay anyway."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def record(fn: Callable[..., Any], tensors: list[Tensor], by_parameter: bool = False) -> fx.GraphModule:
    """The operations of `fn` on tensors such as these as a simplified graph."""
    before = _by_parameter.set(by_parameter and on_gpu(tensors))
    try:
        with without_gc(), without_communication(), one_fake_mode():
            graph = make_fx(fn)(*tensors)
            run_passes(graph.graph, "record", "cuda" if on_gpu(tensors) else "cpu")
            graph.recompile()
    finally:
        _by_parameter.reset(before)
    return graph


def is_by_parameter() -> bool:
    """Whether to work on each parameter of many: a compiler fuses that, and is spared copying them into a vector."""
    return _by_parameter.get()


def outline_of(tree: Any) -> tuple[list[Tensor], tuple[Any, ...]]:
    """The tensors of a tree, and all else that a recording depends on: structure, shapes, dtypes, devices, other values.

    The tensors are those of `flatten_tree`, in its order, made contiguous: a recording takes the layout to be the same on
    every later call, and it decides how sums are rounded. Every call pays for this, so it has to be quick.
    """
    tensors: list[Tensor] = []
    outline: list[Any] = []
    _add(tree, tensors, outline)
    return tensors, tuple(outline)


def _add(tree: Any, tensors: list[Tensor], outline: list[Any]) -> None:
    kind = type(tree)
    if isinstance(tree, Tensor):
        tensors.append(tree if tree.is_contiguous() else tree.contiguous())
        outline.extend((tree.shape, tree.dtype, tree.device))
    elif kind is dict:
        outline.append(tuple(tree))
        for value in tree.values():
            _add(value, tensors, outline)
    elif kind is list or kind is tuple:
        outline.extend((kind, len(tree)))
        for value in tree:
            _add(value, tensors, outline)
    elif kind in TREE_FIELDS:
        outline.append(kind)
        for name in TREE_FIELDS[kind]:
            _add(getattr(tree, name), tensors, outline)
    else:
        leaves, structure = flatten_tree(tree)
        if len(leaves) == 1 and leaves[0] is tree:
            outline.extend((kind, tree))
        else:
            outline.append(structure)
            for leaf in leaves:
                _add(leaf, tensors, outline)


def on_gpu(tensors: list[Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)
