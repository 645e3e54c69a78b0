"""Recordings that sum over processes: cut at the sums, they give what the plain function gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx

from disco_torch.kernels import sum_across_processes
from disco_torch.kernels.pieces import in_pieces, sums_over_processes
from disco_torch.kernels.recording import record


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def normalized(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first, second = torch.split(x * y, 2)
    total = sum_across_processes(torch.cat([first, second]).sum(0))
    largest, _ = torch.max(x - total, dim=0)
    spread = sum_across_processes(torch.square(x - total).sum(0))
    return (x - total) / torch.sqrt(spread), largest + y[0], total


def test_a_function_in_pieces_is_the_function(alone: None) -> None:
    x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    finished: list[fx.GraphModule] = []

    def finish(piece: fx.GraphModule, tensors: list[Tensor]) -> Any:
        assert not sums_over_processes(piece)
        finished.append(piece)
        return piece

    graph = record(normalized, [x, y])
    assert sums_over_processes(graph)
    cut = in_pieces(graph, finish)
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
        for ours, plain in zip(cut(x, y), normalized(x, y), strict=True):
            assert torch.equal(ours, plain)
    assert len(finished) == 3  # before, between and behind the sums, each finished once


def test_to_record_takes_no_communication() -> None:
    assert not dist.is_initialized()
    assert sums_over_processes(record(lambda x: (sum_across_processes(x) + 1.0,), [torch.ones(2)]))


def test_no_piece_writes_into_another(alone: None) -> None:
    def writing(x: Tensor) -> tuple[Tensor]:
        kept = x * 2.0
        kept[0].add_(sum_across_processes(x)[0])
        return (kept,)

    graph = torch.fx.experimental.proxy_tensor.make_fx(writing)(torch.ones(2))
    with pytest.raises(ValueError, match="writes across a sum over processes"):
        in_pieces(graph, lambda piece, tensors: piece)
