"""Chains: a combination of actions leads to a reward that comes late, past small ones that come at once."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.types import tree_dataclass

NOISE_BITS = 3
MIN_LENGTH = 4
MAX_DELAY = 5


@tree_dataclass
class ChainLevel:
    """Rules of a level, [B] each but `keys` [B, length], the action that moves on from each position.

    `length` counts the positions. `noise` is the probability that a step goes anywhere. `bait` is the reward of the action
    that stays, `delay` the steps between arriving and the reward, which is 1 give or take up to `spread`. An episode ends
    after `limit` steps at the latest.
    """

    keys: Tensor
    length: Tensor
    noise: Tensor
    bait: Tensor
    delay: Tensor
    spread: Tensor
    limit: Tensor


@tree_dataclass
class ChainEpisode:
    """Position, steps so far and steps since the arrival, [B] integers; bits that mean nothing, [B, NOISE_BITS] bool."""

    position: Tensor
    time: Tensor
    waited: Tensor
    bits: Tensor


class Chain(LevelEnvironment):
    """`num_envs` chains.

    In each position one of three actions, the key, moves on; the next one (cyclically) stays and pays the bait, the third
    moves back. Whoever has arrived at the last position waits there, whatever it does, until the reward comes and ends the
    episode. A chain of `length` positions gives up after `3 length` steps, not counting the delay, without a reward.

    What varies: the keys, the length (4 to `length`), noise (none in half of the levels, else up to 0.2), the delay (0 to
    5 steps), the spread of the reward (up to 1) and the bait: staying all the time pays up to 0.3.

    Levels are held out if `(sum of the keys + length)` is a multiple of 3; no training level is one.

    Observations are [B, length + 1 + NOISE_BITS] float32: the position one-hot, the share of time that is left, and bits
    that are drawn anew in each step and mean nothing.
    """

    name = "chain"
    num_actions = 3
    episode_draws = NOISE_BITS
    step_draws = 3 + NOISE_BITS

    def __init__(
        self,
        num_envs: int,
        *,
        length: int = 10,
        split: Split = "train",
        level_seed: int | None = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if length < MIN_LENGTH:
            raise ValueError(f"`length` must be at least {MIN_LENGTH}, the shortest chain of a level, got {length}.")
        self.length = length
        self.level_draws = length + 7
        self.observation_example = torch.zeros(length + 1 + NOISE_BITS, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._positions = torch.arange(length, device=self.device)

    def draw_levels(self, uniforms: Tensor) -> ChainLevel:
        keys, u = draw_integers(uniforms[:, : self.length], 0, 2), uniforms[:, self.length :].unbind(1)
        length = draw_integers(u[0], MIN_LENGTH, self.length)
        last_key = length[:, None] - 2
        keys = keys * (self._positions < last_key)
        # The last key makes up the remainder that the split asks for.
        remainder = 0 if self.split == "held-out" else draw_integers(u[1], 1, 2)
        missing = (remainder - length - keys.sum(1)) % 3
        keys = torch.where(self._positions == last_key, missing[:, None], keys)
        delay = draw_integers(u[4], 0, MAX_DELAY)
        limit = 3 * length + delay
        return ChainLevel(
            keys=keys,
            length=length,
            noise=torch.where(u[2] < 0.5, 0.0, 0.2 * u[3]).float(),
            bait=(0.3 * u[5] / limit).float(),
            delay=delay,
            spread=u[6].float(),
            limit=limit,
        )

    def begin(self, levels: ChainLevel, uniforms: Tensor) -> ChainEpisode:
        zeros = torch.zeros_like(levels.length)
        return ChainEpisode(zeros, zeros, zeros, uniforms < 0.5)

    def advance(
        self, levels: ChainLevel, episode: ChainEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[ChainEpisode, Tensor, Tensor]:
        last = levels.length - 1
        key = levels.keys.gather(1, episode.position[:, None])[:, 0]
        chosen = (actions - key) % 3  # 0 moves on, 1 stays, 2 moves back
        move = torch.where(uniforms[:, 0] < levels.noise, draw_integers(uniforms[:, 1], 0, 2), chosen)
        move = torch.where(move == 2, -1, 1 - move)
        arrived = episode.position == last
        position = torch.where(arrived, last, (episode.position + move).clamp(min=0))
        waited = episode.waited + arrived

        time = episode.time + 1
        pays = (position == last) & (waited == levels.delay)
        reward = 1.0 + levels.spread * (2.0 * uniforms[:, 2].float() - 1.0)
        baited = ~arrived & (chosen == 1)
        rewards = pays * reward + baited * levels.bait
        return ChainEpisode(position, time, waited, uniforms[:, 3:] < 0.5), rewards, pays | (time >= levels.limit)

    def observe(self, levels: ChainLevel, episode: ChainEpisode) -> Tensor:
        position = self._positions == episode.position[:, None]  # [B, length]
        left = 1.0 - episode.time[:, None].float() / levels.limit[:, None]
        return torch.cat([position, left, episode.bits], dim=1).float()
