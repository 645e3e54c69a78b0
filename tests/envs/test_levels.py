"""What all families share: layouts, episodes, purity, levels and splits, by name."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from playing import mean_returns
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from disco_torch.checks import checking
from disco_torch.envs import FAMILIES, LevelEnvironment, LevelState, make_env
from disco_torch.envs.levels import draw_integers, draw_planes, select_envs

families = pytest.mark.parametrize("name", sorted(FAMILIES))
splits = pytest.mark.parametrize("split", ["train", "held-out"])
LONG = {"doors", "lander", "maze", "slippery", "swing"}
"""Families of long episodes, whose success may be rare."""
ONE_STEP = {"bandit"}


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def family(name: str, num_envs: int, **kwargs) -> LevelEnvironment:
    env = make_env(name, num_envs, **({"level_seed": None} | kwargs))
    assert isinstance(env, LevelEnvironment)
    return env


def equal(a, b) -> bool:
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def play(env: LevelEnvironment, steps: int, seed: int = 0):
    """All states and rows of a random run."""
    generator = seeded(seed, env.device.type)
    state, row = env.reset(generator)
    run = [(state, row)]
    for _ in range(steps):
        actions = torch.randint(env.num_actions, (env.num_envs,), generator=generator, device=env.device)
        state, row = env.step(state, actions, generator)
        run.append((state, row))
    return run


def check_row(env: LevelEnvironment, row, num_envs: int) -> None:
    example = env.observation_example
    assert row.observations.shape == (num_envs, *example.shape)
    assert row.observations.dtype == example.dtype == torch.float32
    assert row.observations.isfinite().all()
    if env.observation_kinds in ("unit", None):
        assert row.observations.min() >= 0 and row.observations.max() <= 1
    for field, dtype in [("rewards", torch.float32), ("discounts", torch.float32)] + [
        (name, torch.bool) for name in ("truncations", "is_first", "episode_ends")
    ]:
        value = getattr(row, field)
        assert value.shape == (num_envs,) and value.dtype == dtype and value.device == env.device
    assert row.rewards.isfinite().all() and row.rewards.abs().max() <= 5
    assert torch.equal((row.discounts == 0) | row.truncations, row.episode_ends)
    assert ((row.discounts == 1) | (row.discounts == 0) & ~row.truncations).all()
    assert env.truncates or not row.truncations.any()
    assert (row.final_observations is not None) == env.truncates
    if env.truncates:
        assert row.final_observations.shape == row.observations.shape
        assert torch.equal(row.final_observations[~row.truncations], row.observations[~row.truncations])


@families
@splits
def test_thousands_of_copies_in_one_call(name, split):
    env = family(name, 2000, split=split)
    assert env.name == name and env.saves_state and (env.observation_example == 0).all()
    run = play(env, 60)
    for _, row in run:
        check_row(env, row, 2000)
    rows = [row for _, row in run]
    assert rows[0].is_first.all() and not rows[0].episode_ends.any() and (rows[0].rewards == 0).all()
    assert all(torch.equal(row.is_first, row.episode_ends) for row in rows[1:])
    ends = torch.stack([row.episode_ends for row in rows])
    rewards = torch.stack([row.rewards for row in rows])
    if name in LONG:
        return
    assert ends.any(0).float().mean() > 0.9, "episodes of nearly all copies end within 60 steps"
    assert (1 if name in ONE_STEP else 4) <= ends.numel() / ends.sum() <= 50
    assert rewards.abs().sum(0).gt(0).float().mean() > 0.7, "most copies see a reward in 60 steps of a random player"


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - ONE_STEP))
def test_no_episode_is_over_with_its_first_action(name):
    """The loss leaves that action out."""
    run = play(family(name, 2000), 40)
    for (_, before), (_, after) in itertools.pairwise(run):
        assert not (before.is_first & after.episode_ends).any()


@families
@splits
def test_any_uniforms_and_actions_give_rows_that_fit(name, split):
    env = family(name, 16, split=split)

    @given(seed=st.integers(0, 2**32), corner=st.sampled_from([None, 0.0, 1.0 - 2**-24]), double=st.booleans())
    def check(seed, corner, double):
        generator, dtype = seeded(seed), torch.float64 if double else torch.float32

        def draw(draws):
            uniforms = torch.rand(16, draws, generator=generator, dtype=dtype)
            if corner is None:
                return uniforms
            return torch.where(torch.rand(16, draws, generator=generator) < 0.5, corner, uniforms)

        state, row = env.start(draw(env.level_draws), draw(env.episode_draws))
        check_row(env, row, 16)
        for _ in range(12):
            actions = torch.randint(env.num_actions, (16,), generator=generator)
            state, row = env.step_with(state, actions, draw(env.step_draws + env.episode_draws))
            check_row(env, row, 16)

    check()


@families
def test_the_next_episode_begins_at_once_in_the_same_level(name):
    env = family(name, 64)
    generator = seeded()
    state, _ = env.reset(generator)
    ended = cuts = 0
    for _ in range(520 if name in LONG else 60):
        actions = torch.randint(env.num_actions, (64,), generator=generator)
        uniforms = torch.rand(64, env.step_draws + env.episode_draws, generator=generator)
        before = state
        state, row = env.step_with(state, actions, uniforms)
        episode, rewards, ends = env.advance(before.levels, before.episode, actions, uniforms[:, : env.step_draws])
        fresh = env.begin(before.levels, uniforms[:, env.step_draws :])
        assert equal(state.levels, before.levels)
        assert torch.equal(row.rewards, rewards) and torch.equal(row.discounts == 0, ends)
        if env.truncates:
            assert torch.equal(row.truncations, ~ends & (episode.time >= before.levels.limit))
            last, cut = env.observe(before.levels, episode), row.truncations
            assert torch.equal(row.final_observations[cut], last[cut])
            cuts += int(cut.sum())
        ends = row.episode_ends
        assert equal(rows_of(state.episode, ends), rows_of(fresh, ends))
        assert equal(rows_of(state.episode, ~ends), rows_of(episode, ~ends))
        assert torch.equal(row.observations, env.observe(state.levels, state.episode))
        ended += int(ends.sum())
    assert ended > 0 and (cuts > 0) == env.truncates


def rows_of(tree, which):
    return pytree.tree_map(lambda x: x[which], tree)


@families
def test_a_step_writes_nothing_in_place(name):
    env = family(name, 32)
    generator = seeded()
    state, row = env.reset(generator)
    for _ in range(30):
        actions = torch.randint(env.num_actions, (32,), generator=generator)
        uniforms = torch.rand(32, env.step_draws + env.episode_draws, generator=generator)
        given_in = (state, row, actions, uniforms)
        kept = pytree.tree_map(lambda x: x.clone(), given_in)
        state, row = env.step_with(state, actions, uniforms)
        assert equal(given_in, kept)
        again = env.step_with(*kept[:1], *kept[2:])
        assert equal((state, row), again)


@families
def test_games_do_not_depend_on_how_copies_are_split(name):
    env, part = family(name, 12), slice(3, 8)
    generator = seeded()
    starts = [torch.rand(12, draws, generator=generator) for draws in (env.level_draws, env.episode_draws)]
    whole, piece = env.start(*starts), env.start(*(uniforms[part] for uniforms in starts))
    for _ in range(40):
        assert equal(pytree.tree_map(lambda x: x[part], whole), piece)
        actions = torch.randint(env.num_actions, (12,), generator=generator)
        uniforms = torch.rand(12, env.step_draws + env.episode_draws, generator=generator)
        whole, piece = (
            env.step_with(whole[0], actions, uniforms),
            env.step_with(piece[0], actions[part], uniforms[part]),
        )


@families
@splits
def test_a_level_seed_is_one_level_of_all_copies(name, split):
    def levels(seed, reset_seed=0):
        return family(name, 5, split=split, level_seed=seed).reset(seeded(reset_seed))[0].levels

    assert equal(levels(3), levels(3, reset_seed=9))
    assert equal(levels(3), pytree.tree_map(lambda x: x[:1].expand_as(x), levels(3)))
    assert not all(equal(levels(3), levels(seed)) for seed in range(4, 8))
    assert not equal(levels(None), levels(None, reset_seed=9))
    assert equal(levels(None), levels(None))


@families
def test_no_level_is_in_both_splits(name):
    """Levels of one split, as all their numbers, never occur in the other, with the same draws."""
    trees = [family(name, 3000, split=split).reset(seeded())[0].levels for split in FAMILIES[name].splits]
    rows = [torch.cat([x.reshape(3000, -1).double() for x in pytree.tree_leaves(tree)], dim=1).tolist() for tree in trees]
    levels = [{tuple(row) for row in split} for split in rows]
    assert not any(a & b for a, b in itertools.combinations(levels, 2)) and min(map(len, levels)) > 5


@families
def test_same_generator_same_stream_whatever_the_default_dtype(name, request):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    before = torch.get_rng_state()
    first, other = play(family(name, 6), 30, seed=3), play(family(name, 6), 30, seed=4)
    assert torch.equal(before, torch.get_rng_state()), "the global generator is not touched"
    torch.set_default_dtype(torch.float64)
    again = play(family(name, 6), 30, seed=3)
    assert equal(first, again) and not equal(first, other)


@families
def test_images(name):
    env = family(name, 3)
    assert env.render() is None
    state, row = env.reset(seeded())
    image = env.render(state)
    assert image.dtype == np.uint8 and image.shape[2] == 3
    picture = env.picture(state.levels, state.episode)[0]
    assert picture.min() >= 0 and picture.max() <= 1
    paints = type(env).picture is not LevelEnvironment.picture
    assert paints or torch.equal(picture, row.observations[0])
    rows, columns = ([1, *picture.shape])[-2:]
    assert image.shape[:2] == (16 * rows, 16 * columns)
    assert np.array_equal(image, draw_planes(picture.numpy()))


def test_colours_of_planes():
    planes = np.zeros((3, 1, 4))
    planes[0, 0, 0] = planes[1, 0, 0] = planes[1, 0, 1] = planes[2, 0, 2] = 1
    assert draw_planes(planes, cell=1)[0].tolist() == [[255] * 3, [110] * 3, [240, 190, 40], [32] * 3]
    assert draw_planes(np.array([0.0, 1.0]), cell=1).tolist() == [[[32] * 3, [255] * 3]]


class OffDevice(TorchDispatchMode):
    """Collects operations that touch a tensor on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in pytree.tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        if any(x.device.type == "cpu" for x in tensors):
            self.found.add(str(func))
        return out


