"""Means under softmax distributions, a few rows at a time, are the means."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from disco_torch.kernels import softmax_mean
from disco_torch.kernels.softmax import ROWS


def plain(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(logits, -1) * values).sum(-1)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 4, 7), (ROWS + 1, 7), (2, ROWS, 7), (0, 7)])
def test_it_is_the_plain_twin(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 5.0 * torch.randn(shape, generator=generator, dtype=torch.float64)
    values = torch.linspace(-300.0, 300.0, 7, dtype=torch.float64)
    with torch.no_grad():
        got = softmax_mean(logits, values)
    torch.testing.assert_close(got, plain(logits, values), rtol=1e-13, atol=1e-12)


def test_other_orders_of_memory() -> None:
    logits, values = torch.randn(7, 5, 4, dtype=torch.float64).transpose(0, 2), torch.arange(7.0, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(softmax_mean(logits, values), plain(logits, values))


def test_gradients_flow_where_they_are_asked_for() -> None:
    logits, values = torch.randn(3, 7, dtype=torch.float64, requires_grad=True), torch.arange(7.0, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: softmax_mean(x, values), (logits,))


def test_batched() -> None:
    logits, values = torch.randn(4, 3, 7, dtype=torch.float64), torch.arange(7.0, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(vmap(lambda x: softmax_mean(x, values))(logits), plain(logits, values))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_16_bits(dtype: torch.dtype) -> None:
    logits, values = torch.randn(3, 7).to(dtype), torch.linspace(-300.0, 300.0, 7)
    with torch.no_grad():
        torch.testing.assert_close(softmax_mean(logits, values), plain(logits.float(), values))
