"""The LSTM without a derivative is the one with it."""

from __future__ import annotations

import types

import pytest
import torch
from torch.func import jvp, vmap

from disco_torch.kernels import lstm_gpu, reversed_hiddens
from disco_torch.layers import LSTM


def make(T: int = 7, B: int = 4) -> tuple[LSTM, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lstm = LSTM(3, 5).double()
    x = torch.randn(T, B, 3, generator=generator, dtype=torch.float64)
    return lstm, x, torch.rand(T, B, generator=generator) < 0.3


def plain(lstm: LSTM, x: torch.Tensor, resets: torch.Tensor) -> torch.Tensor:
    return lstm.unroll(x, resets, lstm.initial_state(x.shape[1]), reverse=True)[0]


def test_it_is_the_plain_twin() -> None:
    lstm, x, resets = make()
    assert resets.any() and not resets.all()
    with torch.no_grad():
        fast = reversed_hiddens(lstm, x, resets)
        torch.testing.assert_close(fast, plain(lstm, x, resets), rtol=1e-13, atol=1e-14)
        assert not torch.allclose(fast, reversed_hiddens(lstm, x, torch.zeros_like(resets)))


def test_a_reset_forgets_whatever_came_before() -> None:
    lstm, x, resets = make()
    resets[3] = True
    later = x.clone()
    later[4:] += 1e6  # read before step 3
    with torch.no_grad():
        a, b = reversed_hiddens(lstm, x, resets), reversed_hiddens(lstm, later, resets)
    assert torch.equal(a[:4], b[:4]) and not torch.equal(a[4:], b[4:])


def test_gradients_where_they_are_asked_for() -> None:
    lstm, x, resets = make()
    x.requires_grad_()
    (got,) = torch.autograd.grad(reversed_hiddens(lstm, x, resets).square().sum(), x)
    (want,) = torch.autograd.grad(plain(lstm, x, resets).square().sum(), x)
    assert torch.equal(got, want) and want.abs().sum() > 0


@pytest.mark.parametrize("agents", [1, 3])
def test_batched_over_agents(agents: int) -> None:
    lstm, x, resets = make()
    xs = torch.stack([x * (1 + i) for i in range(agents)])
    with torch.no_grad():
        together = vmap(lambda each: reversed_hiddens(lstm, each, resets))(xs)
        for each, got in zip(xs, together, strict=True):
            torch.testing.assert_close(got, plain(lstm, each, resets), rtol=1e-12, atol=1e-13)


def test_forward_derivatives_flow_without_a_graph() -> None:
    lstm, x, resets = make()
    direction, step = torch.randn_like(x), 1e-6
    with torch.no_grad():
        _, tangent = jvp(lambda each: reversed_hiddens(lstm, each, resets), (x,), (direction,))
        ahead, behind = (reversed_hiddens(lstm, x + sign * step * direction, resets) for sign in (1, -1))
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("processors", "memory", "precision", "B", "expected"),
    [
        (132, 233472, "high", 64, (16, 16)),  # an H200: two programs to each of its 132 processors
        (132, 233472, "high", 2048, (16, 32)),
        (132, 233472, "highest", 2048, (8, 32)),  # matmuls as good as float32 take twice the memory
        (132, 101376, "high", 2048, (8, 32)),
        (132, 100352, "high", 2048, (8, 16)),
        (132, 65536, "high", 2048, None),
        (6, 233472, "high", 2048, None),
    ],
)
def test_the_programs_of_a_launch_fit_on_the_gpu_together(
    monkeypatch: pytest.MonkeyPatch, processors: int, memory: int, precision: str, B: int, expected: tuple[int, int] | None
) -> None:
    gpu = types.SimpleNamespace(multi_processor_count=processors, shared_memory_per_multiprocessor=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    monkeypatch.setattr(lstm_gpu, "has_triton", lambda device: True)
    device = torch.device("cuda")
    assert lstm_gpu.is_supported(torch.zeros(1), 256) == (expected is not None)  # else the plain twin is used
    if expected is not None:
        assert lstm_gpu.tiling(B, 256, device) == expected
