"""Means under softmax distributions, without the distributions: on a CPU they would go through memory several times."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

ROWS = 512
"""So many distributions over some hundred bins stay in a cache."""


def softmax_mean(logits: Tensor, values: Tensor) -> Tensor:
    """sum_i softmax(logits)_i values_i, [..., N] and [N] -> [...]. Gradients flow to both.

    The plain twin is the first return. On a CPU, where nothing is differentiated, the rows are taken a few at a time. On a
    GPU it is no matrix product, since that might be rounded to TF32.
    """
    batched = is_functorch_wrapped_tensor(logits)
    if torch.is_grad_enabled() or batched or logits.device.type != "cpu":
        return torch.sum(torch.softmax(logits, dim=-1) * values, dim=-1)
    rows = logits.reshape(-1, logits.shape[-1]).split(ROWS)
    return torch.cat([torch.softmax(part, dim=-1) @ values for part in rows]).reshape(logits.shape[:-1])
