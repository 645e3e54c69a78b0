"""Means under softmax distributions, without the distributions: these would go through memory several times."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from disco_torch.kernels import passes_gpu

ROWS = 2048
"""So many distributions over some hundred bins stay in a cache."""


def softmax_mean(logits: Tensor, values: Tensor) -> Tensor:
    """sum_i softmax(logits)_i values_i, [..., N] and [N] -> [...]. Gradients flow to both.

    The plain twin is the second return. Where nothing is differentiated it is one kernel on a GPU, and on a CPU the rows are
    taken a few at a time. On a GPU it is never a matrix product, since that might be rounded to TF32.
    """
    if passes_gpu.serves(logits):
        means: Tensor = torch.ops.disco_torch.softmax_mean(logits.reshape(-1, logits.shape[-1]), values)
        return means.reshape(logits.shape[:-1])
    batched = is_functorch_wrapped_tensor(logits)
    if torch.is_grad_enabled() or batched or logits.device.type != "cpu":
        return torch.sum(torch.softmax(logits, dim=-1, dtype=values.dtype) * values, dim=-1)
    rows = logits.reshape(-1, logits.shape[-1]).to(values.dtype).split(ROWS)
    columns = torch.stack([values, torch.ones_like(values)], dim=-1)  # [N, 2]: one product gives sums and normalisers
    sums = torch.cat([torch.exp(part - part.amax(dim=-1, keepdim=True)) @ columns for part in rows])
    return (sums[:, 0] / sums[:, 1]).reshape(logits.shape[:-1])
