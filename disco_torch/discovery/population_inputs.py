"""Input normalisation of a population: each agent has statistics of its own, which are constants of the meta-gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from disco_torch.data import InputConfig, InputNormalizer, InputSnapshot, InputStats, stack_stats
from disco_torch.data.normalization import ROOT
from disco_torch.discovery.habitats import Habitats
from disco_torch.envs import ObservationKind
from disco_torch.types import Rollout


@dataclass(frozen=True)
class PopulationInputs:
    """`InputNormalizer` for the `P` agents of a group, with a first dimension of agents everywhere.

    Attributes:
      normalizer: of one agent.
      counted: [P] 1 where an agent's observations are counted. Elsewhere their scale is known, and they stay as they are.
    """

    normalizer: InputNormalizer
    counted: Tensor

    def init(self, observation_shape: tuple[int, ...], num_envs: int) -> InputStats:
        """Statistics of nothing, of all agents."""
        example = torch.zeros(observation_shape, device=self.counted.device)
        return stack_stats(self.normalizer.init(example, num_envs), len(self.counted))

    def update(self, stats: InputStats, rollout: Rollout) -> InputStats:
        """Statistics with the rows of a new raw rollout in them, [P, rows, B, ...]."""
        return vmap(self.normalizer.update)(stats, rollout, self.counted) if self.normalizer.has_statistics else stats

    def snapshot(self, stats: InputStats) -> InputSnapshot:
        """Frozen statistics, for acting and for updates."""
        return vmap(self.normalizer.snapshot)(stats) if self.normalizer.has_statistics else InputSnapshot({}, {})

    def observations(self, snapshot: InputSnapshot, observations: Tensor) -> Tensor:
        """What the agents see, [P, B, ...]."""
        if not self.normalizer.normalized_leaves:
            return observations
        return vmap(self.normalizer.normalize_observations)(snapshot, observations)

    def rollout(self, snapshot: InputSnapshot, rollout: Rollout) -> Rollout:
        """Raw rollouts [P, rows, B, ...] as ones to learn from."""
        if not self.normalizer.has_statistics:
            return self.normalizer.normalize_rollout(snapshot, rollout)
        return vmap(self.normalizer.normalize_rollout)(snapshot, rollout)


def population_inputs(config: InputConfig, habitats: Habitats, discount: float) -> PopulationInputs | None:
    """Input normalisation of a group of agents; None where it would leave all inputs as they are."""
    counted = habitats.of_unknown_scale(habitats.habitats)
    # Decided by the agents of all processes, so that the states of all have the same parts.
    scales_differ = config.observations == "auto" and bool(habitats.of_unknown_scale(habitats.all).any())
    if config.rewards == "raw" and not scales_differ:
        return None
    kind: ObservationKind = "numbers" if scales_differ else "image" if habitats.layout.keeps_bytes else "unit"
    return PopulationInputs(InputNormalizer(config, {ROOT: kind}, discount), counted)
