"""Results made ahead come in order, side work is done at once without a GPU; on a GPU see `test_gpu_kernels.py`."""

from __future__ import annotations

import pytest
import torch

from disco_torch.kernels import SideStream, prefetched
from disco_torch.kernels.capturing import copy_all


def test_all_are_made_before_the_first_is_given() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    results = prefetched(make, 3)
    assert made == []
    assert next(results) == 0 and made == [0, 1, 2]
    assert list(results) == [1, 2]


def test_without_a_capture_side_work_is_done_at_once() -> None:
    side, done = SideStream(), list[int]()
    assert side(lambda x: done.append(x) or x + 1, 3) == 4 and done == [3]
    side.wait()


def test_copy_all_copies_tensors_of_any_layout() -> None:
    def draw(*shape: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    sources = [draw(3), draw(2, 3).t(), draw(4).float(), torch.arange(5), draw(), draw(0), draw(2, 2, seed=1)]
    destinations = [torch.zeros(x.shape, dtype=x.dtype) for x in sources]
    destinations[-1] = torch.zeros(2, 2, dtype=torch.float64).t()
    places = [x.data_ptr() for x in destinations]
    copy_all(sources, destinations)
    torch.testing.assert_close(destinations, [x.clone() for x in sources], rtol=0, atol=0)
    assert [x.data_ptr() for x in destinations] == places
    with pytest.raises(ValueError, match="shorter"):
        copy_all(sources, destinations[:-1])
