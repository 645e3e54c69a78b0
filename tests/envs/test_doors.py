"""Doors by their rules, on maps made by hand; levels and splits; that they can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of, text_of
from playing import mean_returns

from disco_torch.envs.boards import with_neighbours
from disco_torch.envs.doors import DOWN, LEFT, MOVES, RIGHT, UP, Doors, DoorsEpisode, DoorsLevel

SPLITS = ["train", "validation", "held-out"]
MAP = (
    "..#..",
    "..#..",
    "..D.G",
    "K.#..",
    "..#..",
)
"""K the key, D the door, G the goal, # walls."""


def cell(row: int, column: int) -> int:
    return 5 * row + column


def level(**changes) -> DoorsLevel:
    """The map above without rewards for key and door, costs and slips; 100 steps."""
    walls = [mark == "#" for line in MAP for mark in line]
    near = [number % 5 < 2 for number in range(25)]
    values = {"walls": walls, "near": near, "door": cell(2, 2), "layout": [0.0] * 25, "fixed": False}
    values |= {"for_key": 0.0, "for_door": 0.0, "cost": 0.0, "slip": 0.0, "limit": 100}
    return DoorsLevel(**{name: torch.tensor([value]) for name, value in (values | changes).items()})


def at(row: int, column: int, has_key=False, is_open=False, time=0) -> DoorsEpisode:
    values = (cell(row, column), cell(3, 0), cell(2, 4), has_key, is_open, time)
    return DoorsEpisode(*(torch.tensor([value]) for value in values))


def advance(levels, episode, action, uniforms=(0.5, 0.5)):
    episode, rewards, ends = Doors(1, size=5).advance(levels, episode, torch.tensor([action]), torch.tensor([uniforms]))
    return divmod(episode.agent.item(), 5), episode, pytest.approx(rewards.item()), ends.item()


def test_moves_walls_and_the_border():
    places = [advance(level(), at(1, 1), action)[0] for action in (UP, DOWN, LEFT, RIGHT)]
    assert places == [(0, 1), (2, 1), (1, 0), (1, 1)]
    assert advance(level(), at(0, 0), LEFT)[0] == advance(level(), at(0, 0), UP)[0] == (0, 0)


def test_the_key_opens_the_door():
    rules = level(for_key=0.2, for_door=0.3, cost=0.01)
    place, episode, reward, ends = advance(rules, at(2, 1), RIGHT)
    assert (place, episode.is_open.item(), reward, ends) == ((2, 1), False, -0.01, False), "locked without a key"
    place, episode, reward, ends = advance(rules, at(2, 0), DOWN)
    assert (place, episode.has_key.item(), reward, ends) == ((3, 0), True, 0.19, False)
    assert advance(rules, at(2, 0, has_key=True), DOWN)[2] == -0.01, "it is taken once"
    place, episode, reward, ends = advance(rules, at(2, 1, has_key=True), RIGHT)
    assert (place, episode.is_open.item(), reward, ends) == ((2, 2), True, 0.29, False)
    assert advance(rules, at(2, 1, has_key=True, is_open=True), RIGHT)[2] == -0.01, "it is opened once"


def test_the_goal_ends_it():
    assert advance(level(), at(2, 3, True, True), RIGHT)[2:] == (1, True)
    assert advance(level(), at(2, 3, True, True), UP)[2:] == (0, False)


def test_slips_go_anywhere():
    slippery = level(slip=0.2)
    ways = [advance(slippery, at(1, 0), RIGHT, (0.1, uniform))[0] for uniform in (0.1, 0.3, 0.6, 0.9)]
    assert ways == [(0, 0), (2, 0), (1, 0), (1, 1)] and advance(slippery, at(1, 0), UP, (0.3, 0.9))[0] == (0, 0)


def test_the_time_limit_is_no_end():
    env = Doors(1, size=5)
    state, _ = env.reset(torch.Generator().manual_seed(0))
    state.levels, state.episode = level(), at(1, 1, True, time=99)
    state, row = env.step_with(state, torch.tensor([UP]), torch.rand(1, 52))
    assert row.truncations and row.episode_ends and row.discounts == 1
    assert row.final_observations[0, 0].argmax() == cell(0, 1) and not row.final_observations[0, 3].any()
    assert row.observations[0, 3].sum() == 1 and not state.episode.has_key and state.episode.time == 0


