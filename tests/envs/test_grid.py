"""Grid worlds by their rules, in levels made by hand."""

from __future__ import annotations

import pytest
import torch
from playing import mean_returns

from disco_torch.envs import GridWorld
from disco_torch.envs.grid import DOWN, LEFT, MAX_KINDS, MIN_CELLS, MOVES, RIGHT, STAY, UP, GridEpisode, GridLevel

SIZE = 5
STILL = (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)


def cell(row: int, column: int) -> int:
    return row * SIZE + column


def level(walls: list[int] | None = None, **changes) -> GridLevel:
    """No walls, two objects in the corners of the first row that pay 1 and -1 once, no slips, 20 steps."""
    values = {"exists": [True, True, False, False], "values": [1.0, -1.0, 0.0, 0.0], "ends": [0.0] * 4, "returns": [0.0] * 4}
    values |= {"places": [0, 4, 20, 24], "fixed": True, "slip": 0.0, "limit": 20} | changes
    blocked = torch.zeros(1, SIZE**2, dtype=torch.bool)
    blocked[0, walls or []] = True
    return GridLevel(walls=blocked, **{name: torch.tensor([value]) for name, value in values.items()})


def episode(agent: int, present=(True, True, False, False), time: int = 0) -> GridEpisode:
    return GridEpisode(*(torch.tensor([x]) for x in (agent, [0, 4, 20, 24], present, time)))


def advance(rules: GridLevel, state: GridEpisode, action: int, uniforms=STILL):
    env = GridWorld(1, size=SIZE)
    state, reward, ends = env.advance(rules, state, torch.tensor([action]), torch.tensor([uniforms]))
    return state, reward.item(), ends.item()


@pytest.mark.parametrize(
    ("action", "place"), [(STAY, (2, 2)), (UP, (1, 2)), (DOWN, (3, 2)), (LEFT, (2, 1)), (RIGHT, (2, 3))]
)
def test_moves(action, place):
    state, reward, ends = advance(level(), episode(cell(2, 2)), action)
    assert state.agent.item() == cell(*place) and (reward, ends, state.time.item()) == (0, False, 1)


@pytest.mark.parametrize("action", [UP, DOWN, LEFT, RIGHT])
def test_walls_and_the_border_hold_the_agent(action):
    walls = [cell(1, 2), cell(3, 2), cell(2, 1), cell(2, 3)]
    assert advance(level(walls), episode(cell(2, 2)), action)[0].agent.item() == cell(2, 2)
    corner = {UP: (0, 2), DOWN: (4, 2), LEFT: (2, 0), RIGHT: (2, 4)}[action]
    assert advance(level(), episode(cell(*corner)), action)[0].agent.item() == cell(*corner)


def test_objects_pay_once_and_may_end_the_episode():
    state, reward, ends = advance(level(), episode(cell(0, 1)), LEFT)
    assert (reward, ends) == (1, False) and state.present.tolist() == [[False, True, False, False]]
    assert advance(level(), state, STAY)[1] == 0
    assert advance(level(), episode(cell(1, 4)), UP)[1] == -1
    often = level(ends=[0.4, 0.0, 0.0, 0.0])
    assert advance(often, episode(cell(0, 1)), LEFT, (0.5, 0.5, 0.39, 0.5, 0.5, 0.5, 0.5))[2]
    assert not advance(often, episode(cell(0, 1)), LEFT, (0.5, 0.5, 0.41, 0.5, 0.5, 0.5, 0.5))[2]
    assert not advance(often, episode(cell(0, 1)), STAY, (0.5, 0.5, 0.0, 0.5, 0.5, 0.5, 0.5))[2], "nothing was collected"


def test_objects_come_back_where_they_were():
    rules, gone = level(returns=[0.1, 0.1, 0.1, 0.1]), (False, False, False, False)
    state, _, _ = advance(rules, episode(cell(0, 0), present=gone), STAY, (0.5, 0.5, 0.5, 0.09, 0.11, 0.0, 0.0))
    assert state.present.tolist() == [[True, False, False, False]], "objects that the level does not have stay away"
    assert advance(rules, state, STAY)[1] == 1


def test_slips():
    slippery = level(slip=0.2)
    for uniform, place in [(0.0, (1, 2)), (0.3, (3, 2)), (0.6, (2, 1)), (0.9, (2, 3))]:
        assert advance(slippery, episode(cell(2, 2)), STAY, (0.1, uniform, *STILL[2:]))[0].agent.item() == cell(*place)
    assert advance(slippery, episode(cell(2, 2)), STAY, (0.3, 0.0, *STILL[2:]))[0].agent.item() == cell(2, 2)


def test_the_limit_is_an_end():
    assert not advance(level(), episode(cell(2, 2), time=18), STAY)[2]
    assert advance(level(), episode(cell(2, 2), time=19), STAY)[2]


def test_planes():
    env = GridWorld(1, size=SIZE)
    planes = env.observe(level([cell(1, 1)]), episode(cell(2, 3), present=(True, False, False, False)))[0]
    assert planes.shape == (2 + MAX_KINDS, SIZE, SIZE)
    assert [plane.flatten().nonzero().flatten().tolist() for plane in planes] == [
        [cell(2, 3)],
        [cell(1, 1)],
        [0],
        [],
        [],
        [],
    ]


