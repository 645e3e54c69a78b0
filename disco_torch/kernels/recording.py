"""Recorded functions: the plain Python of a computation runs once, what it did to tensors is replayed ever after.

The plain function stays the definition. A recording of it goes through up to three stages:

    trace     one run writes down every tensor operation, with all transforms (grad, jvp, vmap) already worked out; what is
              computed twice is computed once, what nobody reads is dropped. No Python of the function is run again.
    compile   elementwise operations are fused into kernels, by PyTorch's own compiler.
    capture   on a GPU, all kernels are launched in one go, as a CUDA graph.

Where a stage fails, one line says so and the stage before it is used.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from disco_torch.kernels.fusing import join_relus, uncollected
from disco_torch.kernels.simplifying import simplify
from disco_torch.kernels.workshop import compiled, together
from disco_torch.types import TREE_FIELDS

WARM_UPS = 2


@dataclass(frozen=True)
class Speed:
    """Which stages to go through. The default is none: the plain function.

    Attributes:
      trace: write the operations down and simplify them.
      compile: fuse them; takes from seconds to a minute for each new shape.
      capture: replay them as a CUDA graph; on a CPU this does nothing.
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

    `fn` must be pure: tensors in, tensors out, nothing written in place, no randomness of its own, no decision that depends
    on the tensors' contents. It runs without a graph of gradients.

    Args:
      fn: the plain function.
      speed: stages to go through.
      name: for notices.
      carry: the first argument is a state, which the first of the results replaces. On a GPU it may stay where it is: a
        state that was passed on or returned is overwritten by the next call. Where nothing is traced, `fn` may do so, too.
    """

    def __init__(self, fn: Callable[..., Any], speed: Speed, name: str = "", *, carry: bool = False) -> None:
        self.fn, self.speed, self.carry = fn, speed, carry
        self.name = name or getattr(fn, "__name__", "function")
        self.warm_up_seconds = 0.0
        self._recordings: dict[Any, Callable[[list[Tensor]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        if self.speed == Speed():
            with torch.no_grad():
                return self.fn(*args)
        tensors, outline = outlined(args)
        recording = self._recordings.get(outline)
        if recording is None:
            started = time.perf_counter()
            recording = self._recordings[outline] = self._record(args)
            self.warm_up_seconds += time.perf_counter() - started
        with torch.no_grad():
            return recording(tensors)

    def _record(self, args: tuple[Any, ...]) -> Callable[[list[Tensor]], Any]:
        recording, tensors, carried = Recording(self.fn, args), examples(args), 0
        if self.carry and self.speed.capture and on_gpu(tensors):
            carried = len(outlined(args[0])[0])
            tensors = [tensor.clone() for tensor in tensors]  # the first of them are written into
        run = staged(recording.run, tensors, self.speed, self.name, carried)
        return lambda tensors: pytree.tree_unflatten(list(run(*tensors)), recording.out_structure)


class Recording:
    """A function of trees as one of the tensors in them, `run`, for arguments such as these. `run` sets `out_structure`."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        leaves, self._structure = pytree.tree_flatten(args)
        self._fn = fn
        self.out_structure: Any = None
        self._given = [isinstance(leaf, Tensor) for leaf in leaves]
        self._others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def run(self, *tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        leaves = [next(rest) if given else other for given, other in zip(self._given, self._others, strict=True)]
        with torch.no_grad():
            flat, self.out_structure = pytree.tree_flatten(self._fn(*pytree.tree_unflatten(leaves, self._structure)))
        return [leaf.contiguous() for leaf in flat]


def examples(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors of arguments. One object each: a trace takes those that are the same now to be the same ever after."""
    return [tensor.detach() for tensor in outlined(args)[0]]


def staged(fn: Callable[..., Any], tensors: list[Tensor], speed: Speed, name: str, carried: int = 0) -> Callable[..., Any]:
    """A function of tensors such as these after all stages that are wanted and do not fail; a graph is traced already."""
    to_trace = (speed.trace or speed.compile) and not isinstance(fn, fx.GraphModule)
    if to_trace:
        fn(*tensors)  # fails as the plain function does, before any stage could hide why

    def failed(stage: str, error: Exception) -> None:
        message = "".join(str(error).strip().splitlines()[:1])
        notice = f"could not {stage} {name} ({type(error).__name__}: {message}); it runs without."
        warnings.warn(notice, stacklevel=5)

    stages: list[tuple[bool, str, Callable[[Any], Callable[..., Any]]]] = [
        (to_trace, "trace", lambda fn: traced(fn, tensors)),
        (speed.compile, "compile", lambda fn: compiled(fn, tensors, carried, partial(failed, "compile"))),
        (speed.capture and on_gpu(tensors), "capture", lambda fn: Captured(fn, tensors, carried)),
    ]
    for wanted, stage, apply in stages:
        if wanted:
            try:
                fn = apply(fn)
            except Exception as error:  # a compiler may fail in any way; the plain path is always there
                failed(stage, error)
                if stage == "trace":
                    break
                if stage == "capture" and carried and speed.compile:
                    fn = on_copies(fn, carried)
    return fn


def on_copies(fn: Callable[..., Any], carried: int) -> Callable[..., Any]:
    """A function that writes into its first arguments, on copies of them: the caller's may share their memory."""
    return lambda *tensors: fn(*(tensor.clone() for tensor in tensors[:carried]), *tensors[carried:])


def outlined(tree: Any) -> tuple[list[Tensor], tuple[Any, ...]]:
    """The tensors of a tree, and all else that a recording depends on: structure, shapes, dtypes, devices, other values.

    The tensors are those that `pytree.tree_flatten` gives, in one order of memory: a recording takes it to be the same ever
    after, and it decides how sums are rounded. This is what a call costs that does nothing new: it has to be quick.
    """
    tensors: list[Tensor] = []
    outline: list[Any] = []
    look_at(tree, tensors, outline)
    return tensors, tuple(outline)


def look_at(tree: Any, tensors: list[Tensor], outline: list[Any]) -> None:
    """Adds to both what is in a tree. (Inside of `outlined` it would refer to itself, and so keep the tensors.)"""
    kind = type(tree)
    if isinstance(tree, Tensor):
        tensors.append(tree if tree.is_contiguous() else tree.contiguous())
        outline.extend((tree.shape, tree.dtype, tree.device))
    elif kind is dict:
        outline.append(tuple(tree))
        for value in tree.values():
            look_at(value, tensors, outline)
    elif kind is list or kind is tuple:
        outline.extend((kind, len(tree)))
        for value in tree:
            look_at(value, tensors, outline)
    elif kind in TREE_FIELDS:
        outline.append(kind)
        for name in TREE_FIELDS[kind]:
            look_at(getattr(tree, name), tensors, outline)
    else:
        leaves, structure = pytree.tree_flatten(tree)
        if structure.is_leaf():
            outline.extend((kind, tree))
        else:
            outline.append(structure)
            for leaf in leaves:
                look_at(leaf, tensors, outline)


def on_gpu(tensors: list[Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


@uncollected()
def traced(fn: Callable[..., Any], tensors: list[Tensor]) -> fx.GraphModule:
    """The operations of `fn` as a graph, without repetitions and dead ends."""
    # With one mode for the shapes that each node is annotated with; else every node makes one of its own.
    with tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True))):
        graph = make_fx(fn)(*tensors)
    simplify(graph.graph)
    if on_gpu(tensors):
        join_relus(graph.graph)
    graph.recompile()
    return graph


class Captured:
    """A function of GPU tensors as one CUDA graph. Inputs are copied in, outputs copied out.

    The first `carried` outputs replace the first inputs, in place. Inputs that are there already are not copied. Until the
    first call they hold what the warm-ups have left.
    """

    def __init__(self, fn: Callable[..., Any], tensors: list[Tensor], carried: int = 0) -> None:
        self._inputs, self._carried = [tensor.clone() for tensor in tensors], carried
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            with together():
                fn(*self._inputs)
            for _ in range(WARM_UPS):
                fn(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            outputs: list[Tensor] = list(fn(*self._inputs))
            # What lies in the carried inputs is read before they are overwritten.
            homes = {memory_of(tensor): i for i, tensor in enumerate(self._inputs[:carried])}
            moved = [homes.get(memory_of(output), i) != i for i, output in enumerate(outputs)]
            outputs = [output.clone() if m else output for output, m in zip(outputs, moved, strict=True)]
            copy_all(outputs[:carried], self._inputs[:carried])
        self._outputs = outputs[carried:]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        copy_all(list(tensors), self._inputs)
        self._graph.replay()
        outputs = [torch.empty_like(output) for output in self._outputs]
        copy_all(self._outputs, outputs)
        return self._inputs[: self._carried] + outputs


def memory_of(tensor: Tensor) -> int:
    """Equal for tensors that lie in the same piece of memory."""
    return tensor.untyped_storage().data_ptr()


def copy_all(sources: list[Tensor], destinations: list[Tensor]) -> None:
    """Copies tensors into others of the same shapes, small or many ones in one launch."""
    pairs = [(source, to) for source, to in zip(sources, destinations, strict=True) if source is not to]
    # Of few tensors a large one goes alone: a joint launch would leave it to a few blocks of threads.
    largest = 1 << 14 if len(pairs) <= 16 else 1 << 62
    together: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for source, to in pairs:
        if source.stride() == to.stride() and source.is_contiguous() and source.numel() < largest:
            group = together.setdefault(source.dtype, ([], []))
            group[0].append(source)
            group[1].append(to)
        else:
            to.copy_(source)
    for from_, into in together.values():
        torch._foreach_copy_(into, from_)
