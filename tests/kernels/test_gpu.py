"""Where a kernel cannot be built, one line says so and plain PyTorch is used."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch.kernels import gpu, is_wrapped

CUDA = torch.device("cuda")


class Kernel:
    """Stands for a Triton kernel: `kernel[grid](tensor)`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.runs = error, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(x: torch.Tensor) -> None:
            if self.error is not None:
                raise self.error
            assert not is_wrapped(x)
            self.runs += 1

        return run


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """In the place of the probe's, on a machine that has no GPU."""
    kernel, zeros = Kernel(), torch.zeros
    monkeypatch.setattr(gpu, "triton", object())
    monkeypatch.setattr(gpu, "_one", kernel, raising=False)
    monkeypatch.setattr(torch, "zeros", lambda *shape, **_: zeros(*shape))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return kernel


def test_a_kernel_that_cannot_be_built(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.error = RuntimeError("Failed to find C compiler.\nPlease specify one.")
    with pytest.raises(RuntimeError, match="Failed to find C compiler"):  # strict, as all tests are
        gpu.has_triton.__wrapped__(CUDA)
    monkeypatch.delenv("DISCO_TORCH_STRICT")
    message = r"^could not run a Triton kernel \(RuntimeError: Failed to find C compiler\.\); plain PyTorch is used\.$"
    with pytest.warns(UserWarning, match=message):
        assert not gpu.has_triton.__wrapped__(CUDA)


def test_the_probe_is_not_seen_by_transforms_and_recordings(kernel: Kernel) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        assert gpu.has_triton.__wrapped__(CUDA)
        return x.sum()

    assert vmap(grad(fn))(torch.ones(3, 2)).shape == (3, 2)
    assert len(make_fx(fn)(torch.ones(2)).graph.nodes) == 3 and kernel.runs == 2


def test_there_are_none_on_a_cpu() -> None:
    assert not gpu.has_triton(torch.device("cpu"))