def test_starts_are_free_and_beside_no_object():
    env = GridWorld(3000, level_seed=None)
    generator = torch.Generator().manual_seed(0)
    state, _ = env.reset(generator)
    levels, first = state.levels, state.episode
    rows, columns = first.places // 6, first.places % 6
    apart = (rows - (first.agent // 6)[:, None]).abs() + (columns - (first.agent % 6)[:, None]).abs()
    assert apart.min() >= 2
    taken = torch.cat([first.places, first.agent[:, None]], dim=1)
    assert not levels.walls.gather(1, taken).any()
    assert all(len(set(row)) == len(row) for row in taken.tolist())
    again = env.begin(levels, torch.rand(3000, env.episode_draws, generator=generator))
    same = (again.places == first.places).all(1)
    assert same[levels.fixed].all() and same[~levels.fixed].float().mean() < 0.01


def test_agents_start_anywhere():
    env = GridWorld(1, size=SIZE)
    draws = torch.rand(8000, env.episode_draws, generator=torch.Generator().manual_seed(0))
    rules = level()
    starts = torch.bincount(env.begin(expand(rules, 8000), draws).agent, minlength=25).reshape(5, 5)
    near = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 0, 1], [0] * 5, [1, 0, 0, 0, 1], [1, 1, 0, 1, 1]]).bool()
    assert (starts[near] == 0).all()
    counts = starts[~near].float()
    assert ((counts - 8000 / 13) ** 2 / (8000 / 13)).sum() < 40, "a chi-squared of 12 degrees exceeds 40 once in 10,000"


def expand(rules: GridLevel, number: int) -> GridLevel:
    return GridLevel(**{name: value.expand(number, *value.shape[1:]) for name, value in vars(rules).items()})


def distances(env: GridWorld, walls: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    """Steps from every cell to `goals` [B], [B, C], by relaxing; 99 where there is no way."""
    size = env.size
    steps = torch.where(torch.arange(size**2) == goals[:, None], 0, 99)
    for _ in range(size**2):
        near = torch.nn.functional.pad(steps.reshape(-1, size, size), (1, 1, 1, 1), value=99)
        sides = [near[:, 1 + r : size + 1 + r, 1 + c : size + 1 + c] for r, c in MOVES[1:]]
        steps = torch.minimum(steps, torch.stack(sides).amin(0).flatten(1) + 1).masked_fill(walls, 99)
    return steps


@pytest.mark.parametrize("size", [5, 6, 9])
def test_every_object_can_be_reached(size):
    env = GridWorld(250, size=size, level_seed=None)
    state, _ = env.reset(torch.Generator().manual_seed(2))
    walls = state.levels.walls
    for kind in range(MAX_KINDS):
        steps = distances(env, walls, state.episode.places[:, kind])
        assert (steps[~walls] < 99).all()
    assert (~walls).sum(1).min() >= MIN_CELLS and walls.any(1).float().mean() > 0.5


def test_cells_behind_walls_are_filled_and_too_many_walls_dropped():
    env = GridWorld(1, size=6)
    corner, ring = torch.zeros(2, 36, dtype=torch.bool)
    corner[[1, 6]] = True  # cuts off cell 0
    ring[[14, 15, 16, 20, 22, 26, 27, 28]] = True  # around the middle, cell 21
    filled = env._fill_unreachable(torch.stack([corner, ring]))
    assert filled.nonzero().tolist() == [[0, 0], [0, 1], [0, 6]]


def goal_policy(env: GridWorld):
    """Goes to the first object, around the second one, then stays beside it until it is back."""

    def policy(state):
        levels, game = state.levels, state.episode
        bad = torch.arange(env.size**2) == game.places[:, 1:2]
        steps = distances(env, levels.walls | bad, game.places[:, 0])
        blocked = torch.nn.functional.pad(steps.reshape(-1, env.size, env.size), (1, 1, 1, 1), value=99).flatten(1)
        width, row, column = env.size + 2, game.agent // env.size + 1, game.agent % env.size + 1
        targets = torch.stack([(row + r) * width + column + c for r, c in MOVES], dim=1)
        return blocked.gather(1, targets).argmin(1)

    return policy


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_player_with_a_goal_is_much_better_than_a_random_one(split):
    env = GridWorld(120, split=split, level_seed=None)
    generator = torch.Generator().manual_seed(4)
    random = mean_returns(env, lambda state: torch.randint(5, (120,), generator=generator), 60).mean()
    assert random < 0.15 and mean_returns(env, goal_policy(env), 60).mean() > random + 0.6


def test_levels_and_the_split():
    for split in ("train", "held-out"):
        levels = GridWorld(3000, split=split, level_seed=None).reset(torch.Generator().manual_seed(1))[0].levels
        number = levels.exists.sum(1)
        held_out = (levels.walls.sum(1) + number + levels.limit) % 4 == 0
        assert (held_out == (split == "held-out")).all()
        assert levels.limit.unique().tolist() == list(range(16, 40)) and number.unique().tolist() == [2, 3, 4]
        good, bad, *others = levels.values.unbind(1)
        assert good.min() >= 0.5 and good.max() <= 1 and bad.min() >= -1 and bad.max() <= -0.5
        assert all(-1 <= x.min() < -0.9 and 0.9 < x.max() <= 1 for x in others)
        for odds, most in ((levels.ends, 1.0), (levels.returns, 0.2), (levels.slip, 0.2)):
            assert 0.45 < (odds == 0).float().mean() < 0.55 and 0.9 * most < odds.max() <= most


def test_sizes():
    assert GridWorld(2, size=7).observation_example.shape == (6, 7, 7)
    with pytest.raises(
        ValueError, match=r"`size` must be at least 5, so that the agent finds a place beside no object, got 4"
    ):
        GridWorld(1, size=4)
