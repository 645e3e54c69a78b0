"""What predictions mean: what can be read of the future from an agent's outputs, by small networks and cross-validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from disco_torch.checks import check_prefix, check_shape

AHEAD = 10
"""Largest number of steps that a probe looks ahead, and number of steps of a return."""
FOLDS = 5
HIDDEN = (128, 64, 32)
"""Sizes of a probe's layers."""
EPOCHS = 20
MINIBATCH = 128
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
LEAST_STEPS = 100
"""Number of steps below which nothing is said of a distance."""
LEAST_EVENTS = 20
"""Number of large rewards, and of steps without one, below which nothing is said of them."""


@dataclass(frozen=True)
class Future:
    """What is to be predicted at each step, k = 0 .. K-1 steps ahead.

    Attributes:
      name: for figures.
      values: [T, B, K]; NaN where the episode, or the data, ends before.
      is_event: whether it is 1 or 0, for what happens or not, and scored by balanced accuracy; else by R^2.
    """

    name: str
    values: Tensor
    is_event: bool = False


@dataclass(frozen=True)
class Probe:
    """How well one source tells one future.

    Attributes:
      source, future: names.
      scores: for k = 0 .. K-1, of trajectories that the probe was not trained on: R^2, the share of the variance that is
        explained, 1 at best and 0 for what is no better than the mean; or balanced accuracy, 0.5 by chance. NaN where there
        are too few data, or nothing varies.
      is_event: which of the two.
    """

    source: str
    future: str
    scores: list[float]
    is_event: bool


@dataclass(frozen=True)
class Approach:
    """What a quantity is before an event.

    Attributes:
      name: of the quantity.
      before: mean over the steps with an event k = 0 .. K-1 steps ahead; NaN where there are too few.
      mean: over all steps.
    """

    name: str
    before: list[float]
    mean: float


def measure_approach(quantities: Mapping[str, Tensor], event: Future) -> list[Approach]:
    """The mean of quantities, [T, B] each, before an event."""
    found = []
    for name, x in quantities.items():
        check_shape(f"quantities[{name!r}]", x, event.values.shape[:2], "one for each step of the event")
        chosen = [x[event.values[..., k] == 1.0] for k in range(event.values.shape[-1])]
        before = [float(own.mean()) if len(own) >= LEAST_EVENTS else math.nan for own in chosen]
        found.append(Approach(name, before, float(x.mean())))
    return found


def make_futures(rewards: Tensor, ends: Tensor, entropies: Tensor, discount: float = 0.99) -> list[Future]:
    """Policy entropy, large rewards and returns, 0 to `AHEAD` steps ahead within the same episode.

    A reward is large if it is positive and at least half of the largest one. A return is the discounted sum of the rewards
    of `AHEAD` steps, or of fewer if the episode ends.

    Args:
      rewards: [T, B], of the step that leaves row t.
      ends: [T, B] bool, whether that step is the last of its episode.
      entropies: [T, B], of the policy.
      discount: of the returns.
    """
    check_shape("ends", ends, rewards.shape, "it must match `rewards`")
    check_shape("entropies", entropies, rewards.shape, "it must match `rewards`")
    large = ((rewards > 0) & (rewards >= 0.5 * rewards.max())).to(rewards.dtype)
    following = steps_ahead(rewards, ends, AHEAD)  # [T, B, AHEAD]
    discounts = discount ** torch.arange(AHEAD, device=rewards.device)
    returns = (following.nan_to_num() * discounts).sum(-1)
    returns[len(rewards) - AHEAD + 1 :] = math.nan  # the data may end before the episode does
    return [
        Future("policy entropy", steps_ahead(entropies, ends, AHEAD + 1)),
        Future("large reward", steps_ahead(large, ends, AHEAD + 1), is_event=True),
        Future("return", steps_ahead(returns, ends, AHEAD + 1)),
    ]


def steps_ahead(x: Tensor, ends: Tensor, number: int) -> Tensor:
    """What x is k = 0 .. number-1 steps later, [T, B] -> [T, B, number]; NaN where another episode has begun."""
    T = x.shape[0]
    found = torch.full((*x.shape, number), math.nan, dtype=x.dtype, device=x.device)
    alive = torch.ones_like(ends, dtype=torch.bool)
    for k in range(min(number, T)):
        found[: T - k, :, k] = torch.where(alive[: T - k], x[k:], math.nan)
        alive[: T - k] &= ~ends[k:].bool()
    return found


