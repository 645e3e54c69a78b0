"""Invaders by its rules: how aliens march, shots and bombs fly, what ends it; levels and splits; that it can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of, mask_of, mean_return, text_of

from disco_torch.envs.invaders import (
    FORMATIONS,
    LEFT,
    RIGHT,
    SHOOT,
    STAY,
    TIME_LIMIT,
    Invaders,
    InvadersEpisode,
    InvadersLevels,
)

QUIET = (0.999, 0.0)
FAR = 1000  # a period in which nobody moves


def board(lines: dict[int, str] | None = None):
    """A mask of 8 rows from those that are not empty."""
    return mask_of(*((lines or {}).get(row, "......") for row in range(8)))


def level(wave=None, heading=1, period=FAR, value=0.5) -> InvadersLevels:
    numbers = [torch.tensor([number]) for number in (heading, period, 0.5, value)]
    return InvadersLevels(board(wave or {0: ".xxxx."}), *numbers)


def state(aliens, bombs=None, column=3, shot=(-1, 0), heading=1, clock=0) -> InvadersEpisode:
    numbers = [torch.tensor([number]) for number in (clock, column, *shot, heading)]
    return InvadersEpisode(*numbers, board(aliens), board(bombs))


def step(levels, episode, action=STAY, draws=QUIET):
    episode, rewards, ends = Invaders(1).advance(levels, episode, torch.tensor([action]), torch.tensor([draws]))
    return episode, rewards.item(), ends.item()


def lines(mask) -> dict[int, str]:
    return {row: line for row, line in enumerate(text_of(mask[0])) if "x" in line}


def test_the_player_moves_and_stays_on_the_board():
    for column, action, after in ((3, LEFT, 2), (3, STAY, 3), (3, RIGHT, 4), (3, SHOOT, 3), (0, LEFT, 0), (5, RIGHT, 5)):
        episode, reward, ends = step(level(), state({0: "x....."}, column=column), action)
        assert episode.column.item() == after and reward == 0 and not ends


def test_a_shot_flies_up_and_hits():
    episode, path = state({1: "..xx.."}), []
    episode, reward, _ = step(level(), episode, SHOOT)
    while reward == 0:
        path.append((episode.shot_row.item(), episode.shot_column.item()))
        episode, reward, ends = step(level(), episode, LEFT)
    assert path == [(row, 3) for row in (6, 5, 4, 3, 2)]
    assert reward == 0.5 and not ends and lines(episode.aliens) == {1: "..x..."} and episode.shot_row == -1


def test_one_shot_at_a_time():
    episode, *_ = step(level(), state({0: "x....."}, shot=(4, 2)), SHOOT)
    assert (episode.shot_row.item(), episode.shot_column.item()) == (3, 2)
    for row, after in ((1, 0), (0, -1), (-1, -1)):
        episode, reward, _ = step(level(), state({0: "x....."}, shot=(row, 2)))
        assert episode.shot_row.item() == after and reward == 0, "it leaves at the top"
    episode, *_ = step(level(), state({0: "x....."}), SHOOT)
    assert (episode.shot_row.item(), episode.shot_column.item()) == (6, 3)


def test_an_alien_may_march_into_the_shot_and_it_hits_once():
    episode, reward, _ = step(level(period=1), state({2: ".xx..."}, shot=(3, 3)))
    assert reward == 0.5 and lines(episode.aliens) == {2: "..x..."} and episode.shot_row == -1
    episode, reward, _ = step(level(period=1), state({2: "xxx..."}, shot=(3, 2)))
    assert reward == 0.5 and lines(episode.aliens) == {2: ".xx..."}, "the one that comes after is not hit"


@pytest.mark.parametrize(
    ("aliens", "heading", "after", "heading_after"),
    [
        ({0: ".xx...", 1: "..x..."}, 1, {0: "..xx..", 1: "...x.."}, 1),
        ({0: ".xx...", 1: "..x..."}, -1, {0: "xx....", 1: ".x...."}, -1),
        ({0: ".....x", 1: "..x..."}, 1, {1: ".....x", 2: "..x..."}, -1),
        ({0: ".....x", 1: "..x..."}, -1, {0: "....x.", 1: ".x...."}, -1),
        ({3: "x....x"}, -1, {4: "x....x"}, 1),
    ],
)
def test_aliens_march(aliens, heading, after, heading_after):
    episode, _, ends = step(level(period=1), state(aliens, heading=heading))
    assert lines(episode.aliens) == after and episode.heading == heading_after and not ends
    shown = Invaders(1).observe(level(period=1), state(aliens, heading=heading))[:, 2]
    assert lines(shown) == after, "the observation says where they will be"


def test_aliens_move_every_period():
    episode, columns = state({0: "x....."}), []
    for _ in range(7):
        episode, *_ = step(level(period=3), episode)
        columns.append(text_of(episode.aliens[0])[0].index("x"))
    assert columns == [0, 0, 1, 1, 1, 2, 2]


def test_the_next_wave():
    episode, reward, ends = step(level(heading=-1), state({2: "...x.."}, shot=(3, 3), heading=1))
    assert reward == 0.5 and not ends
    assert lines(episode.aliens) == {0: ".xxxx."} and episode.heading == -1


def test_a_landing_ends_the_episode():
    assert step(level(period=1), state({6: ".....x"}))[2]
    assert not step(level(period=1), state({5: ".....x"}))[2]
    assert not step(level(period=1), state({6: "....x."}))[2]


@pytest.mark.parametrize(("action", "ends"), [(STAY, True), (SHOOT, True), (LEFT, False), (RIGHT, False)])
def test_a_bomb_ends_the_episode_of_who_stays_below_it(action, ends):
    assert step(level(), state({0: "x....."}, bombs={6: "...x.."}), action)[2] == ends


def test_bombs_fall():
    episode, _, ends = step(level(), state({0: "x....."}, bombs={1: "x.x...", 6: "x.....", 7: "...x.."}))
    assert lines(episode.bombs) == {2: "x.x...", 7: "x....."} and not ends, "one that has passed hits nobody"


@pytest.mark.parametrize(
    ("draws", "bombs"),
    [((0.4, 0.5), {1: "...x.."}), ((0.4, 0.2), {2: ".x...."}), ((0.4, 0.0), {}), ((0.6, 0.5), {})],
)
def test_the_lowest_alien_of_a_column_drops_a_bomb(draws, bombs):
    episode, *_ = step(level(), state({0: ".x.x..", 1: "...x..", 2: ".x...."}), draws=draws)
    assert lines(episode.bombs) == bombs


def test_the_time_limit():
    assert not step(level(), state({0: "x....."}, clock=TIME_LIMIT - 2))[2]
    assert step(level(), state({0: "x....."}, clock=TIME_LIMIT - 1))[2]


def test_observations():
    planes = Invaders(1).observe(level(), state({1: ".x.x.."}, bombs={3: "..x..."}, column=4, shot=(5, 2)))
    player, aliens, ahead, bombs = (lines(planes[:, i]) for i in range(4))
    assert player == {5: "..x...", 7: "....x."} and aliens == ahead == {1: ".x.x.."} and bombs == {3: "..x..."}


@pytest.mark.parametrize(("split", "periods"), [("train", {2, 4}), ("held-out", {3})])
def test_splits_differ_in_formations_and_speed(split, periods):
    levels = levels_of(Invaders(500, split=split, level_seed=None))
    assert set(levels.period.tolist()) == periods and not levels.wave[:, 2:].any()
    seen = {tuple(text_of(wave[:2])) for wave in levels.wave}
    named = {tuple(("." * i + line).ljust(6, ".") for line in pair) for pair in FORMATIONS[split] for i in range(3)}
    assert seen == named


def test_no_formation_is_in_both_splits():
    """Nor one that is another moved to the side."""
    train, held_out = (
        {
            tuple(sorted((row, column - shift) for row, column in cells))
            for cells in cells_of(split)
            for shift in range(-3, 4)
        }
        for split in ("train", "held-out")
    )
    assert not train & held_out


def cells_of(split):
    return [[(r, c) for r in (0, 1) for c in range(4) if pair[r][c] == "x"] for pair in FORMATIONS[split]]


def hunt(state):
    """Leaves the column of a bomb that is near, else goes to the nearest column with aliens and shoots."""
    episode = state.episode
    columns = torch.arange(6)
    danger = episode.bombs[:, -3:-1].any(1)  # [B, columns]
    here = danger.gather(1, episode.column[:, None])[:, 0]
    far = (columns - episode.column[:, None]).abs()
    target = torch.where(episode.aliens.any(1) & ~danger, far, 10).argmin(1)
    escape = torch.where(danger, 10, far).argmin(1)
    goal = torch.where(here, escape, target)
    move = (goal - episode.column).sign() + STAY
    blocked = danger.gather(1, (episode.column + move - STAY)[:, None])[:, 0] & ~here
    return torch.where(blocked, STAY, torch.where((move == STAY) & ~here, SHOOT, move))


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_hunting_beats_random_play(split):
    env = Invaders(128, split=split, level_seed=None)
    good, random = mean_return(env, hunt), mean_return(env, None)
    assert good > 1.8 * random and random > 0


def test_errors():
    with pytest.raises(ValueError, match=r"`rows` must be at least 6, so that every level fits, got 5"):
        Invaders(1, rows=5)
    with pytest.raises(ValueError, match=r"`columns` must be at least 5, so that every level fits, got 4"):
        Invaders(1, columns=4)