@families
def test_nothing_is_read_back_or_brought_from_the_cpu(name):
    """Tensors without data stand for a GPU's: reading one raises, and what is made elsewhere is seen."""
    env = family(name, 8, device="meta")

    def draw(draws):
        return torch.empty(8, draws, device="meta")

    with OffDevice() as off_device:
        state, _ = env.start(draw(env.level_draws), draw(env.episode_draws))
        actions = torch.empty(8, dtype=torch.long, device="meta")
        env.step_with(state, actions, draw(env.step_draws + env.episode_draws))
    assert not off_device.found


def test_what_is_brought_from_the_cpu_is_seen():
    with OffDevice() as off_device:
        torch.empty(2, device="meta") + torch.tensor(1.0)
    assert off_device.found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@families
def test_a_step_is_captured_on_the_gpu(name):
    env = family(name, 256, device="cuda")
    generator = seeded(device="cuda")
    state, _ = env.reset(generator)
    actions = torch.randint(env.num_actions, (256,), generator=generator, device="cuda")
    uniforms = torch.rand(256, env.step_draws + env.episode_draws, generator=generator, device="cuda")
    levels = torch.rand(256, env.level_draws, generator=generator, device="cuda")
    episodes = torch.rand(256, env.episode_draws, generator=generator, device="cuda")
    expected = env.step_with(state, actions, uniforms), env.start(levels, episodes)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = env.step_with(state, actions, uniforms), env.start(levels, episodes)
    graph.replay()
    torch.cuda.synchronize()
    assert equal(captured, expected)
    cpu = family(name, 256)
    state, actions, uniforms = pytree.tree_map(lambda x: x.cpu(), (state, actions, uniforms))
    on_cpu = cpu.step_with(state, actions, uniforms)
    on_gpu = pytree.tree_map(lambda x: x.cpu(), expected[0])
    if env.observation_kinds == "numbers":  # sines of the two differ in the last bit
        pairs = zip(pytree.tree_leaves(on_gpu), pytree.tree_leaves(on_cpu), strict=True)
        assert all(torch.allclose(x.double(), y.double(), rtol=1e-5, atol=1e-5) for x, y in pairs)
    else:
        assert equal(on_gpu, on_cpu)


