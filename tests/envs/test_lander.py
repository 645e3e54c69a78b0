"""Landers by their rules, in levels made by hand; levels and splits; that they can be played."""

from __future__ import annotations

import pytest
import torch
from arcade import levels_of
from playing import mean_returns

from disco_torch.envs.lander import LEFT, LIFT, NONE, RIGHT, Lander, LanderEpisode, LanderLevel

SPLITS = ["train", "validation", "held-out"]


def level(**changes) -> LanderLevel:
    """Gravity of 1, a lift of 2, pushes of 0.6; a pad from 0.1 to 0.5, softness of 0.3; a crash costs 0.5."""
    values = {"gravity": 1.0, "lift": 2.0, "push": 0.6, "wind": 0.0, "gusts": 0.0, "pad": 0.3, "width": 0.2}
    values |= {"softness": 0.3, "shaping": 0.0, "crash": 0.5, "fuel": 0.0, "limit": 100}
    return LanderLevel(**{name: torch.tensor([value]) for name, value in (values | changes).items()})


def body(right: float, up: float, speed: tuple[float, float] = (0.0, 0.0), time: int = 0) -> LanderEpisode:
    return LanderEpisode(*(torch.tensor([value]) for value in ((right, up), speed, time)))


def advance(levels, episode, action, uniform=0.5):
    episode, rewards, ends = Lander(1).advance(levels, episode, torch.tensor([action]), torch.tensor([[uniform]]))
    return episode, pytest.approx(rewards.item(), abs=1e-5), ends.item()


@pytest.mark.parametrize(
    ("action", "speed"), [(NONE, (0.1, -0.05)), (LIFT, (0.1, 0.05)), (LEFT, (0.07, -0.05)), (RIGHT, (0.13, -0.05))]
)
def test_engines_and_gravity(action, speed):
    moved, reward, ends = advance(level(), body(0.0, 1.0, (0.1, 0.0)), action)
    assert moved.speed[0].tolist() == pytest.approx(speed) and (reward, ends) == (0, False)
    assert moved.place[0].tolist() == pytest.approx([0.05 * speed[0], 1.0 + 0.05 * speed[1]]) and moved.time == 1


def test_wind_and_gusts():
    assert advance(level(wind=-0.2), body(0.0, 1.0), NONE)[0].speed[0, 0].item() == pytest.approx(-0.01)
    speeds = [advance(level(gusts=0.2), body(0.0, 1.0), NONE, uniform)[0].speed[0, 0].item() for uniform in (0, 0.5, 0.75)]
    assert speeds == pytest.approx([-0.01, 0.0, 0.005])


@pytest.mark.parametrize(
    ("right", "speed", "lands"),
    [
        (0.3, (0.0, -0.24), True),
        (0.11, (0.0, -0.24), True),
        (0.09, (0.0, -0.24), False),
        (0.51, (0.0, -0.24), False),
        (0.3, (0.0, -0.26), False),
        (0.3, (0.31, -0.24), False),
        (0.3, (-0.29, -0.24), True),
    ],
)
def test_a_soft_landing_on_the_pad_pays_and_all_else_is_a_crash(right, speed, lands):
    """Gravity adds 0.05 to the speed with the last step."""
    assert advance(level(), body(right, 0.01, speed), NONE)[1:] == (1 if lands else -0.5, True)
    assert advance(level(), body(right, 0.02, speed), NONE)[1:] == (0, False), "not down yet"


@pytest.mark.parametrize(("place", "speed"), [((1.49, 1.0), (1.0, 0)), ((-1.49, 1.0), (-1.0, 0)), ((0.0, 1.49), (0, 1.0))])
def test_who_gets_too_far_is_lost(place, speed):
    assert advance(level(), body(*place, speed), NONE)[1:] == (-0.5, True)
    assert not advance(level(), body(*place), NONE)[2]


def test_fuel_and_shaping():
    assert [advance(level(fuel=0.01), body(0.0, 1.0), action)[1] for action in range(4)] == [0, -0.01, -0.01, -0.01]
    _, reward, _ = advance(level(shaping=0.5), body(0.3, 1.0, (0.0, -0.95)), NONE)
    assert reward == 0.5 * (0.05 - 0.5 * 0.05), "closer by 0.05, faster by 0.05"
    rules, episode, total = level(shaping=1.0), body(-0.2, 1.0), 0.0
    for action in (RIGHT, RIGHT, NONE, LIFT, NONE):
        before = episode
        episode, reward, _ = advance(rules, before, action)
        total += reward.expected
    moved = (body(-0.2, 1.0), episode)
    first, last = ((x.place[0] - torch.tensor([0.3, 0])).norm() + 0.5 * x.speed.norm() for x in moved)
    assert total == pytest.approx((first - last).item(), abs=1e-5), "what is paid on the way depends on its ends alone"


