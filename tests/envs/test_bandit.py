"""Bandits by their rules, in levels made by hand; levels and splits; that they can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of
from playing import mean_returns

from disco_torch.envs.bandit import Bandit, BanditEpisode, BanditLevel

SPLITS = ["train", "validation", "held-out"]


def level(**changes) -> BanditLevel:
    """Two contexts and three arms, without noise and offset."""
    means = [[1.0, 0.5, 0.25], [0.0, 0.125, 1.0]] + [[0.0] * 3] * 3
    values = {"means": means, "contexts": 2, "arms": 3, "noise": 0.0, "binary": False, "offset": 0.0}
    return BanditLevel(**{name: torch.tensor([value]) for name, value in (values | changes).items()})


def pull(levels, context, arm, uniform=0.5):
    env, episode = Bandit(1, arms=3, contexts=5), BanditEpisode(torch.tensor([context]))
    _, rewards, ends = env.advance(levels, episode, torch.tensor([arm]), torch.tensor([[uniform]]))
    assert ends.all(), "one action is an episode"
    return rewards.item()


def test_an_arm_pays_its_mean_in_the_context():
    assert [[pull(level(), context, arm) for arm in range(3)] for context in range(2)] == [[1, 0.5, 0.25], [0, 0.125, 1]]
    assert pull(level(offset=-1.5), 0, 1) == -1


def test_noise_is_added_either_way():
    assert [pull(level(noise=0.5), 0, 1, uniform) for uniform in (0.0, 0.5, 0.75)] == [0.0, 0.5, 0.75]


def test_rewards_of_0_and_1():
    rules = level(binary=True, noise=0.5, offset=1.0)
    assert [pull(rules, 0, arm, 0.44) for arm in range(3)] == [2, 2, 1]
    assert [pull(rules, 0, arm, 0.46) for arm in range(3)] == [2, 1, 1], "the mean times 0.9 is the probability"


def test_observations_and_the_next_context():
    env = Bandit(2000, contexts=5, arms=3)
    state, row = env.reset(torch.Generator().manual_seed(0))
    state.levels = type(state.levels)(*(x.expand(2000, *x.shape[1:]) for x in vars(level(contexts=4)).values()))
    _, row = env.step(state, torch.zeros(2000, dtype=torch.long), torch.Generator().manual_seed(1))
    assert row.episode_ends.all() and row.is_first.all() and (row.discounts == 0).all() and not row.truncations.any()
    assert (row.observations.sum(1) == 1).all() and torch.allclose(
        row.observations.mean(0), torch.tensor([0.25] * 4 + [0]), atol=0.03
    )


@pytest.mark.parametrize(("split", "remainders"), [*zip(SPLITS, [{2, 3, 4}, {1}, {0}], strict=True)])
@pytest.mark.parametrize(("arms", "contexts"), [(18, 20), (2, 5), (4, 7)])
def test_levels_and_the_split(split, remainders, arms, contexts):
    levels = levels_of(Bandit(3000, arms=arms, contexts=contexts, split=split, level_seed=None))
    assert set(((levels.contexts + levels.arms) % 5).tolist()) == remainders
    assert set(levels.arms.tolist()) == set(range(2, arms + 1))
    if (arms, contexts) == (18, 20):
        assert set(levels.contexts.tolist()) == set(range(1, 21))
    assert levels.contexts.min() >= 1 and levels.contexts.max() <= contexts
    used = torch.arange(contexts) < levels.contexts[:, None]
    assert (levels.means[~used] == 0).all() and (levels.means.amax(2)[used] == 1).all()
    different = torch.arange(arms) < levels.arms[:, None, None]
    best = (levels.means == 1) & different
    assert (best.sum(2)[used] == 1).all(), "one best arm in each context"
    assert torch.equal(
        levels.means[:, 0].gather(1, levels.arms[:, None] % arms)[:, 0][levels.arms < arms],
        levels.means[:, 0, 0][levels.arms < arms],
    )
    others = levels.means.masked_fill(~different | best, 0).amax((1, 2))
    assert others.max() <= 0.9 and levels.noise.max() <= 1 and levels.offset.abs().max() <= 2
    assert 0.45 < (levels.offset == 0).float().mean() < 0.55 and 0.3 < levels.binary.float().mean() < 0.37


@pytest.mark.parametrize("split", SPLITS)
def test_the_best_arm_and_random_ones(split):
    env, generator = Bandit(500, split=split, level_seed=None), torch.Generator().manual_seed(7)
    levels = levels_of(env)

    def best(state):
        return state.levels.means[torch.arange(500), state.episode.context].argmax(1)

    good = mean_returns(env, best, 200) - levels.offset
    random = mean_returns(env, lambda state: torch.randint(18, (500,), generator=generator), 200) - levels.offset
    assert good.mean() > 0.9 and random.mean() < 0.45 and (good > random).float().mean() > 0.97


def test_errors():
    with pytest.raises(ValueError, match=r"`arms` must be 2 to 18, got 19"):
        Bandit(1, arms=19)
    with pytest.raises(ValueError, match=r"`contexts` must be at least 5, so that each split has levels, got 4"):
        Bandit(1, contexts=4)