def measure_probes(sources: Mapping[str, Tensor], futures: Sequence[Future], seed: int = 0) -> list[Probe]:
    """Probes from each source for each future: networks of 128, 64 and 32 units, five-fold cross-validation.

    One network tells all futures of a source. The folds are whole trajectories, so that no step is told from its neighbours.

    Args:
      sources: name -> [T, B, features].
      futures: what to tell.
      seed: random seed of folds, first weights and minibatches.
    """
    found = []
    labels = torch.cat([future.values for future in futures], dim=-1)  # [T, B, all distances of all futures]
    for name, source in sources.items():
        check_prefix(f"sources[{name!r}]", source, labels.shape[:2], "one row for each step of the futures")
        told = _cross_validated(source, labels, seed)
        parts = told.split([future.values.shape[-1] for future in futures], dim=-1)
        for future, part in zip(futures, parts, strict=True):
            score = _balanced_accuracy if future.is_event else _explained_variance
            scores = [score(part[..., k], future.values[..., k]) for k in range(part.shape[-1])]
            found.append(Probe(name, future.name, scores, future.is_event))
    return found


def _cross_validated(source: Tensor, labels: Tensor, seed: int) -> Tensor:
    """All labels [T, B, L] as told by probes that were trained on other trajectories."""
    generator = torch.Generator().manual_seed(seed)
    B = labels.shape[1]
    if B < FOLDS:
        raise ValueError(f"`sources` must have at least {FOLDS} trajectories, one for each fold, got {B}.")
    folds = torch.randperm(B, generator=generator) % FOLDS
    told = torch.full_like(labels, math.nan)
    for fold in range(FOLDS):
        rest = folds != fold
        probe = _train(source[:, rest].flatten(0, 1).float(), labels[:, rest].flatten(0, 1).float(), generator)
        with torch.no_grad():
            told[:, ~rest] = probe(source[:, ~rest].float()).to(labels.dtype)
    return told


class _Network(nn.Module):
    """A network between inputs and labels of any scale, each standardised by what it was trained on; labels may be NaN."""

    def __init__(self, x: Tensor, labels: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        known = ~labels.isnan()
        count = known.sum(0).clamp(min=1)
        self.offset, self.scale = x.mean(0), x.std(0) + 1e-3 * x.std() + 1e-8
        self.mean = labels.nan_to_num().sum(0) / count
        self.deviation = ((labels - self.mean).nan_to_num().square().sum(0) / count).sqrt() + 1e-8
        sizes = (x.shape[1], *HIDDEN, labels.shape[1])
        layers: list[nn.Module] = []
        for width, out in pairwise(sizes):
            layer = nn.Linear(width, out, device=x.device)
            weights = torch.randn(out, width, generator=generator) * math.sqrt(1.0 / width)
            layer.load_state_dict({"weight": weights, "bias": torch.zeros(out)})
            layers += [layer, nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((x - self.offset) / self.scale) * self.deviation + self.mean


def _train(x: Tensor, labels: Tensor, generator: torch.Generator) -> _Network:
    """A network from x [N, features] to labels [N, L], by the squared error of those that are known."""
    network = _Network(x, labels, generator)
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(x), generator=generator).split(MINIBATCH):
            errors = (network(x[part]) - labels[part]) / network.deviation
            loss = torch.where(labels[part].isnan(), 0.0, errors).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network


def _explained_variance(told: Tensor, true: Tensor) -> float:
    """R^2 = 1 - mean((true - told)^2) / var(true), over the steps that are known."""
    known = ~true.isnan() & ~told.isnan()
    told, true = told[known].double(), true[known].double()
    if len(true) < LEAST_STEPS or not true.var() > 1e-12:
        return math.nan
    return float(1.0 - (true - told).square().mean() / true.var(unbiased=False))


def _balanced_accuracy(told: Tensor, true: Tensor) -> float:
    """The mean of the shares of events and of other steps that are told, an event being where more than its rate is told."""
    known = ~true.isnan() & ~told.isnan()
    event, positive = true[known] > 0.5, told[known] > true[known].mean()
    if min(int(event.sum()), int((~event).sum())) < LEAST_EVENTS:
        return math.nan
    return float(0.5 * (positive[event].double().mean() + (~positive[~event]).double().mean()))