def test_the_time_limit_is_no_end():
    env = Lander(1)
    state, _ = env.reset(torch.Generator().manual_seed(0))
    state.levels, state.episode = level(), body(0.3, 0.5, time=99)
    state, row = env.step_with(state, torch.tensor([LIFT]), torch.full((1, 5), 0.5))
    assert row.truncations and row.episode_ends and row.discounts == 1 and row.rewards == 0
    assert row.final_observations[0].tolist() == pytest.approx([0, 0.5025, 0, 0.05])
    assert row.observations[0].tolist() == pytest.approx([-0.3, 1.0, 0, 0], abs=1e-6) and state.episode.time == 0


def test_observations_and_picture():
    shown = Lander(1).observe(level(), body(0.5, 0.75, (-1.0, 2.0)))
    assert shown[0].tolist() == pytest.approx([0.2, 0.75, -1, 2])
    planes = Lander(1).picture(level(), body(1.5, 0.0))[0]
    assert planes.shape == (2, 12, 12) and planes[0].nonzero().tolist() == [[11, 11]]
    assert planes[1].nonzero().tolist() == [[11, 6], [11, 7]]


@pytest.mark.parametrize(("split", "remainders"), [*zip(SPLITS, [{2, 3, 4}, {1}, {0}], strict=True)])
def test_levels_and_the_split(split, remainders):
    levels = levels_of(Lander(3000, split=split, level_seed=None))
    tenths = 10 * (levels.gravity - 0.3) / 0.9, 10 * (levels.lift / levels.gravity - 1.4) / 1.6
    inside = ((tenths[0] % 1 - 0.5).abs() < 0.49) & ((tenths[1] % 1 - 0.5).abs() < 0.49)
    heavy, ratio = (x.long()[inside] for x in tenths)
    assert set(((heavy + ratio) % 5).tolist()) == remainders
    assert set(heavy.tolist()) == set(ratio.tolist()) == set(range(10))
    for quantity in (levels.wind, levels.gusts, levels.shaping, levels.fuel):
        assert 0.45 < (quantity == 0).float().mean() < 0.55
    for name, low, high in (
        ("push", 0.3, 1),
        ("pad", -0.5, 0.5),
        ("width", 0.1, 0.8),
        ("softness", 0.15, 1),
        ("crash", 0, 1),
    ):
        quantity = getattr(levels, name)
        assert low <= quantity.min() < low + 0.05 and high - 0.05 < quantity.max() <= high, name
    assert levels.limit.min() == 100 and levels.limit.max() == 300
    assert 0.45 < (levels.fuel * levels.limit).max() <= 0.5


def steer(state):
    """Over to the pad, then down, slower the lower it is."""
    levels, episode = state.levels, state.episode
    right, up = episode.place.unbind(1)
    off = right - levels.pad
    over_pad = off.abs() < 0.8 * levels.width
    sideways = (-off).clamp(-0.3, 0.3) - episode.speed[:, 0]
    descent = 0.8 * levels.softness.clamp(max=0.5) * over_pad + 0.5 * (up - 0.15).clamp(min=0) * torch.where(
        over_pad, 1.0, 0.2
    )
    push = torch.where(sideways > 0, RIGHT, LEFT)
    return torch.where(episode.speed[:, 1] < -descent, LIFT, torch.where(sideways.abs() > 0.05, push, NONE))


@pytest.mark.parametrize("split", SPLITS)
def test_steering_and_random_engines(split):
    env, generator = Lander(400, split=split, level_seed=None), torch.Generator().manual_seed(7)
    levels = levels_of(env)
    good = mean_returns(env, steer, 700)
    random = mean_returns(env, lambda state: torch.randint(4, (400,), generator=generator), 700)
    sparse = levels.shaping == 0
    assert good[sparse].mean() > 0.8 and good[~sparse].mean() > 1.2 and random.mean() < -0.2
    lands = (random + levels.crash)[sparse & (levels.fuel == 0)] > 0.01  # of about 13 episodes, one or more
    assert 0.2 < lands.float().mean() < 0.8, "by chance it succeeds in some levels"
