"""Human-normalised scores: the constants are those of the papers, and of the games as they are played here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ale_py import roms

from disco_torch.analysis import ATARI_RETURNS, aggregate, atari_scores
from disco_torch.envs import make_env


def test_a_uniform_policy_is_0_and_a_human_is_1() -> None:
    returns = {f"atari/{game}": [low, high, (low + high) / 2] for game, (low, high) in ATARI_RETURNS.items()}
    scores = atari_scores(returns)
    assert len(scores) == 57 and set(scores) <= set(roms.get_all_rom_ids())
    for score in scores.values():
        np.testing.assert_allclose(score, [0.0, 1.0, 0.5], rtol=0, atol=1e-12)


def test_the_constants_are_those_of_the_papers() -> None:
    """Sums over the published table, and scores that follow from it: half the table would not do."""
    low, high = np.array(list(ATARI_RETURNS.values())).T
    assert round(low.sum(), 1) == 50864.9 and round(high.sum(), 1) == 606494.2
    known = {"Breakout": 385.5, "MsPacman": 3085.6, "Pong": 19.5, "MontezumaRevenge": 0.0, "Skiing": -13062.3}
    scores = atari_scores({name: [value] for name, value in known.items()})
    expected = {"breakout": 13.326, "ms_pacman": 0.418, "pong": 1.139, "montezuma_revenge": 0.0, "skiing": 0.316}
    assert {name: round(float(score[0]), 3) for name, score in scores.items()} == expected


@pytest.mark.parametrize(("game", "num_envs", "within"), [("breakout", 24, 0.8), ("boxing", 2, 6.0), ("freeway", 2, 1.0)])
def test_random_play_scores_what_the_table_says(game: str, num_envs: int, within: float) -> None:
    """The first episode of each environment, so that long ones count as much as short ones."""
    env, generator = make_env(f"atari/{game}", num_envs, height=8, width=8), torch.Generator().manual_seed(0)
    _, row = env.reset(generator)
    returns, playing = torch.zeros(num_envs), torch.ones(num_envs, dtype=torch.bool)
    while playing.any():
        _, row = env.step(None, torch.randint(env.num_actions, (num_envs,), generator=generator), generator)
        returns += row.rewards * playing
        playing &= ~row.episode_ends
    env.close()
    assert abs(float(returns.mean()) - ATARI_RETURNS[game][0]) < within


def test_scores_go_on_to_aggregates() -> None:
    interval = aggregate(atari_scores({"Pong": [14.6, 14.6], "Breakout": [1.7, 30.5]}))
    assert interval.mean == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (
            {"atari/adventure": [0.0]},
            "`returns` must be of the 57 games in ATARI_RETURNS, got 'atari/adventure'; leave",
        ),
        ({"pong": [0.0], "atari/Pong": [0.0]}, "`returns` must name each game once, got 'pong' again as 'atari/Pong'"),
    ],
)
def test_other_games_are_refused(returns: dict[str, list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        atari_scores(returns)
