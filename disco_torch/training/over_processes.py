"""Losses and gradients of a batch that is split over processes."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.optim import flat, unflat
from disco_torch.types import MeanAcrossProcesses, Params

MASK_EPSILON = 1e-8
"""As in `masked_mean`."""


def over_processes(
    grads: Params, loss: Tensor, mask: Tensor, mean_across_processes: MeanAcrossProcesses
) -> tuple[Params, Tensor]:
    """Gradients and value of a `masked_mean` over the steps of all processes, from those over this process's own.

        L = sum_p S_p / (sum_p n_p + 1e-8),    S_p = (n_p + 1e-8) L_p

    Processes may count different numbers of steps, n_p: a mean of their means would be another loss. All sums are one
    vector, so that they take one message.

    Args:
      grads: of the loss L_p, by name.
      loss: [] L_p.
      mask: [T, B], 1 for the steps that the loss is averaged over.
      mean_across_processes: of a `World`; its `size`, the number of processes, divides the small constant.
    """
    count = mask.sum().to(loss.dtype)
    weight = count + MASK_EPSILON
    means = mean_across_processes(torch.cat([weight * flat(grads), torch.stack([weight * loss, count])]))
    total = means[:-1] / (means[-1] + MASK_EPSILON / getattr(mean_across_processes, "size", 1))
    return unflat(total[:-1], grads), total[-1]
