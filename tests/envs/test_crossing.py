"""Crossing by its rules: how cars drive, what a hit and a crossing do; levels and splits; that it can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of, mask_of, mean_return, text_of

from disco_torch.envs.crossing import DOWN, STAY, TIME_LIMIT, UP, Crossing, CrossingEpisode, CrossingLevels

EMPTY = "......"


def level(*lanes: str, column=2, heading=1, period=1, hit_ends=False) -> CrossingLevels:
    """A road of the given lanes, all with one direction and speed."""
    cars = mask_of(EMPTY, *lanes, *[EMPTY] * (7 - len(lanes)))
    every = torch.ones(1, 8, dtype=torch.long)
    start, column = torch.tensor([len(lanes) + 2]), torch.tensor([column])
    return CrossingLevels(start, column, cars, heading * every, period * every, torch.tensor([hit_ends]))


def walker(row, clock=0, lead=0) -> CrossingEpisode:
    return CrossingEpisode(torch.tensor([clock]), torch.tensor([row]), torch.full((1, 8), lead))


def step(levels, episode, action):
    """The walker's row after a step, its reward and end."""
    episode, rewards, ends = Crossing(1).advance(levels, episode, torch.tensor([action]), torch.zeros(1, 0))
    return episode.row.item(), pytest.approx(rewards.item()), ends.item()


def cars(levels, clock, lead=0):
    """The lane in row 1 as it is shown at a time, and as it is shown to be next."""
    planes = Crossing(1).observe(levels, walker(3, clock, lead))[0]
    return text_of(planes[1])[1], text_of(planes[2])[1]


@pytest.mark.parametrize(
    ("heading", "period", "clock", "now", "then"),
    [
        (1, 1, 0, "x..x..", ".x..x."),
        (1, 1, 4, ".x..x.", "..x..x"),
        (-1, 1, 1, "..x..x", ".x..x."),
        (-1, 1, 6, "x..x..", "..x..x"),
        (1, 2, 0, "x..x..", "x..x.."),
        (1, 2, 1, "x..x..", ".x..x."),
        (1, 3, 5, ".x..x.", "..x..x"),
    ],
)
def test_cars_drive_around(heading, period, clock, now, then):
    assert cars(level("x..x..", heading=heading, period=period), clock) == (now, then)


def test_a_lead_is_time_that_has_passed():
    levels = level("xx....", heading=-1, period=2)
    assert [cars(levels, 3, lead=5)] == [cars(levels, 8)]


def test_walking_up_and_down():
    levels = level(EMPTY, EMPTY, EMPTY)  # a walk begins in row 5
    assert step(levels, walker(3), UP) == (2, 0.1, False)
    assert step(levels, walker(3), STAY) == (3, 0, False)
    assert step(levels, walker(3), DOWN) == (4, -0.1, False)
    assert step(levels, walker(5), DOWN) == (5, 0, False), "nobody walks further back than the start"


def test_reaching_the_far_side_pays_and_begins_the_next_walk():
    assert step(level(EMPTY, EMPTY), walker(1), UP) == (4, 1.1, False)


@pytest.mark.parametrize("hit_ends", [False, True])
def test_a_car_throws_back_and_may_end_the_episode(hit_ends):
    """The walker is in column 2; a car that is in column 1 of row 1 will be in column 2."""
    levels = level(".x....", EMPTY, EMPTY, hit_ends=hit_ends)
    assert step(levels, walker(2), UP) == (5, -0.3, hit_ends), "walked into"
    assert step(levels, walker(1), STAY) == (5, -0.4, hit_ends), "run over"
    assert step(levels, walker(2), STAY) == (2, 0, False)
    assert step(levels, walker(1, clock=1), STAY) == (1, 0, False), "the car has passed"


def test_the_time_limit():
    levels = level(EMPTY)
    assert not step(levels, walker(3, clock=TIME_LIMIT - 2), STAY)[2]
    assert step(levels, walker(3, clock=TIME_LIMIT - 1), STAY)[2]


def test_no_car_reaches_the_row_before_the_road():
    """So the first step of an episode, which never learns, cannot be hit."""
    env = Crossing(500, level_seed=None)
    generator = torch.Generator().manual_seed(0)
    state, _ = env.reset(generator)
    state, row = env.step(state, torch.full((500,), UP), generator)
    assert (state.episode.row == state.levels.start - 1).all() and torch.allclose(row.rewards, torch.tensor(0.1))


@pytest.mark.parametrize(
    ("split", "lanes", "traffic"),
    [("train", {3, 5}, {"x.....", "x..x..", "xxx..."}), ("held-out", {4}, {"xx...."})],
)
def test_splits_differ_in_lanes_and_cars(split, lanes, traffic):
    levels = levels_of(Crossing(300, split=split, level_seed=None))
    assert set(levels.cars.any(2).sum(1).tolist()) == lanes
    assert torch.equal(levels.cars.any(2).sum(1) + 2, levels.start)
    seen = {line for mask in levels.cars for line in text_of(mask)}
    assert seen == traffic | {EMPTY} and not levels.cars[:, 0].any()
    assert set(levels.period.flatten().tolist()) == {1, 2, 3} and set(levels.column.tolist()) == set(range(6))


def look(state):
    """Goes up if no car will be there, else stays if none will be here, else goes down."""
    env = Crossing(len(state.levels.start))
    then = env.observe(state.levels, state.episode)[:, 2]  # [B, rows, columns]
    column = state.levels.column[:, None, None].expand(-1, 8, 1)
    blocked = then.gather(2, column)[:, :, 0] > 0  # [B, rows]
    above, here = (blocked.gather(1, (state.episode.row - back).clamp(min=0)[:, None])[:, 0] for back in (1, 0))
    return torch.where(~above, UP, torch.where(~here, STAY, DOWN))


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_looking_beats_random_play(split):
    env = Crossing(128, split=split, level_seed=None)
    good, random = mean_return(env, look), mean_return(env, None)
    assert good > 4 and random < 0.5


def test_errors():
    with pytest.raises(ValueError, match=r"`rows` must be at least 6, so that every level fits, got 5"):
        Crossing(1, rows=5)
    with pytest.raises(ValueError, match=r"`columns` must be at least 5, so that every level fits, got 4"):
        Crossing(1, columns=4)
