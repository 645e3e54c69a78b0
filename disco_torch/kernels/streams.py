"""Work beside other work on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


def beside(make: Callable[[], T], number: int) -> Iterator[T]:
    """So many results of `make`, all made at once and given one by one.

    While a CUDA graph is captured they are made on a stream of their own: in the graph, what is done with one result runs
    beside the making of the next. To be taken to the last one, which the captured stream then waits for.
    """
    if not capturing():
        yield from [make() for _ in range(number)]
        return
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    # Kept until the end: memory of one stream does not wait for the other before it is given away again.
    made = []
    with torch.cuda.stream(side):
        for _ in range(number):
            made.append((make(), side.record_event()))
    for result, event in made:
        main.wait_event(event)
        yield result


def one_ahead(make: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """What `make` gives for each item, in order, while a CUDA graph is captured always for one item more than was asked for.

    That is made on a stream of its own, beside what is done with the one before. To be taken to the last one, and each to
    be dropped before the next is asked for: the one after it takes its memory.
    """
    if not capturing():
        yield from map(make, items)
        return
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()

    def begin(item: S) -> T:
        # After all that was done with the one before the last: its memory is given away again.
        side.wait_stream(main)
        with torch.cuda.stream(side):
            return make(item)

    upcoming: list[T] = []
    for item in items:
        if upcoming:
            main.wait_stream(side)  # for that one, not for the next
        upcoming.append(begin(item))
        if len(upcoming) > 1:
            yield upcoming.pop(0)
    if upcoming:
        main.wait_stream(side)
    yield from upcoming


class Aside:
    """Work on a state that is not wanted before `wait`; while a CUDA graph is captured, on a stream of its own."""

    def __init__(self) -> None:
        self._side = torch.cuda.Stream() if capturing() else None
        self._kept: list[Any] = []

    def __call__(self, work: Callable[..., T], state: Any, *args: Any) -> T:
        """`work(state, *args)`; the state is what was there at first, or comes from work before this."""
        if self._side is None:
            return work(state, *args)
        self._side.wait_stream(torch.cuda.current_stream())
        self._kept.append(args)  # until the end: the first stream would give their memory away
        with torch.cuda.stream(self._side):
            return work(state, *args)

    def wait(self) -> None:
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
            self._kept.clear()


def capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
