"""Bricks by its rules: how the ball bounces, what a brick pays, when it ends; levels and splits; that it can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of, mask_of, mean_return, text_of

from disco_torch.envs.bricks import LEFT, RIGHT, STAY, TIME_LIMIT, Bricks, BricksEpisode, BricksLevels

NO_DRAWS = torch.zeros(1, 0)


def level(*wall: str, width=6, paddle_width=2, stride=1, value=0.5) -> BricksLevels:
    lines = wall or ("......", "xxxxxx")
    mask = mask_of(*lines, *["......"] * (8 - len(lines)))
    numbers = [torch.tensor([number]) for number in (width, paddle_width, stride, value)]
    return BricksLevels(numbers[0], mask, *numbers[1:])


def ball(row, column, down, right, paddle=0, bricks=None, clock=0) -> BricksEpisode:
    numbers = [torch.tensor([number]) for number in (clock, row, column, down, right, paddle)]
    return BricksEpisode(*numbers, level().wall if bricks is None else bricks)


def step(levels, episode, action=STAY):
    """The ball's (row, column, down, right) after a step, its reward and end, and the whole state."""
    episode, rewards, ends = Bricks(1).advance(levels, episode, torch.tensor([action]), NO_DRAWS)
    ball = tuple(int(x) for x in (episode.row, episode.column, episode.down, episode.right))
    return ball, rewards.item(), ends.item(), episode


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((4, 2, 1, 1), (5, 3, 1, 1)),
        ((4, 2, -1, -1), (3, 1, -1, -1)),
        ((4, 1, 1, -1), (5, 0, 1, 1)),  # the left side turns it
        ((4, 4, 1, 1), (5, 5, 1, -1)),  # the right side
        ((1, 2, -1, 1), (0, 3, 1, 1)),  # the top
        ((1, 4, -1, 1), (0, 5, 1, -1)),  # a corner
    ],
)
def test_the_ball_flies_on_diagonals_and_bounces_off_the_sides(before, after):
    empty_ahead = mask_of("......", "......", "......", "x.....", *["......"] * 4)
    now, reward, ends, _ = step(level(), ball(*before, bricks=empty_ahead))
    assert now == after and reward == 0 and not ends


def test_a_narrow_board_has_its_side_further_left():
    now, *_ = step(level(width=4), ball(4, 2, 1, 1))
    assert now == (5, 3, 1, -1)


def test_a_brick_pays_disappears_and_throws_the_ball_back():
    now, reward, ends, episode = step(level(value=0.5), ball(2, 2, -1, 1))
    assert now == (2, 2, 1, 1) and reward == 0.5 and not ends
    assert text_of(episode.bricks[0])[1] == "xxx.xx"
    from_above, reward, _, _ = step(level(), ball(0, 2, 1, 1))
    assert from_above == (0, 2, 1, 1) and reward == 0.5, "thrown back between wall and top, it turns at once"


def test_the_wall_comes_back():
    last = mask_of("......", "...x..", *["......"] * 6)
    _, reward, ends, episode = step(level(), ball(2, 2, -1, 1, bricks=last))
    assert reward == 0.5 and not ends and torch.equal(episode.bricks, level().wall)


@pytest.mark.parametrize(
    ("paddle", "action", "after"),
    [
        (3, STAY, (6, 3, -1, 1)),
        (2, STAY, (6, 3, -1, 1)),
        (4, LEFT, (6, 3, -1, -1)),  # a moving paddle takes the ball along
        (3, LEFT, (6, 3, -1, -1)),
        (1, RIGHT, (6, 3, -1, 1)),
    ],
)
def test_the_paddle_throws_the_ball_back(paddle, action, after):
    now, reward, ends, _ = step(level(), ball(6, 2, 1, 1, paddle=paddle), action)
    assert now == after and reward == 0 and not ends


@pytest.mark.parametrize(("paddle", "action"), [(4, STAY), (1, STAY), (2, LEFT), (3, RIGHT), (0, RIGHT)])
def test_a_missed_ball_ends_the_episode(paddle, action):
    _, reward, ends, _ = step(level(), ball(6, 2, 1, 1, paddle=paddle), action)
    assert ends and reward == 0


