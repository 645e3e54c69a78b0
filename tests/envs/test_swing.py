"""Swings by their rules, in levels made by hand; levels and splits; that they can be played."""

from __future__ import annotations

import math

import pytest
import torch
from arcade import levels_of
from playing import mean_returns

from disco_torch.envs.swing import GRAVITY, Swing, SwingEpisode, SwingLevel

LEFT, NONE, RIGHT = 0, 1, 2
UP, SIDE, DOWN = math.pi, math.pi / 2, 0.0


def level(**changes) -> SwingLevel:
    """A swing of length 1 without friction and noise, torques of half of what holds it level, to a height of 0.5."""
    values = {"balances": False, "length": 1.0, "friction": 0.0, "torques": [-0.5, 0.0, 0.5, -0.5, 0.0], "noise": 0.0}
    values |= {"height": 0.5, "limit": 100}
    return SwingLevel(**{name: torch.tensor([value]) for name, value in (values | changes).items()})


def body(angle: float, speed: float = 0.0, time: int = 0) -> SwingEpisode:
    return SwingEpisode(torch.tensor([angle]), torch.tensor([speed]), torch.tensor([time]))


def advance(levels, episode, action, uniform=0.5):
    episode, rewards, ends = Swing(1).advance(levels, episode, torch.tensor([action]), torch.tensor([[uniform]]))
    return episode, rewards.item(), ends.item()


def test_gravity_and_torque():
    """Level, gravity takes 1 from the speed in 0.1 s; a torque is a share of that."""
    for action, speed in ((LEFT, -1.5), (NONE, -1.0), (RIGHT, -0.5)):
        moved, *_ = advance(level(), body(SIDE), action)
        assert moved.speed.item() == pytest.approx(speed, abs=1e-5)
        assert moved.angle.item() == pytest.approx(SIDE + 0.1 * speed, abs=1e-5) and moved.time.item() == 1
    assert advance(level(length=2.0), body(SIDE), NONE)[0].speed.item() == pytest.approx(-0.5, abs=1e-5)
    for rest in (DOWN, UP):
        assert advance(level(height=2.0), body(rest), NONE)[0].speed.item() == pytest.approx(0.0, abs=1e-5)


def test_friction_and_noise():
    assert advance(level(friction=0.2), body(DOWN, 2.0), NONE)[0].speed.item() == pytest.approx(1.96)
    for uniform, speed in ((0.0, -0.3), (0.5, 0.0), (0.75, 0.15)):
        assert advance(level(noise=0.3), body(DOWN), NONE, uniform)[0].speed.item() == pytest.approx(speed)


def test_a_body_keeps_its_energy_without_friction():
    episode, energies = body(1.0), []
    for _ in range(200):
        episode, *_ = advance(level(height=2.0), episode, NONE)
        energies.append(0.5 * episode.speed.item() ** 2 - GRAVITY * math.cos(episode.angle.item()))
    first, last = (sum(part) / 100 for part in (energies[:100], energies[100:]))
    assert abs(first - last) < 0.2 < max(energies) - min(energies) < 5


@pytest.mark.parametrize(("balances", "reward"), [(False, -1), (True, 1)])
def test_the_height_ends_a_swing_and_ends_a_balance(balances, reward):
    """A height of 0.5 is at 120 degrees."""
    rules = level(balances=balances)
    for degrees in (0, 90, 115, 125, 180, 235, 245, 360 + 115, 360 + 125, -125, -115):
        above = 120 <= degrees % 360 <= 240
        assert advance(rules, body(math.radians(degrees)), NONE)[1:] == (reward, above != balances), degrees


