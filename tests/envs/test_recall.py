"""Recall by its rules, in levels made by hand."""

from __future__ import annotations

import pytest
import torch
from playing import mean_returns

from disco_torch.envs import Recall
from disco_torch.envs.recall import NOISE_BITS, RecallEpisode, RecallLevel

STILL = (0.9, 0.5) + (0.9,) * NOISE_BITS
SPLITS = {"train": {2, 3, 4}, "validation": {1}, "held-out": {0}}
splits = pytest.mark.parametrize("split", sorted(SPLITS))


def level(**changes) -> RecallLevel:
    """Three of four cues, whose answers are 2, 0 and 3; the choice comes 5 steps after the cue, and there are no decoys."""
    values = {"answers": [2, 0, 3, 1], "cues": 3, "delay": 5, "decoys": 0.0, "penalty": 0.25}
    return RecallLevel(**{name: torch.tensor([value]) for name, value in (values | changes).items()})


def episode(cue: int, time: int = 0, decoy: int = -1) -> RecallEpisode:
    return RecallEpisode(*(torch.tensor([x]) for x in (cue, time, decoy, [False] * NOISE_BITS)))


def advance(rules: RecallLevel, state: RecallEpisode, action: int, uniforms=STILL):
    state, reward, ends = Recall(1).advance(rules, state, torch.tensor([action]), torch.tensor([uniforms]))
    return state, reward.item(), ends.item()


def shown(rules: RecallLevel, state: RecallEpisode) -> list[int]:
    return Recall(1).observe(rules, state)[0].int().tolist()


@pytest.mark.parametrize(("cue", "answer"), [(0, 2), (1, 0), (2, 3)])
@pytest.mark.parametrize("action", range(4))
def test_the_last_action_is_the_choice(cue, answer, action):
    rules, state = level(), episode(cue)
    seen = [shown(rules, state)]
    for _ in range(5):
        state, reward, ends = advance(rules, state, action)
        assert reward == 0 and not ends
        seen.append(shown(rules, state))
    cue_row = [int(i == cue) for i in range(4)]
    assert seen == [[*cue_row, 1, 0, 0, 0, 0], *[[0] * 9] * 4, [0, 0, 0, 0, 0, 1, 0, 0, 0]]
    state, reward, ends = advance(rules, state, action)
    assert ends and reward == (1.0 if action == answer else -0.25)


def test_decoys_are_not_marked_as_the_cue():
    state, _, _ = advance(level(decoys=0.5), episode(1), 0, (0.4, 0.99) + (0.0,) * NOISE_BITS)
    assert state.decoy.item() == 2 and state.cue.item() == 1
    assert shown(level(), state) == [0, 0, 1, 0, 0, 0, 1, 1, 1]
    for uniform, time in ((0.6, 0), (0.4, 4)):  # not drawn; and never with the choice
        assert advance(level(decoys=0.5), episode(1, time), 0, (uniform, 0.9, 0, 0, 0))[0].decoy.item() == -1


def test_every_cue_of_a_level_is_shown():
    env = Recall(4000, level_seed=None)
    state, row = env.reset(torch.Generator().manual_seed(0))
    assert (row.observations[:, :4].sum(1) == 1).all() and (row.observations[:, 4] == 1).all()
    for number in (2, 3, 4):
        seen = state.episode.cue[state.levels.cues == number]
        assert set(seen.tolist()) == set(range(number))
    assert set(row.observations[:, 6:].flatten().tolist()) == {0.0, 1.0}


@splits
@pytest.mark.parametrize(("cues", "delay"), [(4, 20), (2, 9), (6, 31)])
def test_levels_and_the_split(split, cues, delay):
    env = Recall(4000, cues=cues, delay=delay, split=split, level_seed=None)
    levels = env.reset(torch.Generator().manual_seed(0))[0].levels
    assert set(((levels.cues + levels.delay + levels.answers[:, 0]) % 5).tolist()) == SPLITS[split]
    assert set(levels.cues.tolist()) == set(range(2, cues + 1))
    assert levels.delay.min() >= 5 and levels.delay.max() <= delay
    if cues > 2:
        assert set(levels.delay.tolist()) == set(range(5, delay + 1))
    assert torch.equal(levels.answers.sort(1).values, torch.arange(cues).expand(4000, -1)), "an answer for each cue"
    assert 0.45 < (levels.decoys == 0).float().mean() < 0.55 and 0.4 < levels.decoys.max() <= 0.5
    assert levels.penalty.min() >= 0 and 0.9 < levels.penalty.max() <= 1


@splits
def test_players_with_and_without_memory(split):
    env, generator = Recall(1000, split=split, level_seed=None), torch.Generator().manual_seed(7)
    levels = env.reset(torch.Generator().manual_seed(0))[0].levels
    remembers = mean_returns(env, lambda state: state.levels.answers.gather(1, state.episode.cue[:, None])[:, 0], 210)
    assert (remembers == 1).all()
    guesses = mean_returns(env, lambda state: state.levels.answers[:, 0], 210)
    chance = 1 / levels.cues
    torch.testing.assert_close(guesses.mean(), (chance - (1 - chance) * levels.penalty).mean(), rtol=0, atol=0.03)
    random = mean_returns(env, lambda state: torch.randint(4, (1000,), generator=generator), 210)
    assert random.mean() < guesses.mean() < 0.3


def test_errors():
    with pytest.raises(ValueError, match=r"`cues` must be at least 2, or there is nothing to remember, got 1"):
        Recall(1, cues=1)
    with pytest.raises(ValueError, match=r"`delay` must be at least 9, so that each split has levels, got 8"):
        Recall(1, delay=8)
