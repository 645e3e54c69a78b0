"""How far ahead a rule looks: what a change at step t+k does to the targets of step t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from disco_torch.inspection.case import RuleCase, half_distance
from disco_torch.inspection.quantities import BOOTSTRAPS, REWARD, Quantity, present

LEAST_CHANGE = 1e-4
"""Largest change of a target below which its horizon is that of next to nothing."""


@dataclass(frozen=True)
class Reach:
    """What a change of one quantity, k steps ahead, does to one target.

    Attributes:
      quantity: what was changed: `reward`, `value`, `y` or `z`.
      target: what it moved: `policy`, `y`, `z` or `value`.
      trajectories: [B, K], mean move of each trajectory for k = 0 .. K-1; NaN where no pair of steps so far apart lies in
        one episode.
      mean: [K], over all pairs of steps, NaN as well.
      horizon: effective horizon in steps, see `effective_horizon`; NaN where nothing moves.
    """

    quantity: str
    target: str
    trajectories: Tensor
    mean: Tensor
    horizon: float

    @property
    def is_shown(self) -> bool:
        """Whether the change is large enough to be drawn as shares of its largest."""
        return not math.isnan(self.horizon) and self.largest >= LEAST_CHANGE

    @property
    def largest(self) -> float:
        """The largest mean move; a horizon of next to nothing says nothing."""
        return float(self.mean.nan_to_num().max())


def measure_reach(case: RuleCase, seed: int = 0) -> list[Reach]:
    """The reach of every target for every quantity that a case has.

    A reward or a value changes by 1, a prediction becomes that of another step, drawn at random. Only pairs of steps within
    one episode count, and of these the ones whose earlier step counts in the loss.
    """
    generator = torch.Generator().manual_seed(seed)
    return [reach for each in present(BOOTSTRAPS, case) for reach in _reach_of(case, each, generator)]


def _reach_of(case: RuleCase, quantity: Quantity, generator: torch.Generator) -> list[Reach]:
    x = quantity.get(case)
    assert x is not None
    T = case.inputs.rewards.shape[0]
    amounts = _amounts(quantity, x, generator)
    base = quantity.put(case, x)  # an encoded value has another distribution of the same mean
    before = case.pushes_towards(base.targets)
    moves: dict[str, list[Tensor]] = {name: [] for name in before}
    for s in range(T):
        at_s = (torch.arange(x.shape[0], device=x.device) == s).view(-1, *[1] * (x.ndim - 1))
        after = case.pushes_towards(quantity.shifted(case, torch.where(at_s, amounts, 0.0)).targets)
        for name, push in before.items():
            moves[name].append(half_distance(after[name], push))
    pairs = same_episode(case) & case.counted.unsqueeze(1)  # [T, T, B], t by s
    return [_by_distance(quantity.name, name, torch.stack(found, dim=1), pairs) for name, found in moves.items()]


def _amounts(quantity: Quantity, x: Tensor, generator: torch.Generator) -> Tensor:
    """What is added to each row, [rows, B, ...]."""
    if quantity is REWARD or quantity.name == "value":
        # Of both signs: moving averages over the batch, which advantages are normalised with, then stay where they are.
        signs = 1.0 - 2.0 * (torch.arange(x.shape[1], device=x.device) % 2)
        return signs.to(x.dtype).view(1, -1, *[1] * (x.ndim - 2)).expand_as(x)
    rows, B = x.shape[:2]
    others = torch.randperm(rows * B, generator=generator).to(x.device)
    return x.flatten(0, 1)[others].view_as(x) - x


def same_episode(case: RuleCase) -> Tensor:
    """[T, T, B] bool: whether the steps t and s >= t lie in one episode."""
    ends = case.inputs.should_reset_mask_bwd[:-1].long()  # [T, B]
    episode = ends.cumsum(0) - ends  # number of ends before the step
    order = torch.arange(len(ends), device=ends.device)
    return (episode.unsqueeze(1) == episode) & (order.view(-1, 1, 1) <= order.view(1, -1, 1))


def _by_distance(quantity: str, target: str, moves: Tensor, pairs: Tensor) -> Reach:
    """Means of moves [T, T, B] over the pairs of each distance k = s - t."""
    T, _, B = moves.shape
    sums, counts = moves.new_zeros(T, B), moves.new_zeros(T, B)
    for k in range(T):
        sums[k] = (moves * pairs).diagonal(k).sum(-1)
        counts[k] = pairs.diagonal(k).sum(-1)
    each, mean = sums / counts, sums.sum(1) / counts.sum(1)  # 0 / 0 is NaN
    return Reach(quantity, target, each.T.contiguous(), mean, effective_horizon(mean))


def effective_horizon(moves: Tensor) -> float:
    """One more than the mean distance of what moves a target, weighted by how far it moves it.

        H = 1 + sum_k k c_k / sum_k c_k

    For c_k = (gamma lambda)^k over all k this is 1 / (1 - gamma lambda). Of `moves`, [K], entries that are NaN are left out;
    NaN if nothing moves.
    """
    known = ~moves.isnan()
    distances = torch.arange(len(moves), device=moves.device, dtype=torch.float64)[known]
    weights = moves[known].double()
    if not weights.sum() > 0:
        return float("nan")
    return float(1.0 + (distances * weights).sum() / weights.sum())
