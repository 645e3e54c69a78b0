"""Gatherer by its rules: who meets whom, what it does, how runners come and go; levels and splits; that it can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of, mean_return, text_of

from disco_torch.envs.gatherer import DOWN, LEFT, RIGHT, STAY, TIME_LIMIT, UP, Gatherer, GathererEpisode, GathererLevels

NOBODY_COMES = (0.999, 0.0, 0.0, 0.0)
ROWS, COLUMNS = 6, 6


def level(period=1, value=1.0, enemy_ends=True) -> GathererLevels:
    numbers = [torch.tensor([number]) for number in (0.5, 0.5, period, value, enemy_ends)]
    return GathererLevels(*numbers)


def state(row, column, *runners, clock=0) -> GathererEpisode:
    """A player and runners as (row, column, heading, whether a treasure)."""
    present, treasure = torch.zeros(2, 1, ROWS, dtype=torch.bool).unbind(0)
    at, heading = torch.zeros(1, ROWS, dtype=torch.long), torch.ones(1, ROWS, dtype=torch.long)
    for runner_row, runner_column, runner_heading, is_treasure in runners:
        present[0, runner_row], treasure[0, runner_row] = True, is_treasure
        at[0, runner_row], heading[0, runner_row] = runner_column, runner_heading
    return GathererEpisode(*(torch.tensor([x]) for x in (clock, row, column)), present, treasure, at, heading)


def step(levels, episode, action=STAY, draws=NOBODY_COMES):
    episode, rewards, ends = Gatherer(1).advance(levels, episode, torch.tensor([action]), torch.tensor([draws]))
    return episode, rewards.item(), ends.item()


def runners(episode) -> list[tuple[int, int, int, bool]]:
    return [
        (row, episode.at[0, row].item(), episode.heading[0, row].item(), episode.treasure[0, row].item())
        for row in range(ROWS)
        if episode.present[0, row]
    ]


@pytest.mark.parametrize(
    ("action", "after"), [(STAY, (2, 3)), (UP, (1, 3)), (DOWN, (3, 3)), (LEFT, (2, 2)), (RIGHT, (2, 4))]
)
def test_the_player_moves(action, after):
    episode, reward, ends = step(level(), state(2, 3), action)
    assert (episode.row.item(), episode.column.item()) == after and reward == 0 and not ends


def test_the_player_stays_on_the_board():
    for corner, actions in (((0, 0), (UP, LEFT)), ((ROWS - 1, COLUMNS - 1), (DOWN, RIGHT))):
        for action in actions:
            episode, *_ = step(level(), state(*corner), action)
            assert (episode.row.item(), episode.column.item()) == corner


def test_runners_run_and_leave():
    episode, *_ = step(level(), state(0, 0, (1, 2, 1, True), (2, 2, -1, False), (3, 0, -1, True), (4, 5, 1, True)))
    assert runners(episode) == [(1, 3, 1, True), (2, 1, -1, False)]


def test_slow_runners_move_every_period():
    episode, columns = state(0, 0, (2, 1, 1, False)), []
    for _ in range(7):
        episode, *_ = step(level(period=3), episode)
        columns.append(episode.at[0, 2].item())
    assert columns == [1, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("runner", "action"),
    [
        ((2, 2, 1, True), STAY),  # it runs into the player
        ((2, 4, -1, True), RIGHT),  # the two pass through each other
        ((2, 5, -1, True), RIGHT),  # both come to the same cell
        ((1, 3, 1, True), UP),  # the player comes before it leaves
        ((1, 2, 1, True), UP),
    ],
)
def test_meetings(runner, action):
    episode, reward, ends = step(level(value=0.5), state(2, 3, runner), action)
    assert reward == 0.5 and not ends and not runners(episode), "a treasure pays and disappears"
    enemy = (*runner[:3], False)
    _, reward, ends = step(level(enemy_ends=True), state(2, 3, enemy), action)
    assert reward == 0 and ends
    episode, reward, ends = step(level(enemy_ends=False), state(2, 3, enemy), action)
    assert reward == -0.5 and not ends and not runners(episode)


@pytest.mark.parametrize(
    ("runner", "action"), [((2, 2, 1, False), RIGHT), ((2, 2, -1, False), STAY), ((1, 1, 1, False), UP)]
)
def test_near_misses(runner, action):
    episode, reward, ends = step(level(), state(2, 3, runner), action)
    assert reward == 0 and not ends and len(runners(episode)) == 1


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ((0.4, 0.0, 0.4, 0.0), [(1, 0, 1, True)]),
        ((0.4, 0.99, 0.6, 0.9), [(4, COLUMNS - 1, -1, False)]),
        ((0.6, 0.0, 0.4, 0.0), []),
    ],
)
def test_arrivals(draws, expected):
    episode, *_ = step(level(), state(5, 3), draws=draws)
    assert runners(episode) == expected


def test_nobody_comes_into_a_row_that_is_taken_and_who_comes_is_met_a_step_later():
    episode, *_ = step(level(), state(5, 3, (1, 2, 1, False)), draws=(0.0, 0.0, 0.0, 0.9))
    assert runners(episode) == [(1, 3, 1, False)]
    episode, reward, ends = step(level(), state(1, 0), draws=(0.0, 0.0, 0.0, 0.0))
    assert reward == 0 and not ends and runners(episode) == [(1, 0, 1, True)]
    assert step(level(), episode)[1] == 1.0


def test_the_time_limit():
    assert not step(level(), state(2, 3, clock=TIME_LIMIT - 2))[2]
    assert step(level(), state(2, 3, clock=TIME_LIMIT - 1))[2]


def test_observations():
    episode = state(2, 3, (1, 2, 1, True), (4, 0, -1, False), clock=0)
    player, enemies, treasures, ahead = (text_of(plane) for plane in Gatherer(1).observe(level(), episode)[0])
    assert player == ["......", "......", "...x..", "......", "......", "......"]
    assert enemies == ["......"] * 4 + ["x.....", "......"]
    assert treasures == ["......", "..x..."] + ["......"] * 4
    assert ahead == ["......", "...x..", "......", "......", "......", "......"]
    assert text_of(Gatherer(1).observe(level(period=2), episode)[0, 3])[4] == "x.....", "none run with the next step"


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_splits_differ_in_share_and_speed(split):
    levels = levels_of(Gatherer(2000, split=split, level_seed=None))
    between = (levels.share >= 0.4) & (levels.share < 0.5)
    assert between.all() if split == "held-out" else not between.any()
    assert levels.share.min() >= 0.25 and levels.share.max() < 0.75
    assert set(levels.period.tolist()) == ({2} if split == "held-out" else {1, 3})
    assert set(levels.value.tolist()) == {0.5, 1.0} and 0.3 < levels.enemy_ends.float().mean() < 0.7


def careful(state):
    """Takes the step after which no enemy is met and, next, the nearest treasure is nearest."""
    levels, now = state.levels, state.episode
    env = Gatherer(len(levels.period))
    nobody = torch.tensor([NOBODY_COMES]).expand(env.num_envs, -1)
    scores = []
    for action in range(5):
        after, rewards, ends = env.advance(levels, now, torch.full((env.num_envs,), action), nobody)
        far = (torch.arange(ROWS) - after.row[:, None]).abs() + (after.at - after.column[:, None]).abs()  # [B, rows]
        nearest = torch.where(after.present & after.treasure, far, 20).amin(1)
        scores.append(10 * rewards - 0.1 * nearest - 10 * ends.float())
    return torch.stack(scores).argmax(0)


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_being_careful_beats_random_play(split):
    env = Gatherer(128, split=split, level_seed=None)
    good, random = mean_return(env, careful), mean_return(env, None)
    assert good > 3 and random < 1


def test_errors():
    with pytest.raises(ValueError, match=r"`rows` must be at least 4, so that every level fits, got 3"):
        Gatherer(1, rows=3)
    with pytest.raises(ValueError, match=r"`columns` must be at least 4, so that every level fits, got 2"):
        Gatherer(1, columns=2)
