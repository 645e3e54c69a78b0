"""Variations: the same task in other scales and orders, around any family."""

from __future__ import annotations

import pytest
import torch
from test_levels import OffDevice, equal, families, play, rows_of, seeded
from torch.utils import _pytree as pytree

from disco_torch.envs import FAMILIES, Catch, Varied, make_env


@families
def test_a_variation_is_the_same_game_in_other_scales_and_orders(name):
    """Stepped by what its actions stand for, the family gives the same rows but for order, scale and shift."""
    env, plain = make_env(name, 32, varied=True, level_seed=None), make_env(name, 32, level_seed=None)
    assert isinstance(env, Varied) and env.observation_kinds == "numbers" and env.name == name
    generator = seeded()
    uniforms = [torch.rand(32, draws, generator=generator) for draws in (env.level_draws, env.episode_draws)]
    state, row = env.start(*uniforms)
    inner, expected = plain.start(uniforms[0][:, : plain.level_draws], uniforms[1])
    for _ in range(30):
        assert equal(state.inner, inner)
        assert torch.equal(row.rewards, state.variation.reward_scale * expected.rewards)
        torch.testing.assert_close(env.logged_rewards(state, row), expected.rewards)
        for field in ("discounts", "truncations", "is_first", "episode_ends"):
            assert torch.equal(getattr(row, field), getattr(expected, field))
        assert row.observations.shape == expected.observations.shape and row.observations.dtype == torch.float32
        torch.testing.assert_close(
            without_variation(state.variation, row.observations), expected.observations, rtol=1e-3, atol=1e-3
        )
        if row.final_observations is not None:
            last = without_variation(state.variation, row.final_observations)
            torch.testing.assert_close(last, expected.final_observations, rtol=1e-3, atol=1e-3)
        actions = torch.randint(env.num_actions, (32,), generator=generator)
        numbers = torch.rand(32, env.step_draws + env.episode_draws, generator=generator)
        own = state.variation.actions[torch.arange(32), actions]
        state, row = env.step_with(state, actions, numbers)
        inner, expected = plain.step_with(inner, own, numbers)


def without_variation(variation, observations):
    """What was shown with a variation, taken back by the inverse of each part."""
    across = [*variation.scale.shape, *[1] * (observations.ndim - 2)]
    x = (observations - variation.shift.reshape(across)) / variation.scale.reshape(across)
    if variation.rotation is not None:
        x = (variation.rotation.transpose(1, 2) @ x[..., None])[..., 0]
    return x.gather(1, variation.order.argsort(1).reshape(across).expand_as(x))


def test_ranges():
    drawn = Varied(FAMILIES["swing"](4000, level_seed=None), 7).reset(seeded())[0].variation
    assert sorted(set(drawn.actions.flatten().tolist())) == [0, 1, 2, 3, 4]
    assert all(set(row) == {0, 1, 2, 3, 4} for row in drawn.actions.tolist()), "every action can be taken"
    assert len({tuple(row) for row in drawn.actions.tolist()}) > 500
    assert len({tuple(row) for row in drawn.order.tolist()}) == 6
    identity = torch.eye(3)
    torch.testing.assert_close(
        drawn.rotation @ drawn.rotation.transpose(1, 2), identity.expand(4000, 3, 3), rtol=0, atol=1e-4
    )
    plain = (drawn.rotation == identity).flatten(1).all(1)
    assert 0.45 < plain.float().mean() < 0.55
    turned = drawn.rotation[~plain]
    assert turned.mean(0).abs().max() < 0.05 and (turned.square().mean(0) - 1 / 3).abs().max() < 0.05, "any direction"
    logs = drawn.reward_scale.log10()
    assert logs.min() > -2.001 and logs.max() < 2.001 and logs.abs().mean() == pytest.approx(1.0, abs=0.05)
    same = (drawn.scale == drawn.scale[:, :1]).all(1)
    assert 0.45 < same.float().mean() < 0.55 and 0.45 < (drawn.shift == 0).all(1).float().mean() < 0.55
    spread = drawn.scale.amax(1) / drawn.scale.amin(1)
    assert 50 < spread.max() < 101


def test_boards_keep_their_shape_and_long_vectors_are_not_rotated():
    for name in ("grid", "crossing"):
        env = make_env(name, 4, varied=True)
        variation = env.reset(seeded())[0].variation
        assert variation.rotation is None and variation.order.shape == (4, env.observation_example.shape[0])
    assert make_env("chain", 4, varied=True, length=13).reset(seeded())[0].variation.rotation is None
    assert make_env("chain", 4, varied=True, length=12).reset(seeded())[0].variation.rotation.shape == (4, 16, 16)


def test_a_level_keeps_its_seed():
    def levels(seed, reset_seed=0, **kwargs):
        return make_env("swing", 3, level_seed=seed, **kwargs).reset(seeded(reset_seed))[0]

    one = levels(5, varied=True)
    assert equal(one.inner.levels, levels(5).levels), "the level of the family itself"
    again = levels(5, reset_seed=1, varied=True)
    assert equal(one.variation, again.variation) and equal(one.inner.levels, again.inner.levels)
    assert equal(one.variation, pytree.tree_map(lambda x: x[:1].expand_as(x), one.variation))
    assert not equal(one.variation, levels(6, varied=True).variation)
    assert not torch.equal(*levels(None, varied=True).variation.reward_scale[:2])


@families
def test_nothing_is_read_back_or_brought_from_the_cpu(name):
    env = make_env(name, 8, device="meta", varied=True, num_actions=18, level_seed=None)
    with OffDevice() as off_device:
        state, _ = env.start(*(torch.empty(8, draws, device="meta") for draws in (env.level_draws, env.episode_draws)))
        actions = torch.empty(8, dtype=torch.long, device="meta")
        env.step_with(state, actions, torch.empty(8, env.step_draws + env.episode_draws, device="meta"))
    assert not off_device.found


@families
def test_parts_of_a_batch_are_the_same(name):
    env, part, generator = make_env(name, 12, varied=True, level_seed=None), slice(3, 8), seeded()
    starts = [torch.rand(12, draws, generator=generator) for draws in (env.level_draws, env.episode_draws)]
    whole, piece = env.start(*starts), env.start(*(uniforms[part] for uniforms in starts))
    torch.testing.assert_close(pytree.tree_leaves(rows_of(whole, part)), pytree.tree_leaves(piece))


def test_last_states_are_kept_and_drawn_as_by_the_family():
    env = make_env("swing", 2, varied=True)
    assert env.autoreset and env.env.autoreset and env.render() is None
    state, _ = env.reset(seeded())
    assert env.render(state).shape == (144, 144, 3)
    env.autoreset = False
    assert not env.env.autoreset and not env.autoreset


def test_around_what_is_no_family():
    env = Varied(Catch(4), 5)
    variation = env.reset(seeded())[0].variation
    assert env.num_actions == 5 and all(set(row) == {0, 1, 2} for row in variation.actions.tolist())
    assert len(play(env, 20)) == 21


def test_errors():
    with pytest.raises(ValueError, match=r"`num_actions` must be at least 5, those of swing, got 4"):
        make_env("swing", 2, varied=True, num_actions=4)
    with pytest.raises(ValueError, match=r"`num_actions` of `swing` must be 5 unless it is `varied`, got 9"):
        make_env("swing", 2, num_actions=9)
