"""Chains by their rules, in levels made by hand."""

from __future__ import annotations

import pytest
import torch
from playing import mean_returns

from disco_torch.envs import Chain
from disco_torch.envs.chain import NOISE_BITS, ChainEpisode, ChainLevel

STILL = (0.5, 0.5, 0.5) + (0.0,) * NOISE_BITS


def level(**changes) -> ChainLevel:
    """Five positions with the keys 0, 2, 1, 1; no noise, no bait, no delay, a reward of 1, 15 steps."""
    values = {"keys": [0, 2, 1, 1, 0, 0], "length": 5, "noise": 0.0, "bait": 0.0, "delay": 0, "spread": 0.0, "limit": 15}
    return ChainLevel(**{name: torch.tensor([value]) for name, value in (values | changes).items()})


def episode(position: int, time: int = 0, waited: int = 0) -> ChainEpisode:
    return ChainEpisode(*(torch.tensor([x]) for x in (position, time, waited, [False] * NOISE_BITS)))


def advance(rules: ChainLevel, state: ChainEpisode, action: int, uniforms=STILL):
    state, reward, ends = Chain(1, length=6).advance(rules, state, torch.tensor([action]), torch.tensor([uniforms]))
    return state, round(reward.item(), 6), ends.item()


def test_the_keys_lead_to_the_reward():
    state, rewards = episode(0), []
    for action in (0, 2, 1, 1):
        state, reward, ends = advance(level(), state, action)
        rewards.append(reward)
    assert rewards == [0, 0, 0, 1] and ends and state.position.item() == 4


def test_one_wrong_action_stays_and_the_other_goes_back():
    for position, key in enumerate((0, 2, 1, 1)):
        places = [advance(level(), episode(position), (key + i) % 3)[0].position.item() for i in range(3)]
        assert places == [position + 1, position, max(position - 1, 0)]


def test_the_bait_is_paid_for_staying():
    rules = level(bait=0.01)
    assert [advance(rules, episode(1), action)[1] for action in range(3)] == [0.01, 0, 0]
    assert advance(level(bait=0.01, delay=2), episode(4), 1)[1] == 0, "nothing but waiting at the end"


def test_the_reward_comes_late():
    rules = level(delay=2)
    state, reward, ends = advance(rules, episode(3, time=12), 1)
    assert (reward, ends, state.position.item(), state.waited.item()) == (0, False, 4, 0)
    state, reward, ends = advance(rules, state, 2)  # would go back elsewhere
    assert (reward, ends, state.position.item()) == (0, False, 4)
    assert advance(rules, state, 0)[1:] == (1, True)


def test_the_spread_of_the_reward():
    for uniform, reward in [(0.0, 0.6), (0.5, 1.0), (0.75, 1.2)]:
        assert advance(level(spread=0.4), episode(3), 1, (0.5, 0.5, uniform, *STILL[3:]))[1] == pytest.approx(reward)


def test_noise_moves_anywhere():
    noisy = level(noise=0.2)
    places = [advance(noisy, episode(2), 1, (0.1, u, *STILL[2:]))[0].position.item() for u in (0.1, 0.5, 0.9)]
    assert places == [3, 2, 1]
    assert advance(noisy, episode(2), 1, (0.3, 0.9, *STILL[2:]))[0].position.item() == 3


def test_time_runs_out():
    assert advance(level(), episode(2, time=13), 0)[1:] == (0, False)
    assert advance(level(), episode(2, time=14), 0)[1:] == (0, True)
    assert advance(level(), episode(3, time=14), 1)[1:] == (1, True)


def test_observations():
    env = Chain(1, length=6)
    state = ChainEpisode(*(torch.tensor([x]) for x in (2, 3, 0, [True, False, True])))
    assert env.observe(level(), state)[0].tolist() == pytest.approx([0, 0, 1, 0, 0, 0, 0.8, 1, 0, 1])


def test_bits_mean_nothing_and_are_fair():
    env = Chain(4000, length=6)
    generator = torch.Generator().manual_seed(0)
    state, first = env.reset(generator)
    _, second = env.step(state, torch.zeros(4000, dtype=torch.long), generator)
    for row in (first, second):
        assert (row.observations[:, -NOISE_BITS:].mean(0) - 0.5).abs().max() < 0.05
    assert not torch.equal(first.observations[:, -NOISE_BITS:], second.observations[:, -NOISE_BITS:])


def keys_of(state) -> torch.Tensor:
    return state.levels.keys.gather(1, state.episode.position[:, None])[:, 0]


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_keys_beat_staying_and_staying_beats_nothing(split):
    env, generator = Chain(2000, split=split, level_seed=None), torch.Generator().manual_seed(7)
    best, stay = mean_returns(env, keys_of, 150), mean_returns(env, lambda state: (keys_of(state) + 1) % 3, 150)
    random = mean_returns(env, lambda state: torch.randint(3, (2000,), generator=generator), 150)
    levels = env.reset(torch.Generator().manual_seed(0))[0].levels
    sure = (levels.noise == 0) & (levels.spread < 0.05)
    assert sure.sum() > 20 and (best[sure] > 0.95).all()
    assert best.mean() > 0.95 and random.mean() < 0.45
    calm = levels.noise == 0
    assert torch.allclose(stay[calm], (levels.bait * levels.limit)[calm], atol=1e-5) and stay[calm].max() < 0.301


def test_a_wasted_first_action_decides_nothing():
    env = Chain(2000, level_seed=None)

    def wrong_at_first(state):
        return torch.where(state.episode.time == 0, (keys_of(state) + 2) % 3, keys_of(state))

    assert torch.allclose(mean_returns(env, wrong_at_first, 150).mean(), mean_returns(env, keys_of, 150).mean(), atol=0.03)


def test_levels_and_the_split():
    for split in ("train", "held-out"):
        levels = Chain(3000, split=split, level_seed=None).reset(torch.Generator().manual_seed(1))[0].levels
        assert (((levels.keys.sum(1) + levels.length) % 3 == 0) == (split == "held-out")).all()
        assert levels.length.unique().tolist() == list(range(4, 11)) and levels.delay.unique().tolist() == list(range(6))
        assert torch.equal(levels.limit, 3 * levels.length + levels.delay)
        used = torch.arange(10) < levels.length[:, None] - 1
        assert (levels.keys[~used] == 0).all(), "what is not used does not tell levels apart"
        counts = torch.bincount(levels.keys[used], minlength=3) / used.sum()
        assert ((counts - 1 / 3).abs() < 0.03).all()
        assert 0.45 < (levels.noise == 0).float().mean() < 0.55 and levels.noise.max() <= 0.2


def test_lengths():
    assert Chain(2, length=4).observation_example.shape == (8,)
    with pytest.raises(ValueError, match=r"`length` must be at least 4, the shortest chain of a level, got 3"):
        Chain(1, length=3)