@families
def test_last_states_can_be_seen_without_autoreset(name):
    """Up to its end an episode is the same; then the last state is left, which can be drawn."""
    env, last = family(name, 16), family(name, 16)
    last.autoreset = False
    generator = seeded(3)
    state, _ = env.reset(generator)
    ended = torch.zeros(16, dtype=torch.bool)
    for _ in range(1000 if name in LONG else 400):
        actions = torch.randint(env.num_actions, (16,), generator=generator)
        uniforms = torch.rand(16, env.step_draws + env.episode_draws, generator=generator)
        (after, row), (left, shown) = (each.step_with(state, actions, uniforms) for each in (env, last))
        check_row(last, shown, 16)
        assert torch.equal(row.rewards, shown.rewards) and torch.equal(row.episode_ends, shown.episode_ends)
        runs = ~row.episode_ends
        assert torch.equal(row.observations[runs], shown.observations[runs])
        assert last.render(left).ndim == 3
        differs = (row.observations != shown.observations).flatten(1).any(1)
        ended |= row.episode_ends & (differs | (name in ONE_STEP))
        state = after
        if ended.all():
            break
    assert ended.all()


def test_integers_from_uniform_numbers():
    low_to_high = draw_integers(torch.linspace(0, 0.999, 1000), 2, 5)
    assert torch.bincount(low_to_high).tolist() == [0, 0, 250, 250, 250, 250]
    nearly_one = torch.full((1,), 1 - 2**-24)
    assert draw_integers(nearly_one, 0, 2**26).item() <= 2**26
    bounds = draw_integers(nearly_one.expand(2), torch.tensor([0, 3]), torch.tensor([0, 7]))
    assert bounds.tolist() == [0, 7]


