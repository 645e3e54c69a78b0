"""Mazes by their rules, on maps made by hand; levels and splits; that they can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of
from playing import mean_returns

from disco_torch.envs.maze import DOWN, LEFT, MOVES, RIGHT, UP, Maze, MazeEpisode, MazeLevel

SPLITS = ["train", "validation", "held-out"]
MAP = (
    "..G..",
    ".#.#.",
    ".#O#.",
    ".###.",
    "...#.",
)
"""G the goal, O a pit, # walls."""
AT = {(row, column): 5 * row + column for row in range(5) for column in range(5)}


def level(**changes) -> MazeLevel:
    """The map above: a goal of 1, a pit of -0.5, no cost, no slips, 50 steps."""
    walls, pits, goal = ([mark == kind for line in MAP for mark in line] for kind in "#OG")
    starts = [cell == AT[4, 2] for cell in range(25)]
    values = {"walls": walls, "pits": pits, "starts": starts, "goal": goal.index(True), "prize": 1.0, "cost": 0.0}
    values |= {"fine": 0.5, "slip": 0.0, "limit": 50}
    return MazeLevel(**{name: torch.tensor([value]) for name, value in (values | changes).items()})


def at(row: int, column: int, time: int = 0) -> MazeEpisode:
    return MazeEpisode(torch.tensor([AT[row, column]]), torch.tensor([time]))


def advance(levels, episode, action, uniforms=(0.5, 0.5)):
    episode, rewards, ends = Maze(1, rooms=3).advance(levels, episode, torch.tensor([action]), torch.tensor([uniforms]))
    return divmod(episode.agent.item(), 5), pytest.approx(rewards.item()), ends.item()


def test_moves_walls_and_the_border():
    assert advance(level(), at(1, 0), UP) == ((0, 0), 0, False)
    assert advance(level(), at(1, 0), DOWN) == ((2, 0), 0, False)
    assert advance(level(), at(1, 0), RIGHT) == ((1, 0), 0, False), "a wall"
    assert advance(level(), at(1, 0), LEFT) == ((1, 0), 0, False), "the border"
    assert advance(level(), at(4, 4), DOWN) == ((4, 4), 0, False), "the border"
    assert advance(level(), at(4, 0), RIGHT) == ((4, 1), 0, False)


def test_the_goal_and_pits_end_it():
    assert advance(level(), at(0, 1), RIGHT) == ((0, 2), 1, True)
    assert advance(level(), at(1, 2), DOWN) == ((2, 2), -0.5, True)
    costly = level(cost=0.01, prize=0.0)
    assert advance(costly, at(0, 1), RIGHT) == ((0, 2), -0.01, True)
    assert advance(costly, at(0, 1), LEFT) == ((0, 0), -0.01, False)
    assert advance(costly, at(1, 2), DOWN) == ((2, 2), -0.51, True)


def test_slips_go_anywhere():
    slippery = level(slip=0.3)
    ways = [advance(slippery, at(0, 1), RIGHT, (0.29, uniform))[0] for uniform in (0.1, 0.3, 0.6, 0.9)]
    assert ways == [(0, 1), (0, 1), (0, 0), (0, 2)]
    assert advance(slippery, at(0, 1), RIGHT, (0.31, 0.6))[0] == (0, 2)


def test_the_time_limit_is_no_end():
    env = Maze(1, rooms=3)
    state, _ = env.reset(torch.Generator().manual_seed(0))
    state.levels, state.episode = level(), at(2, 0, time=49)
    state, row = env.step_with(state, torch.tensor([UP]), torch.rand(1, 27))
    assert row.truncations and row.episode_ends and row.discounts == 1 and row.rewards == 0
    assert row.final_observations.argmax() == AT[1, 0] and row.observations.argmax() == AT[4, 2]


def test_views():
    shown = {
        view: Maze(1, rooms=3, view=view).observe(level(), at(1, 2))[0] for view in ("position", "local", "coordinates")
    }
    assert shown["position"].nonzero().tolist() == [[AT[1, 2]]] and shown["position"].shape == (25,)
    assert shown["coordinates"].tolist() == [1, 2]
    planes = [["".join("x" if cell else "." for cell in line) for line in plane] for plane in shown["local"].tolist()]
    assert planes[0] == ["xxxxx", ".....", ".x.x.", ".x.x.", ".xxx."], "walls; outside is wall, too"
    assert planes[1] == [".....", ".....", ".....", "..x..", "....."], "pits"
    assert planes[2] == [".....", "..x..", ".....", ".....", "....."], "the goal"


