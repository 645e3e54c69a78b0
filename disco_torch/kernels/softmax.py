"""Means under softmax distributions, without the distributions: these would go through memory several times."""

import torch
from torch import Tensor

from disco_torch.kernels.gpu import is_supported, triton, with_whole_rows
from disco_torch.kernels.private import is_wrapped

ROWS = 2048
"""So many distributions over some hundred bins stay in a CPU's cache."""

if triton is not None:
    import triton.language as tl

    @triton.jit
    def _kernel(logits, values, means, V, stride, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        bins = tl.arange(0, BINS)
        x = tl.load(logits + row * stride + bins, bins < V, float("-inf")).to(tl.float32)
        weights = tl.exp(x - tl.max(x, 0))
        weighted = tl.sum(weights * tl.load(values + bins, bins < V, 0.0), 0)
        tl.store(means + row, weighted / tl.sum(weights, 0))


def softmax_mean(logits: Tensor, values: Tensor) -> Tensor:
    """sum_i softmax(logits)_i values_i, [..., N] and [N] -> [...]. Gradients flow to both.

    The plain twin is the second return. Where nothing is differentiated it is one kernel on a GPU, and on a CPU the rows are
    taken a few at a time. On a GPU it is never a matmul, since that might be rounded to TF32.
    """
    if is_supported(logits):
        means: Tensor = torch.ops.disco_torch.softmax_mean(logits.reshape(-1, logits.shape[-1]), values)
        return means.reshape(logits.shape[:-1])
    if torch.is_grad_enabled() or is_wrapped(logits) or logits.device.type != "cpu":
        return torch.sum(torch.softmax(logits, dim=-1, dtype=values.dtype) * values, dim=-1)
    rows = logits.reshape(-1, logits.shape[-1]).to(values.dtype).split(ROWS)
    columns = torch.stack([values, torch.ones_like(values)], dim=-1)  # [N, 2]: one matmul gives sums and normalisers
    sums = torch.cat([torch.exp(part - part.amax(dim=-1, keepdim=True)) @ columns for part in rows])
    return (sums[:, 0] / sums[:, 1]).reshape(logits.shape[:-1])


torch.library.define("disco_torch::softmax_mean", "(Tensor logits, Tensor values) -> Tensor")


@torch.library.impl("disco_torch::softmax_mean", "default")
def _(logits: Tensor, values: Tensor) -> Tensor:
    N, V = logits.shape
    means = values.new_empty(N)
    logits = with_whole_rows(logits)
    _kernel[(N,)](logits, values.contiguous(), means, V, logits.stride(0), triton.next_power_of_2(V), num_warps=1)
    return means


@torch.library.register_fake("disco_torch::softmax_mean")
def _(logits: Tensor, values: Tensor) -> Tensor:
    return values.new_empty(logits.shape[0])
