"""Families of procedurally varied environments: what they share.

A family draws levels, whose rules and layouts vary, and plays them. Everything is a tensor with one row for each of the `B`
parallel environments, and a step is a pure function of state, actions and uniform numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from disco_torch.checks import check_positive
from disco_torch.envs.base import EnvStep
from disco_torch.envs.pure import PureEnvironment, draw_integers, row_of, select_envs
from disco_torch.types import tree_dataclass, tree_map

__all__ = ["LevelEnvironment", "LevelState", "Split", "draw_integers", "draw_planes", "select_envs"]

Split = Literal["train", "validation", "held-out"]
"""Levels to discover on, levels to choose rules and settings by, and levels held out to evaluate on; each family says what
sets them apart. The older families have no validation levels."""

COLOURS = ((255, 255, 255), (110, 110, 110), (240, 190, 40), (220, 60, 60), (70, 170, 90), (80, 130, 230), (180, 90, 200))
"""Colours of the planes of an observation, in images."""


@tree_dataclass
class LevelState:
    """Which level each environment plays and where it stands, trees of [B, ...] each."""

    levels: Any
    episode: Any


class LevelEnvironment(PureEnvironment):
    """Base of all families: a family implements `draw_levels`, `begin`, `advance` and `observe`.

    Every environment keeps its level until `reset`. With a `level_seed` all play the one level that it stands for; with None
    `reset` draws a level for each from its generator.

    A family with a time limit that is no end sets `truncates`, has the `limit` in its levels and the `time` in its episodes.

    Unless first steps count, an update does not learn from the first action of an episode (see
    `disco_torch.data.alignment`), so in no family but `bandit` does it decide the episode.

    Attributes:
      splits: the splits that the family has.
    """

    splits: tuple[Split, ...] = ("train", "held-out")

    def __init__(
        self,
        num_envs: int,
        *,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        check_positive("num_envs", num_envs, "it is the number of parallel environments")
        if split not in self.splits:
            raise ValueError(f"`split` must be {' or '.join(map(repr, self.splits))}, got {split!r}.")
        if level_seed is not None and not (isinstance(level_seed, Integral) and abs(level_seed) < 2**63):
            raise ValueError(f"`level_seed` must be an integer of at most 64 bits or None, got {level_seed!r}.")
        self.num_envs, self.split, self.level_seed = num_envs, split, level_seed
        self.device = torch.device(device)

    @abstractmethod
    def draw_levels(self, uniforms: Tensor) -> Any:
        """Levels of this split, from [B, level_draws] uniform numbers: a tree of [B, ...]."""

    @abstractmethod
    def begin(self, levels: Any, uniforms: Tensor) -> Any:
        """The first state of an episode in each level, from [B, episode_draws] uniform numbers: a tree of [B, ...]."""

    @abstractmethod
    def advance(self, levels: Any, episode: Any, actions: Tensor, uniforms: Tensor) -> tuple[Any, Tensor, Tensor]:
        """One step within an episode.

        Args:
          levels, episode: trees of [B, ...].
          actions: [B] integers.
          uniforms: [B, step_draws].

        Returns:
          The next state, the rewards [B] float32, and whether the episode ended [B] bool. The state after an end is
          only drawn, never stepped on.
        """

    @abstractmethod
    def observe(self, levels: Any, episode: Any) -> Tensor:
        """What an agent sees, [B, ...] float32."""

    def picture(self, levels: Any, episode: Any) -> Tensor:
        """What an image shows, [B, ...] within 0 and 1: what the agent sees, unless the family paints something else."""
        return self.observe(levels, episode)

    def start(self, level_uniforms: Tensor, episode_uniforms: Tensor) -> tuple[LevelState, EnvStep]:
        """Draws levels and begins an episode in each, from uniform numbers [B, level_draws] and [B, episode_draws]."""
        levels = self.draw_levels(level_uniforms)
        state = LevelState(levels, self.begin(levels, episode_uniforms))
        no = torch.zeros(level_uniforms.shape[0], dtype=torch.bool, device=level_uniforms.device)
        observations = self.observe(levels, state.episode)
        final = observations if self.truncates else None
        return state, row_of(observations, no.float(), no, is_first=~no, final_observations=final)

    def step_with(self, state: LevelState, actions: Tensor, uniforms: Tensor) -> tuple[LevelState, EnvStep]:
        """One step from uniform numbers, [B, step_draws + episode_draws]; after an end the next episode begins at once."""
        levels, steps = state.levels, self.step_draws
        last, rewards, ends = self.advance(levels, state.episode, actions, uniforms[:, :steps])
        cut = ~ends & (last.time >= levels.limit) if self.truncates else None
        over = ends if cut is None else ends | cut
        # A new episode is begun in every environment, used or not: nothing depends on the data but the numbers.
        episode = select_envs(over, self.begin(levels, uniforms[:, steps:]), last) if self.autoreset else last
        observations = self.observe(levels, episode)
        final = None if cut is None else select_envs(cut, self.observe(levels, last), observations)
        return LevelState(levels, episode), row_of(observations, rewards, ends, over, cut, final)

    def draw_remainder(self, uniforms: Tensor) -> Tensor:
        """For families that split levels by a number's remainder by 5: 0 is held out, 1 for validation, else to train."""
        low, high = {"train": (2, 4), "validation": (1, 1), "held-out": (0, 0)}[self.split]
        return draw_integers(uniforms, low, high)

    def draw_pair(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Two numbers in [0, 1), [B] each, from [B, 5] uniform ones, for families that split levels by quantities.

        Each lies in one of ten ranges, numbered from 0; the sum of both numbers has the remainder of the split by 5.
        """
        u = uniforms.float().unbind(1)
        first = draw_integers(u[0], 0, 9)
        second = (self.draw_remainder(u[1]) - first) % 5 + 5 * draw_integers(u[2], 0, 1)
        return (first + u[3]) / 10, (second + u[4]) / 10

    def _level_uniforms(self, generator: torch.Generator) -> Tensor:
        # Drawn in any case: the episodes of a generator then do not depend on whether it draws the levels too.
        drawn = super()._level_uniforms(generator)
        if self.level_seed is None:
            return drawn
        own = torch.Generator().manual_seed(self.level_seed)
        return torch.rand(1, self.level_draws, generator=own, dtype=torch.float32).to(self.device).expand_as(drawn)

    def render(self, state: LevelState | None = None) -> np.ndarray | None:
        """The picture of environment 0, planes as colours and numbers as a row of cells; None without a state."""
        if state is None:
            return None
        one = tree_map(lambda x: x[:1], state)
        return draw_planes(self.picture(one.levels, one.episode)[0].cpu().numpy())


def draw_planes(planes: np.ndarray, cell: int = 16) -> np.ndarray:
    """An image of numbers in [0, 1], [planes, rows, columns] or less: [rows * cell, columns * cell, 3] uint8, dark at 0.

    Where planes overlap, the first one is seen.
    """
    planes = planes.reshape(-1, *([1, *planes.shape][-2:]))  # [planes, rows, columns]
    image = np.full((*planes.shape[1:], 3), 32.0)
    for i in reversed(range(len(planes))):
        colour = np.array(COLOURS[i % len(COLOURS)])
        image += planes[i, :, :, None] * (colour - image)
    return image.round().astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
