"""Slippery positions by their rules, in levels made by hand; levels and splits; that they can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of
from playing import mean_returns
from torch import Tensor

from disco_torch.envs import LevelState
from disco_torch.envs.slippery import MAX_LIMIT, MIN_LIMIT, Slippery, SlipperyEpisode, SlipperyLevel

SPLITS = ["train", "validation", "held-out"]
P, A = 12, 3


def level(**changes) -> SlipperyLevel:
    """From every position action 0 moves back by one, 1 stays and 2 moves on by two; a hole at 5, the goal at 8."""
    holes = torch.arange(P) == 5
    values = {"moves": [[-1, 0, 2]] * P, "holes": holes.tolist(), "goal": 8, "slip": 0.0, "penalty": 0.5, "cost": 0.125}
    return SlipperyLevel(**{name: torch.tensor([value]) for name, value in (values | {"limit": 30} | changes).items()})


def go(levels: SlipperyLevel, position: int, action: int, uniforms: tuple[float, float] = (0.5, 0.0)):
    env = Slippery(1, positions=P, actions=A)
    episode = SlipperyEpisode(torch.tensor([position]), torch.tensor([3]))
    after, rewards, ends = env.advance(levels, episode, torch.tensor([action]), torch.tensor([uniforms]))
    assert after.time.item() == 4
    return after.position.item(), rewards.item(), ends.item()


def test_moves_holes_and_the_goal():
    assert [go(level(), 2, action)[0] for action in range(A)] == [1, 2, 4]
    assert go(level(), 0, 0) == (0, -0.125, False), "the start is the end of the row"
    assert go(level(), 3, 2) == (5, -0.625, True), "a hole"
    assert go(level(), 7, 2) == go(level(), 6, 2) == (8, 0.875, True), "the goal, which no step goes beyond"


def test_slips_are_of_an_action_at_random():
    slippery = level(slip=0.25)
    assert [go(slippery, 2, 1, (0.2, uniform))[0] for uniform in (0.0, 0.4, 0.9)] == [1, 2, 4]
    assert [go(slippery, 2, 1, (0.3, uniform))[0] for uniform in (0.0, 0.4, 0.9)] == [2, 2, 2]


@pytest.mark.parametrize(("split", "remainders"), [*zip(SPLITS, [{2, 3, 4}, {1}, {0}], strict=True)])
@pytest.mark.parametrize(("positions", "actions"), [(24, 4), (12, 2), (40, 18)])
def test_levels_and_the_split(split, remainders, positions, actions):
    levels = levels_of(Slippery(3000, positions=positions, actions=actions, split=split, level_seed=None))
    numbers = levels.goal + 1
    assert set(((numbers + levels.limit) % 5).tolist()) == remainders
    assert set(numbers.tolist()) == set(range(8, positions + 1))
    assert levels.limit.min() == MIN_LIMIT and levels.limit.max() == MAX_LIMIT
    assert levels.moves.shape == (3000, positions, actions) and levels.moves.abs().max() == 2
    assert not (levels.holes[:, 1:] & levels.holes[:, :-1]).any() and not levels.holes[:, :3].any()
    assert not levels.holes.gather(1, levels.goal[:, None]).any() and levels.holes.any(1).float().mean() > 0.5
    assert (levels.slip == 0).float().mean() == pytest.approx(0.25, abs=0.03) and 0.5 < levels.slip.max() <= 0.6
    assert (levels.penalty == 0).float().mean() == pytest.approx(0.5, abs=0.03) and levels.penalty.max() <= 1
    total = levels.cost * levels.limit
    assert (total == 0).float().mean() == pytest.approx(0.5, abs=0.03) and total.max() <= 1.001
    assert total[total > 0].min() >= 0.0999


@pytest.mark.parametrize("split", SPLITS)
def test_every_position_has_an_action_that_surely_leads_on(split):
    levels = levels_of(Slippery(3000, split=split, level_seed=None))
    after = (torch.arange(24)[:, None] + levels.moves).minimum(levels.goal[:, None, None])  # [B, P, A]
    falls = levels.holes.gather(1, after.clamp(min=0).flatten(1)).unflatten(1, after.shape[1:])
    leads_on = (levels.moves > 0) & ~falls
    assert (leads_on.any(2) | (torch.arange(24) >= levels.goal[:, None])).all()


def best_actions(levels: SlipperyLevel, num_actions: int) -> Tensor:
    """The action with the highest value in each position, [B, P], by value iteration with a discount of 0.99."""
    number, positions = levels.holes.shape
    after = (torch.arange(positions)[:, None] + levels.moves).clamp(min=0).minimum(levels.goal[:, None, None])
    flat = after.flatten(1)
    arrived, fell = (flat == levels.goal[:, None]).float(), levels.holes.gather(1, flat).float()
    rewards = arrived - fell * levels.penalty[:, None] - levels.cost[:, None]
    values = torch.zeros(number, positions)
    for _ in range(300):
        q = rewards + 0.99 * (1 - arrived) * (1 - fell) * values.gather(1, flat)
        q = q.unflatten(1, (positions, num_actions))
        q = (1 - levels.slip)[:, None, None] * q + (levels.slip[:, None] * q.mean(2))[:, :, None]
        values = q.amax(2)
    return q.argmax(2)


@pytest.mark.parametrize("split", SPLITS)
def test_the_best_player_arrives_and_a_random_one_rarely(split):
    env = Slippery(400, split=split, level_seed=None)
    best = best_actions(levels_of(env), env.num_actions)
    generator = torch.Generator().manual_seed(1)

    def play_best(state: LevelState) -> Tensor:
        return best.gather(1, state.episode.position[:, None])[:, 0]

    def play_at_random(state: LevelState) -> Tensor:
        return torch.randint(env.num_actions, (env.num_envs,), generator=generator)

    scripted, random = (mean_returns(env, policy, 800).nanmean().item() for policy in (play_best, play_at_random))
    assert scripted > 0.7 and random < 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"positions": 11}, "`positions` must be at least 12"), ({"actions": 1}, "`actions` must be 2")],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        Slippery(2, **arguments)
