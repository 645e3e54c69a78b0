"""Moving trees of tensors between a GPU and the host, through pinned memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from disco_torch.types import flatten_tree, tree_map


def to_device(tree: Any, device: torch.device) -> Any:
    """A tree on a device; itself where it is there already.

    To a GPU nothing waits. To the host, the copies of all tensors overlap, and they have arrived when this returns.
    """
    sources = {x.device for x in _tensors(tree) if x.device.type == "cuda"}

    def move(x: Tensor) -> Tensor:
        if device.type == "cuda" and x.device.type == "cpu":
            return x.pin_memory().to(device, non_blocking=True)
        if device.type == "cpu" and x.device.type == "cuda":
            host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            return host.copy_(x.contiguous(), non_blocking=True)
        return x.to(device)

    moved = tree_map(move, tree)
    if device.type == "cpu":
        for source in sources:
            torch.cuda.current_stream(source).synchronize()
    return moved


@contextmanager
def beside_computation(device: torch.device) -> Iterator[None]:
    """What a GPU is given inside runs beside what it computes already, and before what it computes afterwards.

    So a batch from the host arrives while the update before it still runs. What is inside must not read results of that
    computation; what it leaves behind is to be passed through `used_now`. On a CPU this is nothing.
    """
    if device.type != "cuda":
        yield
        return
    beside = _copy_stream(device)
    with torch.cuda.stream(beside):
        yield
    torch.cuda.current_stream(device).wait_stream(beside)


def used_now(tree: Any) -> Any:
    """The tree, whose memory on a GPU is not given away before the present computation is done with it."""
    for x in _tensors(tree):
        if x.device.type == "cuda":
            x.record_stream(torch.cuda.current_stream(x.device))
    return tree


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in flatten_tree(tree)[0] if isinstance(x, Tensor)]
