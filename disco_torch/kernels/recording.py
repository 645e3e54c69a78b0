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
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from disco_torch.kernels.fusing import fused, join_relus
from disco_torch.kernels.simplifying import simplify

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
        self._recordings: dict[Any, Callable[[list[Any]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        if self.speed == Speed():
            with torch.no_grad():
                return self.fn(*args)
        leaves, structure = pytree.tree_flatten(args)
        # In one order of memory: a recording takes it to be the same ever after, and it decides how sums are rounded.
        leaves = [leaf.contiguous() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        key = (structure, *(signature(leaf) for leaf in leaves))
        if key not in self._recordings:
            started = time.perf_counter()
            carried = sum(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(args[0])) if self.carry else 0
            self._recordings[key] = self._record(leaves, structure, carried)
            self.warm_up_seconds += time.perf_counter() - started
        with torch.no_grad():
            return self._recordings[key](leaves)

    def _record(self, leaves: list[Any], structure: Any, carried: int) -> Callable[[list[Any]], Any]:
        recording = Recording(self.fn, pytree.tree_unflatten(leaves, structure))
        tensors = recording.tensors
        carried = carried if self.speed.capture and on_gpu(tensors) else 0
        if carried:
            tensors = [tensor.clone() for tensor in tensors]  # the first of them are written into
        run = staged(recording.run, tensors, self.speed, self.name, carried)

        def replay(leaves: list[Any]) -> Any:
            flat = run(*[leaf for leaf in leaves if isinstance(leaf, Tensor)])
            return pytree.tree_unflatten(list(flat), recording.out_structure)

        return replay


class Recording:
    """A function of trees as one of the tensors in them, `run`, for arguments such as these. `run` sets `out_structure`."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._fn = fn
        self._leaves, self._structure = pytree.tree_flatten(args)
        # One object each: a trace takes arguments that are the same tensor now to be the same ever after.
        self.tensors = [leaf.detach() for leaf in self._leaves if isinstance(leaf, Tensor)]
        self.out_structure: Any = None

    def run(self, *tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        with torch.no_grad():
            flat, self.out_structure = pytree.tree_flatten(self._fn(*pytree.tree_unflatten(filled, self._structure)))
        return [leaf.contiguous() for leaf in flat]


def staged(fn: Callable[..., Any], tensors: list[Tensor], speed: Speed, name: str, carried: int = 0) -> Callable[..., Any]:
    """A function of tensors such as these after all stages that are wanted and do not fail; a graph is traced already."""
    to_trace = (speed.trace or speed.compile) and not isinstance(fn, fx.GraphModule)
    if to_trace:
        fn(*tensors)  # fails as the plain function does, before any stage could hide why
    stages: list[tuple[bool, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = [
        (to_trace, "trace", lambda fn: traced(fn, tensors)),
        (speed.compile, "compile", lambda fn: fused(fn, tensors, carried)),
        (speed.capture and on_gpu(tensors), "capture", lambda fn: Captured(fn, tensors, carried)),
    ]
    for wanted, stage, apply in stages:
        if wanted:
            try:
                fn = apply(fn)
            except Exception as error:  # a compiler may fail in any way; the plain path is always there
                message = str(error).strip().splitlines()[:1]
                notice = f"could not {stage} {name} ({type(error).__name__}: {''.join(message)}); it runs without."
                warnings.warn(notice, stacklevel=4)
                if stage == "trace":
                    break
                if stage == "capture" and carried and speed.compile:
                    fn = on_copies(fn, carried)
    return fn


def on_copies(fn: Callable[..., Any], carried: int) -> Callable[..., Any]:
    """A function that writes into its first arguments, on copies of them: the caller's may share their memory."""
    return lambda *tensors: fn(*(tensor.clone() for tensor in tensors[:carried]), *tensors[carried:])


def signature(leaf: Any) -> Any:
    """What a recording depends on: of a tensor its shape, dtype and device, of anything else its type and value."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device
    return type(leaf), leaf


def on_gpu(tensors: list[Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


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