def test_select_envs_of_trees():
    a, b = (LevelState(torch.full((2, 3), x), {"t": torch.full((2,), x)}) for x in (1, 0))
    chosen = select_envs(torch.tensor([True, False]), a, b)
    assert chosen.levels.tolist() == [[1] * 3, [0] * 3] and chosen.episode["t"].tolist() == [1, 0]


@families
def test_errors(name):
    with pytest.raises(
        ValueError, match=r"`num_envs` must be greater than 0, got 0; it is the number of parallel environments"
    ):
        make_env(name, 0)
    with pytest.raises(ValueError, match=r"`split` must be 'train' .*or 'held-out', got 'test'"):
        make_env(name, 1, split="test")
    for seed in (1.5, "x", 2**63):
        with pytest.raises(ValueError, match=r"`level_seed` must be an integer of at most 64 bits or None, got "):
            make_env(name, 1, level_seed=seed)
    with pytest.raises(ValueError, match=rf"`{name}` takes .*split and level_seed, got 'colour'"):
        make_env(name, 1, colour=3)
    env = make_env(name, 2)
    state, _ = env.reset(seeded())
    with pytest.raises(ValueError, match=r"`actions` must be \[2\], got \[3\]; it needs one action for each environment"):
        env.step(state, torch.zeros(3, dtype=torch.long), seeded())
    with pytest.raises(ValueError, match=r"`actions` must lie in 0 .. \d+, got 18 at \[1\]"), checking():
        env.step(state, torch.tensor([0, 18]), seeded())
    env.device = torch.device("cuda")
    with pytest.raises(ValueError, match=r"`generator` must be on the device of the environment, cuda, got one on cpu"):
        env.reset(seeded())


@pytest.mark.parametrize(("name", "view"), [("maze", "local"), ("maze", "coordinates")])
def test_other_views_give_rows_that_fit(name, view):
    env = family(name, 200, view=view)
    for _, row in play(env, 40):
        check_row(env, row, 200)


def test_every_copy_its_own_level_by_name():
    assert make_env("chain", 2, level_seed="none").level_seed is None
    assert make_env("chain", 2, level_seed=4).level_seed == 4 and make_env("chain", 2).level_seed == 0


def test_the_family_of_the_page(monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    own = set(FAMILIES)
    monkeypatch.setitem(FAMILIES, "signals", FAMILIES["grid"])  # so that it is taken out again afterwards
    del FAMILIES["signals"]
    exec(re.search(r"```python\n(.*?)```", page, flags=re.S)[1], {"__name__": "my_module"})
    assert set(FAMILIES) == {*own, "signals"}
    for split in ("train", "held-out"):
        env = family("signals", 500, split=split)
        for _, row in play(env, 20):
            check_row(env, row, 500)
        levels = env.reset(seeded())[0].levels
        assert ((levels.answers.sum(1) % 3 == 0) == (split == "held-out")).all()

        def answer(state):
            return state.levels.answers.gather(1, state.episode.signal[:, None])[:, 0]

        assert (mean_returns(env, answer, 16) == 8).all()
        assert mean_returns(env, lambda state: torch.zeros(500, dtype=torch.long), 80).mean() < 4
    names = set(re.findall(r"^\| `([a-z-]+)` \|", page, flags=re.M))
    assert names == own, "the page lists all families"