def test_the_time_limit_is_no_end():
    env = Swing(1)
    state, _ = env.reset(torch.Generator().manual_seed(0))
    state.levels, state.episode = level(), body(0.3, time=98)
    uniforms = torch.tensor([[0.5, 0.5, 0.5]])
    state, row = env.step_with(state, torch.tensor([NONE]), uniforms)
    assert not row.episode_ends and not row.truncations and row.discounts == 1
    last, *_ = env.advance(state.levels, state.episode, torch.tensor([NONE]), uniforms)
    state, row = env.step_with(state, torch.tensor([NONE]), uniforms)
    assert row.truncations and row.episode_ends and row.is_first and row.discounts == 1 and row.rewards == -1
    assert torch.equal(row.final_observations, env.observe(state.levels, last))
    assert state.episode.time == 0 and row.observations[0].tolist() == pytest.approx([1, 0, 0], abs=1e-6)
    state.episode = body(math.radians(125), time=99)
    _, row = env.step_with(state, torch.tensor([NONE]), uniforms)
    assert row.episode_ends and not row.truncations and row.discounts == 0, "reached with the last step"


def test_observations_and_picture():
    env = Swing(1)
    assert env.observe(level(), body(SIDE, -3.0))[0].tolist() == pytest.approx([0, 1, -3], abs=1e-6)
    planes = env.picture(level(), body(SIDE))[0]
    assert planes.shape == (3, 9, 9) and planes[0].nonzero().tolist() == [[4, 8]]
    assert planes[1].nonzero().tolist() == [[4, 4]] and planes[2, :3].all() and not planes[2, 3:].any()


@pytest.mark.parametrize(("split", "remainders"), [("train", {2, 3, 4}), ("validation", {1}), ("held-out", {0})])
def test_levels_and_the_split(split, remainders):
    levels = levels_of(Swing(3000, split=split, level_seed=None))
    strength = levels.torques.amax(1)
    strong, long = ((10 * (x - low) / span).long() for x, low, span in ((strength, 0.12, 0.68), (levels.length, 0.5, 1.5)))
    away = [(10 * (x - low) / span) % 1 for x, low, span in ((strength, 0.12, 0.68), (levels.length, 0.5, 1.5))]
    inside = ((away[0] - 0.5).abs() < 0.49) & ((away[1] - 0.5).abs() < 0.49)
    assert set(((strong + long) % 5)[inside].tolist()) == remainders
    assert set(strong[inside].tolist()) == set(long[inside].tolist()) == set(range(10))
    assert torch.equal(levels.torques.amin(1), -strength)
    assert {len(set(torques)) for torques in levels.torques.tolist()} == {2, 3, 4, 5}
    assert 0.3 < levels.balances.float().mean() < 0.37
    assert levels.limit.min() >= 100 and 390 < levels.limit.max() <= 400
    for quantity, most in ((levels.friction, 0.2), (levels.noise / strength, 0.3)):
        assert 0.45 < (quantity == 0).float().mean() < 0.55 and quantity.max() <= most


def with_the_swing(state):
    """Pushes the way the body moves; near the top, against the fall."""
    levels, episode = state.levels, state.episode
    lean = torch.remainder(episode.angle, 2 * math.pi) - math.pi
    wanted = torch.where(levels.balances, -(lean + 0.3 * episode.speed * (levels.length / GRAVITY).sqrt()), episode.speed)
    return (levels.torques * torch.where(wanted >= 0, 1.0, -1.0)[:, None]).argmax(1)


@pytest.mark.parametrize("split", ["train", "validation", "held-out"])
def test_a_good_player_and_a_random_one(split):
    env, generator = Swing(300, split=split, level_seed=None), torch.Generator().manual_seed(7)
    levels = levels_of(env)
    good = mean_returns(env, with_the_swing, 450)
    random = mean_returns(env, lambda state: torch.randint(5, (300,), generator=generator), 450)
    stays, swings = levels.balances, ~levels.balances
    assert good[stays].mean() > 230 and random[stays].mean() < 20
    assert good[swings].mean() > -50 and random[swings].mean() < -130
    assert (good[swings] > -levels.limit[swings]).all(), "every swing can be done in time"
    weak = swings & (levels.torques.amax(1) < 0.3)
    never = random[weak] <= -levels.limit[weak]
    assert 0.4 < never.float().mean() < 1, "random success is rare with weak torques"
