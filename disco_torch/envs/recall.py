"""Recall: a cue is shown once, and many steps later the choice is right that it stands for. It takes a memory."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

NOISE_BITS = 3
MIN_DELAY = 5
LEAST_LONGEST = MIN_DELAY + 4
"""Least longest delay: each split needs one of five delays in a row."""


@tree_dataclass
class RecallLevel:
    """Rules of a level, [B] each but `answers` [B, cues], the right action for each cue.

    `cues` is the number of cues that are shown, `delay` the steps from the cue to the choice, `decoys` the probability that
    a step in between shows a decoy, and `penalty` what a wrong choice costs.
    """

    answers: Tensor
    cues: Tensor
    delay: Tensor
    decoys: Tensor
    penalty: Tensor


@tree_dataclass
class RecallEpisode:
    """The cue, steps so far and the decoy that is shown (-1 for none), [B] integers; [B, NOISE_BITS] bits."""

    cue: Tensor
    time: Tensor
    decoy: Tensor
    bits: Tensor


class Recall(LevelEnvironment):
    """`num_envs` tests of memory: the first observation of an episode shows a cue, the last one asks for its answer.

    Each cue has an answer of its own among `cues` actions. The right one pays 1, a wrong one costs the penalty, and the
    episode is over; all actions before do nothing. An agent without memory sees the same whatever the cue was, and is right
    in one of as many choices as the level has cues.

    What varies: the answers, the number of cues (2 to `cues`), the delay (5 to `delay` steps), decoys (in half of the levels
    a step in between shows one with a probability of up to 0.5) and the penalty (up to 1).

    Levels are held out if `(number of cues + delay + answer to the first cue)` is a multiple of 5 and for validation if one
    more than that; no training level is either.

    Observations are [B, cues + 2 + NOISE_BITS] float32: cue or decoy one-hot, whether it is the cue, whether the next action
    is the choice, and bits that are drawn anew in each step and mean nothing.
    """

    name = "recall"
    splits = ("train", "validation", "held-out")
    episode_draws = 1 + NOISE_BITS
    step_draws = 2 + NOISE_BITS

    def __init__(
        self,
        num_envs: int,
        *,
        cues: int = 4,
        delay: int = 20,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if cues < 2:
            raise ValueError(f"`cues` must be at least 2, or there is nothing to remember, got {cues}.")
        if delay < LEAST_LONGEST:
            raise ValueError(f"`delay` must be at least {LEAST_LONGEST}, so that each split has levels, got {delay}.")
        self.num_actions, self.delay = cues, delay
        self.level_draws = cues + 6
        self.observation_example = torch.zeros(cues + 2 + NOISE_BITS, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._cues = torch.arange(cues, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> RecallLevel:
        order, u = uniforms[:, : self.num_actions], uniforms[:, self.num_actions :].float().unbind(1)
        answers, cues = order.argsort(1), draw_integers(u[0], 2, self.num_actions)
        # The delays with the remainder that the split asks for, of which one is drawn.
        shortest = (self.draw_remainder(u[1]) - cues - answers[:, 0] - MIN_DELAY) % 5 + MIN_DELAY
        return RecallLevel(
            answers=answers,
            cues=cues,
            delay=shortest + 5 * draw_integers(u[2], 0, (self.delay - shortest) // 5),
            decoys=torch.where(u[3] < 0.5, 0.0, 0.5 * u[4]),
            penalty=u[5],
        )

    def begin(self, levels: RecallLevel, uniforms: Tensor) -> RecallEpisode:
        cue = draw_integers(uniforms[:, 0], 0, levels.cues - 1)
        return RecallEpisode(cue, torch.zeros_like(cue), torch.full_like(cue, -1), uniforms[:, 1:] < 0.5)

    def advance(
        self, levels: RecallLevel, episode: RecallEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[RecallEpisode, Tensor, Tensor]:
        answer = levels.answers.gather(1, episode.cue[:, None])[:, 0]
        chosen = episode.time == levels.delay
        rewards = chosen * torch.where(actions == answer, 1.0, -levels.penalty)
        time = episode.time + 1
        shows = (uniforms[:, 0] < levels.decoys) & (time < levels.delay)
        decoy = torch.where(shows, draw_integers(uniforms[:, 1], 0, levels.cues - 1), -1)
        return RecallEpisode(episode.cue, time, decoy, uniforms[:, 2:] < 0.5), rewards, chosen

    def observe(self, levels: RecallLevel, episode: RecallEpisode) -> Tensor:
        is_cue, is_choice = episode.time == 0, episode.time == levels.delay
        shown = self._cues == torch.where(is_cue, episode.cue, episode.decoy)[:, None]  # [B, cues]
        return torch.cat([shown, is_cue[:, None], is_choice[:, None], episode.bits], dim=1).float()