def test_observations():
    planes = [text_of(plane) for plane in Doors(1, size=5).observe(level(), at(1, 0))[0]]
    assert planes[0] == [".....", "x....", ".....", ".....", "....."], "agent"
    assert planes[1] == ["..x..", "..x..", ".....", "..x..", "..x.."], "walls"
    assert planes[2] == [".....", ".....", "..x..", ".....", "....."], "door"
    assert planes[3] == [".....", ".....", ".....", "x....", "....."], "key"
    assert planes[4] == [".....", ".....", "....x", ".....", "....."], "goal"
    later = Doors(1, size=5).observe(level(), at(1, 0, has_key=True, is_open=True))[0]
    assert not later[2].any() and not later[3].any()


@pytest.mark.parametrize(("split", "remainders"), [*zip(SPLITS, [{2, 3, 4}, {1}, {0}], strict=True)])
def test_levels_and_the_split(split, remainders):
    env = Doors(2000, split=split, level_seed=None)
    levels = levels_of(env)
    assert set(((levels.near.sum(1) + levels.door + levels.limit) % 5).tolist()) == remainders
    assert levels.limit.min() >= 60 and 290 < levels.limit.max() < 300
    assert (levels.walls.sum(1) == 6).all() and {*(levels.near.sum(1) // 7).tolist()} == {2, 3, 4, 5}
    assert not levels.walls.gather(1, levels.door[:, None]).any() and not levels.near.gather(1, levels.door[:, None]).any()
    no_help = levels.for_key + levels.for_door == 0
    assert 0.45 < no_help.float().mean() < 0.55 and levels.for_key.max() <= 0.5 and levels.for_door.max() <= 0.5
    assert 0.45 < (levels.cost == 0).float().mean() < 0.55 and (levels.cost * levels.limit).max() <= 1.001
    assert 0.45 < (levels.slip == 0).float().mean() < 0.55 and levels.slip.max() <= 0.2
    assert 0.45 < levels.fixed.float().mean() < 0.55


def test_where_things_lie():
    env, generator = Doors(1000, level_seed=None), torch.Generator().manual_seed(0)
    levels = levels_of(env)
    one, two = (env.begin(levels, torch.rand(1000, 98, generator=generator)) for _ in range(2))
    for episode in (one, two):
        on_this_side = [levels.near.gather(1, x[:, None])[:, 0] for x in (episode.agent, episode.key, episode.goal)]
        assert on_this_side[0].all() and on_this_side[1].all() and not on_this_side[2].any()
        assert not levels.walls.gather(1, episode.goal[:, None]).any() and (episode.goal != levels.door).all()
        assert (episode.agent != episode.key).all()
    same = (one.key == two.key) & (one.goal == two.goal)
    assert same[levels.fixed].all() and same[~levels.fixed].float().mean() < 0.2
    assert (one.agent != two.agent).float().mean() > 0.8


def key_then_goal(state):
    """Walks the shortest way to the key and, when it has it, through the door to the goal."""
    levels, episode = state.levels, state.episode
    size, batch = 7, torch.arange(len(levels.door))
    cells = torch.arange(49)
    blocked = levels.walls | ((cells == levels.door[:, None]) & ~episode.has_key[:, None])
    target = torch.where(episode.has_key, episode.goal, episode.key)
    reached = (cells == target[:, None]).reshape(-1, size, size)
    steps = torch.zeros_like(reached, dtype=torch.long)
    for _ in range(20):
        steps = steps + ~reached
        reached = with_neighbours(reached) & ~blocked.reshape(-1, size, size)
    wide = torch.nn.functional.pad(steps, (1, 1, 1, 1), value=99)
    row, column = episode.agent // size + 1, episode.agent % size + 1
    return torch.stack([wide[batch, row + down, column + right] for down, right in MOVES], dim=1).argmin(1)


@pytest.mark.parametrize("split", SPLITS)
def test_knowing_the_way_and_random_walks(split):
    env, generator = Doors(300, split=split, level_seed=None), torch.Generator().manual_seed(7)
    levels = levels_of(env)
    good = mean_returns(env, key_then_goal, 320)
    random = mean_returns(env, lambda state: torch.randint(4, (300,), generator=generator), 320)
    all_paid = 1 + levels.for_key + levels.for_door
    assert torch.allclose(good, all_paid - levels.cost * 15, atol=0.2)
    assert good.mean() > 1.1 and random.mean() < 0.2
    sparse = (levels.for_key == 0) & (levels.cost == 0)
    assert (good[sparse] == 1).all() and 0.3 < (random[sparse] == 0).float().mean() < 0.95, "random success is rare"


def test_sizes():
    assert Doors(2, size=5).observation_example.shape == (5, 5, 5)
    with pytest.raises(ValueError, match=r"`size` must be at least 5, so that a wall divides every board, got 4"):
        Doors(1, size=4)
