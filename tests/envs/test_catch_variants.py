"""Catch variants by their rules, in levels made by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from playing import mean_returns

from disco_torch.envs import CatchVariants
from disco_torch.envs.catch_variants import MAX_BALLS, ORDERS, CatchEpisode, CatchLevel

NEVER, ALWAYS = 0.0, 1.0


def level(num_envs: int = 1, **changes) -> CatchLevel:
    """A 5x5 board, a paddle of 1, one ball, no wind, left-stay-right, 1 and -1."""
    values = {"width": 5, "height": 5, "paddle": 1, "balls": 1, "gap": 2, "order": 0, "moves": ORDERS[0], "gust": NEVER}
    values |= {"lean": 0.5, "catch": 1.0, "miss": -1.0, "random_start": False} | changes
    return CatchLevel(**{name: torch.tensor([value] * num_envs) for name, value in values.items()})


def episode(paddle: int, *balls: tuple[int, int]) -> CatchEpisode:
    rows, columns = zip(*[*balls, *[(9, 0)] * (MAX_BALLS - len(balls))], strict=True)
    return CatchEpisode(*(torch.tensor([x]) for x in (paddle, rows, columns)))


def advance(rules: CatchLevel, state: CatchEpisode, action: int, uniforms: tuple[float, float] = (0.5, 0.5)):
    env = CatchVariants(1)
    state, reward, ends = env.advance(rules, state, torch.tensor([action]), torch.tensor([uniforms]))
    return state, reward.item(), ends.item()


def follow(levels: CatchLevel, state: CatchEpisode) -> torch.Tensor:
    """The action that brings the paddle below the lowest ball, or away from it where it must not be caught."""
    flies = state.rows < levels.height[:, None] - 1
    lowest = state.rows.masked_fill(~flies, -99).argmax(1, keepdim=True)
    column = state.columns.gather(1, lowest)[:, 0]
    offset = column - state.paddle
    towards = torch.where(offset < 0, -1, torch.where(offset >= levels.paddle, 1, 0))
    centre = state.paddle + (levels.paddle - 1) / 2
    at_left, at_right = state.paddle == 0, state.paddle == levels.width - levels.paddle
    away = torch.where(column > centre, -1, 1)
    # From a corner there is one way out.
    away = torch.where(at_left & (towards == 0), 1, torch.where(at_right & (towards == 0), -1, away))
    move = torch.where(levels.catch > levels.miss, towards, away)
    return (levels.moves == move[:, None]).float().argmax(1)


def worst(levels: CatchLevel, best: torch.Tensor) -> torch.Tensor:
    """The action that moves the other way, or to the left where it is best to stay."""
    move = levels.moves.gather(1, best[:, None])
    return (levels.moves == torch.where(move == 0, -1, -move)).float().argmax(1)


def test_known_boards():
    env = CatchVariants(1, rows=6, columns=6)
    rules = level(paddle=2, balls=3)
    shown = env.observe(rules, episode(3, (2, 1), (0, 4), (-2, 0)))[0]
    board = torch.zeros(6, 6)
    board[3, 1] = board[1, 4] = board[5, 3] = board[5, 4] = 1
    assert torch.equal(shown, board), "the board of 5x5 is at the bottom left, the third ball still to come"


@pytest.mark.parametrize("order", range(6))
def test_what_an_action_does_is_the_order_of_the_level(order):
    for action, move in enumerate(ORDERS[order]):
        state, reward, ends = advance(level(moves=ORDERS[order]), episode(2, (0, 0)), action)
        assert state.paddle.item() == 2 + move and (reward, ends) == (0, False)
        assert (state.rows[0, 0].item(), state.columns[0, 0].item()) == (1, 0)


def test_the_border_of_the_board_holds_the_paddle():
    assert advance(level(), episode(0, (0, 0)), 0)[0].paddle.item() == 0
    assert advance(level(), episode(4, (0, 0)), 2)[0].paddle.item() == 4
    assert advance(level(paddle=3), episode(2, (0, 0)), 2)[0].paddle.item() == 2
    assert advance(level(width=4), episode(3, (0, 0)), 2)[0].paddle.item() == 3


@pytest.mark.parametrize(("ball", "reward"), [(0, -0.25), (1, 0.75), (2, 0.75), (3, 0.75), (4, -0.25)])
def test_a_wide_paddle_catches_along_its_width(ball, reward):
    rules = level(paddle=3, catch=0.75, miss=-0.25)
    assert advance(rules, episode(1, (3, ball)), 1)[1:] == (reward, True)


def test_balls_fall_one_after_the_other_and_the_last_one_ends_the_episode():
    env, rules = CatchVariants(1), level(balls=3, gap=2)
    state = env.begin(rules, torch.tensor([[0.5, 0.5, 0.5, 0.5]]))
    assert state.rows.tolist() == [[0, -2, -4]] and state.paddle.item() == 2
    rewards, done = [], []
    for _ in range(8):
        state, reward, ends = advance(rules, dataclasses.replace(state, columns=torch.tensor([[2, 0, 2]])), 1)
        rewards.append(reward)
        done.append(ends)
    assert rewards == [0, 0, 0, 1, 0, -1, 0, 1] and done == [False] * 7 + [True]


def test_wind_moves_flying_balls_but_not_in_the_step_they_land():
    flying, landing, coming = (1, 2), (3, 2), (-1, 2)
    for uniform, column in [(0.3, 3), (0.6, 1)]:
        state, _, _ = advance(level(gust=ALWAYS), episode(0, flying, landing, coming), 1, (0.9, uniform))
        assert state.columns.tolist() == [[column, 2, 2]]
    assert advance(level(gust=0.3), episode(0, flying), 1, (0.29, 0.0))[0].columns[0, 0].item() == 3
    assert advance(level(gust=0.3), episode(0, flying), 1, (0.31, 0.0))[0].columns[0, 0].item() == 2
    assert advance(level(gust=ALWAYS, lean=1.0), episode(0, (1, 4)), 1, (0.0, 0.99))[0].columns[0, 0].item() == 4
    assert advance(level(gust=ALWAYS, lean=0.0), episode(0, (1, 0)), 1, (0.0, 0.0))[0].columns[0, 0].item() == 0


def test_starts():
    env, generator = CatchVariants(1), torch.Generator().manual_seed(0)
    draws = torch.rand(5000, env.episode_draws, generator=generator)
    centred = env.begin(level(5000, paddle=2, width=7), draws)
    assert (centred.paddle == 2).all() and centred.columns[:, 0].unique().tolist() == list(range(6))
    anywhere = env.begin(level(5000, paddle=2, width=7, random_start=True, balls=3), draws)
    assert anywhere.paddle.unique().tolist() == list(range(6))
    # In reach of the paddle with its first move wrong, and of the ball before.
    first = anywhere.columns[:, 0]
    assert (first - anywhere.paddle >= -2).all() and (first - anywhere.paddle - 1 <= 2).all()
    assert anywhere.columns.diff(dim=1).abs().max() == 2


def test_a_perfect_player_gets_everything_without_wind_even_if_its_first_move_is_wrong():
    env = CatchVariants(3000, level_seed=None)

    def policy(state):
        levels, game = state.levels, state.episode
        best = follow(levels, game)
        first = game.rows[:, 0] == 0
        return torch.where(first & (levels.catch > levels.miss), worst(levels, best), best)

    levels = env.reset(torch.Generator().manual_seed(0))[0].levels
    returns = mean_returns(env, policy, 60)
    calm = (levels.gust == 0) & (levels.catch > levels.miss)
    best = levels.balls * torch.maximum(levels.catch, levels.miss)
    assert calm.sum() > 500
    assert torch.allclose(returns[calm], best[calm], atol=1e-5)
    assert (returns / best).mean() > 0.85, "wind and several balls to dodge cost little"


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_random_player_is_much_worse(split):
    env, generator = CatchVariants(3000, split=split, level_seed=None), torch.Generator().manual_seed(5)
    random = mean_returns(env, lambda state: torch.randint(3, (3000,), generator=generator), 60)
    good = mean_returns(env, lambda state: follow(state.levels, state.episode), 60)
    assert good.mean() - random.mean() > 0.8


def test_levels_and_the_split():
    def code(levels):
        return (levels.width + levels.height + levels.paddle + levels.balls + levels.order) % 3

    for split in ("train", "held-out"):
        env = CatchVariants(4000, split=split, level_seed=None)
        levels = env.reset(torch.Generator().manual_seed(1))[0].levels
        assert ((code(levels) == 0) == (split == "held-out")).all()
        ranges = {"width": range(4, 8), "height": range(5, 8), "paddle": range(1, 4), "balls": range(1, 4)}
        ranges |= {"gap": range(2, 4), "order": range(6)}
        for name, values in ranges.items():
            assert getattr(levels, name).unique().tolist() == list(values), name
        assert torch.equal(levels.moves, torch.tensor(ORDERS)[levels.order])
        dodge = levels.catch < levels.miss
        assert 0.2 < dodge.float().mean() < 0.3 and levels.paddle[dodge].max() == 2
        assert 0.45 < (levels.gust == 0).float().mean() < 0.55 and levels.gust.max() <= 0.3
        assert torch.maximum(levels.catch, levels.miss).min() >= 0.5 and torch.minimum(levels.catch, levels.miss).min() >= -1


def test_canvases():
    assert CatchVariants(2, rows=5, columns=9).observation_example.shape == (5, 9)
    with pytest.raises(ValueError, match=r"`rows` must be at least 5, so that there is time to move, got 4"):
        CatchVariants(1, rows=4)
    with pytest.raises(ValueError, match=r"`columns` must be at least 4, so that there is somewhere to move, got 3"):
        CatchVariants(1, columns=3)