def test_the_paddle_stays_on_the_board():
    for stride, path in ((1, [0, 0, 1, 2, 2, 1]), (2, [0, 0, 2, 2, 2, 0])):
        episode, levels = ball(3, 2, -1, 1, paddle=1), level(width=4, stride=stride)
        for action, column in zip([LEFT, LEFT, RIGHT, RIGHT, RIGHT, LEFT], path, strict=True):
            *_, moved = step(levels, episode, action)
            episode = ball(3, 2, -1, 1, paddle=moved.paddle.item())
            assert moved.paddle.item() == column


def test_the_time_limit():
    for clock, over in ((TIME_LIMIT - 2, False), (TIME_LIMIT - 1, True)):
        _, _, ends, episode = step(level(), ball(4, 2, -1, 1, clock=clock))
        assert ends == over and episode.clock == clock + 1


def test_observations():
    planes = Bricks(1).observe(level(width=5, paddle_width=2), ball(4, 1, -1, 1, paddle=3))[0]
    solid, here, ahead, bricks = (text_of(plane) for plane in planes)
    assert solid == [".....x"] * 7 + ["...xxx"]
    assert here == ["......"] * 4 + [".x...."] + ["......"] * 3
    assert ahead == ["......"] * 3 + ["..x..."] + ["......"] * 4
    assert bricks == ["......", "xxxxxx"] + ["......"] * 6


@pytest.mark.parametrize(("split", "widths", "brick_rows"), [("train", {4, 6}, {1, 3}), ("held-out", {5}, {2})])
def test_splits_differ_in_width_and_rows_of_bricks(split, widths, brick_rows):
    levels = levels_of(Bricks(500, split=split, level_seed=None))
    assert set(levels.width.tolist()) == widths
    rows = torch.arange(8)
    highest = torch.where(levels.wall.any(2), rows, 9).amin(1)
    lowest = torch.where(levels.wall.any(2), rows, -1).amax(1)
    assert (lowest == 3).all() and (levels.wall[:, 3, 0]).all()
    counted = torch.bincount(4 - highest)
    assert set(counted.topk(len(brick_rows)).indices.tolist()) == brick_rows and max(brick_rows) == len(counted) - 1
    assert not (levels.wall & (torch.arange(6) >= levels.width[:, None, None])).any()
    assert (levels.stride <= levels.paddle_width).all() and set(levels.value.tolist()) == {0.5, 1.0}


def follow(state):
    """Keeps the paddle under the ball."""
    episode, levels = state.episode, state.levels
    target = episode.column + episode.right
    return torch.where(
        target < episode.paddle, LEFT, torch.where(target >= episode.paddle + levels.paddle_width, RIGHT, STAY)
    )


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_following_the_ball_beats_random_play(split):
    env = Bricks(128, split=split, level_seed=None)
    good, random = mean_return(env, follow), mean_return(env, None)
    assert good > 2 * random and random < 1.5


def test_the_ball_reaches_cells_of_both_colours():
    env = Bricks(64, level_seed=None)
    generator = torch.Generator().manual_seed(0)
    state, _ = env.reset(generator)
    colours, goes_on = [], torch.ones(64, dtype=torch.bool)
    for _ in range(40):
        state, row = env.step(state, follow(state), generator)
        goes_on &= ~row.episode_ends  # the next episode may begin on the other colour
        colours.append((state.episode.row + state.episode.column) % 2)
    share = torch.stack(colours).float().mean(0)[goes_on]
    assert len(share) > 40 and ((share > 0) & (share < 1)).all()


def test_errors():
    with pytest.raises(ValueError, match=r"`rows` must be at least 7, so that every level fits, got 6"):
        Bricks(1, rows=6)
    with pytest.raises(ValueError, match=r"`columns` must be at least 4, so that every level fits, got 3"):
        Bricks(1, columns=3)
