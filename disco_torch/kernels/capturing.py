"""The stage `capture`: all kernels of a function as one CUDA graph, and streams that run side by side in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from disco_torch.kernels.private import copy_many

WARM_UPS = 3

T = TypeVar("T")


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
        # On a stream of its own, with which come workspaces of its own: two graphs may run at the same time.
        with torch.cuda.graph(self._graph, stream=side):
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
    # Of few tensors a large one is copied alone: a joint launch would leave it to a few blocks of threads.
    largest = 1 << 14 if len(pairs) <= 16 else 1 << 62
    joint: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for source, to in pairs:
        if source.stride() == to.stride() and source.is_contiguous() and source.numel() < largest:
            group = joint.setdefault(source.dtype, ([], []))
            group[0].append(to)
            group[1].append(source)
        else:
            to.copy_(source)
    for destinations, sources in joint.values():
        copy_many(destinations, sources)


def is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def prefetched(make: Callable[[], T], number: int) -> Iterator[T]:
    """So many results of `make`, all made at once and given one by one.

    While a CUDA graph is captured they are made on a stream of their own: in the graph, the use of one result runs beside
    the making of the next. Must be iterated to the end, where the captured stream has waited for all of them.
    """
    if not is_capturing():
        yield from [make() for _ in range(number)]
        return
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    # Kept until the end: memory of one stream may be reused without waiting for the other.
    made = []
    with torch.cuda.stream(side):
        for _ in range(number):
            made.append((make(), side.record_event()))
    for result, event in made:
        main.wait_event(event)
        yield result


class SideStream:
    """Work on a state that is not needed before `wait`; while a CUDA graph is captured, on a stream of its own."""

    def __init__(self) -> None:
        self._side = torch.cuda.Stream() if is_capturing() else None
        self._kept: list[Any] = []

    def __call__(self, work: Callable[..., T], state: Any, *args: Any) -> T:
        """`work(state, *args)`; the state was there before this object, or comes from earlier work on it."""
        if self._side is None:
            return work(state, *args)
        self._side.wait_stream(torch.cuda.current_stream())
        self._kept.append(args)  # until the end: the main stream would reuse their memory
        with torch.cuda.stream(self._side):
            return work(state, *args)

    def wait(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
            self._kept.clear()
