"""Input normalisation: the scale of observations and rewards, between an environment and an agent.

Statistics are a state of the run: counted from the rows of each new rollout, frozen into a snapshot for acting and for an
update, and never differentiated. Rollouts and the replay hold what the environment gave; the agent, the value function and
the rule's targets are computed from what `normalize_rollout` returns.

    collect with snapshot k -> raw rollout -> statistics k+1 -> snapshot k+1 -> updates on normalised batches -> collect ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from disco_torch.checks import check_positive
from disco_torch.envs import Environment, ObservationKind, kinds_by_name
from disco_torch.envs.base import ROOT
from disco_torch.types import (
    Observations,
    Params,
    Rollout,
    flatten_tree,
    tree_dataclass,
    tree_items,
    tree_map,
    unflatten_tree,
)

EPSILON = 1e-8
"""Added to variances, as Gymnasium and Stable-Baselines3 do."""


@dataclass(frozen=True)
class InputConfig:
    """The scale of what an agent sees. The defaults leave observations and rewards as they are."""

    observations: Literal["raw", "auto"] = "raw"
    """Scale of observations: `auto` divides images by 255, leaves bits and boards of 0 and 1 as they are, and normalises
    everything else by its running mean and deviation; `raw` divides all bytes by 255 and leaves the rest as it is."""
    rewards: Literal["raw", "normalized", "scaled", "clipped"] = "raw"
    """Scale of rewards: `normalized` by the running deviation of the discounted return; `scaled` by `reward_scale`;
    `clipped` at `reward_clip`; or `raw`. Logged returns are never scaled."""
    reward_scale: float = 1.0
    """Factor of `scaled` rewards."""
    reward_clip: float = 1.0
    """Largest absolute value of `clipped` rewards."""
    clip: float = 10.0
    """Largest absolute value of normalised observations and rewards."""
    least_deviation: float = 0.1
    """Smallest deviation of normalised observations and discounted returns: what varies less is scaled up to it."""
    largest_deviation: float = 1.0
    """Largest deviation of normalised observations and discounted returns: what varies more is scaled down to it. Between
    the two bounds a scale is left as it is; set both to 1 to divide by the deviation in any case."""

    def __post_init__(self) -> None:
        for name in ("least_deviation", "reward_scale", "reward_clip", "clip"):
            check_positive(name, getattr(self, name), "it is a scale")
        if self.largest_deviation < self.least_deviation:
            raise ValueError(
                f"`largest_deviation` must be at least `least_deviation`, {self.least_deviation}, "
                f"got {self.largest_deviation}; they are the bounds of a deviation."
            )

    @property
    def changes_nothing(self) -> bool:
        return self.observations == "raw" and self.rewards == "raw"


@tree_dataclass
class Moments:
    """Running moments in float64: how many numbers were counted, their mean, and the sum of their squared deviations."""

    count: Tensor
    mean: Tensor
    square: Tensor

    def deviation(self) -> Tensor:
        """The standard deviation; 1 before anything was counted."""
        deviation = torch.sqrt(self.square / self.count.clamp(min=1.0) + EPSILON)
        return torch.where(self.count > 0, deviation, torch.ones_like(deviation))


@tree_dataclass
class InputStats:
    """What is known of the scale of the inputs of one agent in `B` parallel environments.

    Attributes:
      observations: moments of the leaves that are normalised, by name.
      rewards: moments of the discounted returns; None unless rewards are normalised.
      returns: [B] float64, the running discounted returns; None as well.
      executed: [B] bool, whether the next row is led to by a step that counts; None as well.
    """

    observations: dict[str, Moments]
    rewards: Moments | None = None
    returns: Tensor | None = None
    executed: Tensor | None = None


@tree_dataclass
class InputSnapshot:
    """Frozen statistics as factors: `factor * (x - offset)` for observations, by name, and the factor of rewards."""

    offsets: dict[str, Tensor]
    factors: dict[str, Tensor]
    reward_factor: Tensor | None = None


def empty_moments(like: Tensor) -> Moments:
    """Moments of nothing, of numbers in the shape of `like`."""
    zeros = torch.zeros(like.shape, dtype=torch.float64, device=like.device)
    return Moments(zeros.new_zeros(()), zeros, zeros.clone())


def add_numbers(
    moments: Moments, x: Tensor, weights: Tensor, sum_across_processes: Callable[[Tensor], Tensor] | None = None
) -> Moments:
    """Moments with more numbers in them: x [rows, B, ...], each row of an environment counted by its weight, [rows, B].

        n = n_a + n_b,  d = mean_b - mean_a,  mean = mean_a + d n_b / n,  M = M_a + M_b + d^2 n_a n_b / n

    "Updating formulae and a pairwise algorithm for computing sample variances", Chan et al. 1979. Where several processes
    have numbers, n_b, mean_b and M_b are of all of them.
    """
    over_all = sum_across_processes or (lambda x: x)
    x = x.to(torch.float64).flatten(0, 1)  # [rows * B, ...]
    weights = weights.to(torch.float64).flatten().reshape(-1, *[1] * (x.ndim - 1))
    count = over_all(weights.sum())
    mean = over_all((weights * x).sum(0)) / count.clamp(min=1.0)
    square = over_all((weights * torch.square(x - mean)).sum(0))
    total, delta = moments.count + count, mean - moments.mean
    share = count / total.clamp(min=1.0)
    return Moments(
        total, moments.mean + delta * share, moments.square + square + torch.square(delta) * moments.count * share
    )


@dataclass(frozen=True)
class InputNormalizer:
    """Input normalisation as functions of statistics: `init`, `update`, and what a `snapshot` of them does to inputs.

    Attributes:
      config: what is normalised.
      kinds: kind of each leaf of an observation, by name.
      discount: discount factor of the returns whose deviation scales rewards.
    """

    config: InputConfig
    kinds: dict[str, ObservationKind]
    discount: float = 0.99

    @property
    def normalized_leaves(self) -> list[str]:
        """Names of the leaves with a running mean and deviation."""
        return [name for name, kind in self.kinds.items() if kind == "numbers" and self.config.observations == "auto"]

    @property
    def has_statistics(self) -> bool:
        """Whether there is anything to count."""
        return bool(self.normalized_leaves) or self.config.rewards == "normalized"

    def init(self, example: Observations, num_envs: int) -> InputStats:
        """Statistics of nothing, for observations such as one without leading dimensions."""
        leaves = dict(tree_items(example, ROOT))
        stats = InputStats({name: empty_moments(leaves[name]) for name in self.normalized_leaves})
        if self.config.rewards == "normalized":
            device = next(iter(leaves.values())).device
            stats.rewards = empty_moments(torch.zeros((), device=device))
            stats.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)
            stats.executed = torch.ones(num_envs, dtype=torch.bool, device=device)
        return stats

    def restart(self, stats: InputStats) -> InputStats:
        """The same statistics, where all environments begin new episodes."""
        if stats.returns is None or stats.executed is None:
            return stats
        fresh = torch.zeros_like(stats.returns), torch.ones_like(stats.executed)
        return dataclasses.replace(stats, returns=fresh[0], executed=fresh[1])

    def update(
        self,
        stats: InputStats,
        rollout: Rollout,
        counted: Tensor | None = None,
        sum_across_processes: Callable[[Tensor], Tensor] | None = None,
    ) -> InputStats:
        """Statistics with the rows of a new raw rollout [rows, B] in them; a pure function, which can be recorded.

        Args:
          stats: before the rollout.
          rollout: what the environments gave, in the order of time: its first row follows the last of the one before.
          counted: [] 1 to count its observations, 0 not to; None counts them.
          sum_across_processes: adds up over processes that have a part of the environments each and the same moments.
        """
        leaves = dict(tree_items(rollout.observations, ROOT))
        weights = torch.ones_like(rollout.rewards, dtype=torch.float64)
        weights = weights if counted is None else weights * counted
        over_all = sum_across_processes
        moments = {name: add_numbers(old, leaves[name], weights, over_all) for name, old in stats.observations.items()}
        stats = dataclasses.replace(stats, observations=moments)
        return stats if stats.rewards is None else self._count_rewards(stats, rollout, over_all)

    def _count_rewards(self, stats: InputStats, rollout: Rollout, over_all: Callable[[Tensor], Tensor] | None) -> InputStats:
        """Adds the discounted return at each row that a counted step led to. It starts anew after a row that ends."""
        assert stats.rewards is not None and stats.returns is not None and stats.executed is not None
        ends = rollout.discounts == 0
        if rollout.truncations is not None:
            ends = ends | rollout.truncations
        running, returns = stats.returns, []
        for rewards, ended in zip(rollout.rewards.unbind(), ends.unbind(), strict=True):
            returns.append(self.discount * running + rewards)
            running = torch.where(ended, torch.zeros_like(running), returns[-1])
        executed = torch.ones_like(ends) if rollout.executed is None else rollout.executed
        led_to = torch.cat([stats.executed[None], executed[:-1]])
        moments = add_numbers(stats.rewards, torch.stack(returns), led_to, over_all)
        return InputStats(stats.observations, moments, running, executed[-1])

    def snapshot(self, stats: InputStats, dtype: torch.dtype = torch.float32) -> InputSnapshot:
        """The factors that statistics stand for, as constants in the dtype of the inputs."""
        offsets = {name: moments.mean.to(dtype) for name, moments in stats.observations.items()}
        deviations = {name: moments.deviation() for name, moments in stats.observations.items()}
        factors = {name: self._factor(x).to(dtype) for name, x in deviations.items()}
        reward_factor = None if stats.rewards is None else self._factor(stats.rewards.deviation()).to(dtype)
        return InputSnapshot(offsets, factors, reward_factor)

    def _factor(self, deviation: Tensor) -> Tensor:
        """What brings a deviation between its bounds: 1 where it is."""
        return deviation.clamp(self.config.least_deviation, self.config.largest_deviation) / deviation

    def normalize_observations(self, snapshot: InputSnapshot, observations: Observations) -> Observations:
        """Observations [..., *shape] as an agent sees them; images stay bytes, which every agent divides by 255."""
        if self.config.observations == "raw":
            return observations
        names = [name for name, _ in tree_items(observations, ROOT)]
        leaves, structure = flatten_tree(observations)
        return unflatten_tree(
            [self._leaf(snapshot, name, leaf) for name, leaf in zip(names, leaves, strict=True)], structure
        )

    def _leaf(self, snapshot: InputSnapshot, name: str, leaf: Tensor) -> Tensor:
        if self.kinds[name] == "image":
            return leaf
        leaf = leaf if leaf.is_floating_point() else leaf.float()
        if self.kinds[name] == "unit":
            return leaf
        scaled = (leaf - snapshot.offsets[name].to(leaf.dtype)) * snapshot.factors[name].to(leaf.dtype)
        return scaled.clamp(-self.config.clip, self.config.clip)

    def normalize_rewards(self, snapshot: InputSnapshot, rewards: Tensor) -> Tensor:
        """Rewards as a rule sees them."""
        config = self.config
        if config.rewards == "scaled":
            return rewards * config.reward_scale
        if config.rewards == "clipped":
            return rewards.clamp(-config.reward_clip, config.reward_clip)
        if snapshot.reward_factor is None:
            return rewards
        return (rewards * snapshot.reward_factor.to(rewards.dtype)).clamp(-config.clip, config.clip)

    def normalize_rollout(self, snapshot: InputSnapshot, rollout: Rollout) -> Rollout:
        """A raw rollout as one to learn from."""
        return dataclasses.replace(
            rollout,
            observations=self.normalize_observations(snapshot, rollout.observations),
            rewards=self.normalize_rewards(snapshot, rollout.rewards),
        )


def make_normalizer(config: InputConfig, env: Environment, discount: float) -> InputNormalizer | None:
    """Normalisation for the agents of an environment; None where it would leave all of its inputs as they are."""
    if config.changes_nothing:
        return None
    return normalizer_of_kinds(config, kinds_by_name(env, ROOT), env.observation_example, discount)


def normalizer_of_kinds(
    config: InputConfig, kinds: dict[str, ObservationKind], example: Observations, discount: float
) -> InputNormalizer | None:
    """The same without an environment: for observations such as an example, whose leaves are of these kinds by name."""
    if config.changes_nothing:
        return None
    leaves = tree_items(example, ROOT)
    stay = all(kinds[name] == "image" or (kinds[name] == "unit" and x.dtype != torch.uint8) for name, x in leaves)
    return None if stay and config.rewards == "raw" else InputNormalizer(config, kinds, discount)


class NormalizedAgent:
    """An agent that acts on observations as the environment gives them, with frozen statistics."""

    def __init__(self, agent: Any, normalizer: InputNormalizer, snapshot: InputSnapshot) -> None:
        self.agent, self.normalizer, self.snapshot = agent, normalizer, snapshot

    def initial_state(self, batch_size: int) -> Any:
        return self.agent.initial_state(batch_size)

    def act(
        self,
        params: Params,
        observations: Observations,
        generator: torch.Generator | None = None,
        should_reset: Tensor | None = None,
        state: Any = None,
    ) -> tuple[Tensor, Tensor, Any]:
        """See `Agent.act`."""
        return self.agent.act(params, self._seen(observations), generator, should_reset, state)

    def policy(
        self, params: Params, observations: Observations, should_reset: Tensor | None = None, state: Any = None
    ) -> tuple[Tensor, Any]:
        """See `Agent.policy`."""
        return self.agent.policy(params, self._seen(observations), should_reset, state)

    def _seen(self, observations: Observations) -> Observations:
        return self.normalizer.normalize_observations(self.snapshot, observations)


def stack_stats(stats: InputStats, number: int) -> InputStats:
    """Statistics of `number` agents, [P, ...] each, all equal to those of one."""
    return tree_map(lambda x: x.expand(number, *x.shape).clone(), stats)