def test_distances():
    steps = Maze(1, rooms=3).distances(level().walls | level().pits, level().goal)[0].reshape(5, 5).tolist()
    far = 25
    assert steps == [[2, 1, 0, 1, 2], [3, far, 1, far, 3], [4, far, far, far, 4], [5, far, far, far, 5], [6, 7, 8, far, 6]]


@pytest.mark.parametrize(("split", "remainders"), [*zip(SPLITS, [{2, 3, 4}, {1}, {0}], strict=True)])
def test_levels_and_the_split(split, remainders):
    env = Maze(2000, split=split, level_seed=None)
    levels = levels_of(env)
    assert set(((levels.walls.sum(1) + levels.limit) % 5).tolist()) == remainders
    assert levels.limit.min() >= 30 and 480 < levels.limit.max() <= 499
    steps = env.distances(levels.walls | levels.pits, levels.goal)
    beside_pit = env._near(levels.pits)
    assert levels.starts.any(1).all()
    assert (steps[levels.starts] >= 2).all() and (steps[levels.starts] < 81).all() and not beside_pit[levels.starts].any()
    assert ((env.distances(levels.walls, levels.goal) < 81) == ~levels.walls).all(), "all free cells are joined"
    longest = (steps * levels.starts).amax(1)
    assert longest.max() > 24 and (levels.limit > 2.5 * longest).all()
    one = levels.starts.sum(1) == 1
    assert 0.45 < one.float().mean() < 0.56
    assert 0.15 < levels.pits.any(1).float().mean() < 0.4 and not (levels.pits & levels.walls).any()
    assert 0.45 < (levels.slip == 0).float().mean() < 0.55 and 0.3 < levels.slip.max() <= 1 / 3
    assert 0.3 < (levels.cost == 0).float().mean() < 0.37
    assert (levels.prize[levels.cost == 0] == 1).all() and 0.6 < levels.prize[levels.cost > 0].mean() < 0.73
    assert (levels.fine >= levels.cost * levels.limit - 1e-5).all(), "falling does not save the cost of what is left"
    heights = (~levels.walls).reshape(-1, 9, 9).any(2).sum(1)
    assert {1, 3, 5, 7, 9} == set(heights.tolist())


def test_mazes_without_more_passages_have_no_loops():
    """A tree of rooms has one passage less than rooms."""
    env = Maze(500, level_seed=None)
    uniforms = torch.rand(500, 75, generator=torch.Generator().manual_seed(0))
    for more, loops in ((0.2, False), (0.99, True)):
        free = env._passages(uniforms, torch.rand(500), torch.full((500,), more))
        rooms, cells = free[:, ::2, ::2].sum((1, 2)), free.sum((1, 2))
        assert not free[:, 1::2, 1::2].any()
        assert torch.equal(cells, 2 * rooms - 1) != loops
        assert set(rooms.tolist()) == {5, 10, 15, 20, 25}


def shortest_way(env, levels):
    """A player who knows the way."""
    steps = env.distances(levels.walls | levels.pits, levels.goal).reshape(-1, env.side, env.side)
    wide = torch.nn.functional.pad(steps, (1, 1, 1, 1), value=99)
    batch = torch.arange(env.num_envs)

    def act(state):
        row, column = state.episode.agent // env.side + 1, state.episode.agent % env.side + 1
        return torch.stack([wide[batch, row + down, column + right] for down, right in MOVES], dim=1).argmin(1)

    return act


@pytest.mark.parametrize("split", SPLITS)
def test_the_shortest_way_and_random_walks(split):
    env, generator = Maze(500, split=split, level_seed=None), torch.Generator().manual_seed(7)
    levels = levels_of(env)
    good = mean_returns(env, shortest_way(env, levels), 520)
    random = mean_returns(env, lambda state: torch.randint(4, (500,), generator=generator), 520)
    assert good.mean() > 0.55 and random.mean() < -0.15
    sparse = (levels.cost == 0) & ~levels.pits.any(1)
    assert (good[sparse] == 1).all() and random[sparse].mean() < 0.65
    far = sparse & (levels.starts.sum(1) == 1)
    assert 0.05 < (random[far] == 0).float().mean() < 0.6, "in some levels no random walk arrives"


def test_errors():
    with pytest.raises(ValueError, match=r"`rooms` must be at least 3, so that every level has a way to go, got 2"):
        Maze(1, rooms=2)
    with pytest.raises(ValueError, match=r"`view` must be one of 'position', 'local', 'coordinates', got 'map'"):
        Maze(1, view="map")
