"""Debiased moving averages of a mean and a variance, to normalise with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from disco_torch.checks import check_floating, check_not_empty
from disco_torch.types import EmaState, MeanAcrossProcesses

ROOT_EPSILON = 1e-12


@dataclass(frozen=True)
class MovingAverage:
    """Moments of whole batches, averaged over updates, debiased as Adam's are.

        m1 <- decay m1 + (1 - decay) mean(x),    m2 <- decay m2 + (1 - decay) mean(x^2)
        mean = m1 / (1 - decay^n),    var = max(0, m2 / (1 - decay^n) - mean^2)

    after n batches; the state holds decay^n as `decay_product`.
    """

    decay: float = 0.99
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"`decay` must lie in [0, 1), got {self.decay}; at 1 the average would never change.")

    def init_state(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> EmaState:
        zero = torch.zeros((), device=device, dtype=dtype)
        return EmaState(moment1=zero, moment2=zero.clone(), decay_product=torch.ones_like(zero))

    def update_state(self, x: Tensor, state: EmaState, mean_across_processes: MeanAcrossProcesses | None = None) -> EmaState:
        """Takes in a batch, [...]. With several processes, `mean_across_processes` averages this one's means with theirs."""
        check_floating("x", x)
        check_not_empty("x", x)
        means = torch.stack([torch.mean(x), torch.mean(torch.square(x))])
        if mean_across_processes is not None:
            means = mean_across_processes(means)
        return self.with_means(means, state)

    def with_means(self, means: Tensor, state: EmaState) -> EmaState:
        """Takes in a batch whose mean and mean square are known, [2]."""
        return EmaState(
            moment1=self.decay * state.moment1 + (1.0 - self.decay) * means[0],
            moment2=self.decay * state.moment2 + (1.0 - self.decay) * means[1],
            decay_product=state.decay_product * self.decay,
        )

    def normalize(self, x: Tensor, state: EmaState, subtract_mean: bool = True, least_deviation: float = 0.0) -> Tensor:
        """(x - mean) / (sqrt(var + 1e-12) + eps), [...] -> [...].

        Two epsilons keep the gradient finite where the variance is 0. `state` must have seen a batch. A root below
        `least_deviation` is brought to it.
        """
        debias = 1.0 / (1.0 - state.decay_product)
        mean = state.moment1 * debias
        variance = torch.clamp(state.moment2 * debias - torch.square(mean), min=0.0)
        centred = x - mean if subtract_mean else x
        deviation = torch.sqrt(variance + ROOT_EPSILON)
        if least_deviation:
            deviation = torch.clamp(deviation, min=least_deviation)
        return centred / (deviation + self.eps)
