"""Work beside other work on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def beside(make: Callable[[], T], number: int) -> Iterator[T]:
    """So many results of `make`, all made at once and given one by one.

    While a CUDA graph is captured they are made on a stream of their own: in the graph, what is done with one result runs
    beside the making of the next. To be taken to the last one, which the captured stream then waits for.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
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
