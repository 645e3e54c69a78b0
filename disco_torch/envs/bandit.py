"""Bandits: one action, one noisy reward, and the episode is over; which arm is best depends on a context that is seen."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.boards import draw_between
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

MIN_CONTEXTS = 5
"""Least number of contexts of a canvas: each split needs one of five numbers in a row."""
MAX_ARMS = 18


@tree_dataclass
class BanditLevel:
    """Rules of a level, [B] each but `means`."""

    means: Tensor  # [B, contexts, arms] of the reward, without the offset
    contexts: Tensor  # number of contexts
    arms: Tensor  # number of different arms
    noise: Tensor  # most that is added to a reward at random
    binary: Tensor  # bool, whether rewards are 0 and 1
    offset: Tensor  # added to every reward


@tree_dataclass
class BanditEpisode:
    """The context, [B]."""

    context: Tensor


class Bandit(LevelEnvironment):
    """Contextual bandits: every episode shows a context at random and is over with the first action.

    Since all that matters is the first action, an agent learns here only if first steps count.

    What varies: the number of contexts (1 to `contexts`) and of different arms (2 to `arms`; the actions beyond do the same
    as the first ones), the mean reward of every arm in every context: 1 for the best one, which is drawn for each context,
    and for the others up to 1 minus a gap (0.1 to 0.8); noise, which adds up to 1 either way, or, in a third of the levels,
    rewards of 0 and 1 with the mean (times 0.9) as their probability; and an offset of -2 to 2 (0 in half of the levels).

    Levels are held out if `(number of contexts + number of different arms)` is a multiple of 5 and for validation if one
    more than that; no training level is either.

    Observations are [B, contexts] float32: the context one-hot.
    """

    name = "bandit"
    splits = ("train", "validation", "held-out")
    episode_draws = 1
    step_draws = 1

    def __init__(
        self,
        num_envs: int,
        *,
        arms: int = 18,
        contexts: int = 20,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if not 2 <= arms <= MAX_ARMS:
            raise ValueError(f"`arms` must be 2 to {MAX_ARMS}, got {arms}.")
        if contexts < MIN_CONTEXTS:
            raise ValueError(f"`contexts` must be at least {MIN_CONTEXTS}, so that each split has levels, got {contexts}.")
        self.num_actions, self.contexts = arms, contexts
        self.level_draws = contexts * arms + contexts + 8
        self.observation_example = torch.zeros(contexts, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._contexts = torch.arange(contexts, device=self.device)
        self._arms = torch.arange(arms, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> BanditLevel:
        A, C = self.num_actions, self.contexts
        means, best, of_level = uniforms.float().split([C * A, C, 8], dim=1)
        u = of_level.unbind(1)
        arms = draw_integers(u[0], 2, A)
        # The numbers of contexts with the remainder that the split asks for, of which one is drawn.
        least = (self.draw_remainder(u[1]) - arms - 1) % 5 + 1
        contexts = least + 5 * draw_integers(u[2], 0, (C - least) // 5)
        means = means.unflatten(1, (C, A)) * (1.0 - draw_between(u[3], 0.1, 0.8))[:, None, None]  # [B, C, A]
        best = draw_integers(best, 0, arms[:, None] - 1)  # [B, C]
        means = torch.where(self._arms == best[:, :, None], 1.0, means)
        same_as = (self._arms % arms[:, None])[:, None].expand_as(means)
        means = means.gather(2, same_as).masked_fill(self._contexts[:, None] >= contexts[:, None, None], 0.0)
        return BanditLevel(
            means=means,
            contexts=contexts,
            arms=arms,
            noise=u[4],
            binary=u[5] < 1 / 3,
            offset=torch.where(u[6] < 0.5, 0.0, draw_between(u[7], -2.0, 2.0)),
        )

    def begin(self, levels: BanditLevel, uniforms: Tensor) -> BanditEpisode:
        return BanditEpisode(draw_integers(uniforms[:, 0], 0, levels.contexts - 1))

    def advance(
        self, levels: BanditLevel, episode: BanditEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[BanditEpisode, Tensor, Tensor]:
        in_context = episode.context[:, None, None].expand(-1, 1, self.num_actions)
        mean = levels.means.gather(1, in_context)[:, 0].gather(1, actions[:, None])[:, 0]
        uniform = uniforms[:, 0].float()
        paid = torch.where(levels.binary, (uniform < 0.9 * mean).float(), mean + levels.noise * (2.0 * uniform - 1.0))
        return episode, paid + levels.offset, torch.ones_like(levels.binary)

    def observe(self, levels: BanditLevel, episode: BanditEpisode) -> Tensor:
        return (self._contexts == episode.context[:, None]).float()  # [B, contexts]
