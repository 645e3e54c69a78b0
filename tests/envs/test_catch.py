"""Catch by its rules: where ball and paddle go, what is paid, when episodes end; and its Gymnasium twin."""

from __future__ import annotations

import importlib

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import disco_torch.envs
from disco_torch.checks import checking
from disco_torch.envs import CATCH_ID, Catch, CatchEnv, CatchState, make_env
from disco_torch.envs.catch import LEFT, RIGHT, STAY
from disco_torch.types import tree_leaves, tree_map


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def state_of(*games: tuple[int, int, int]) -> CatchState:
    """Games as (ball row, ball column, paddle column)."""
    rows, columns, paddles = torch.tensor(games).unbind(1)
    return CatchState(rows, columns, paddles)


def play(env: Catch, actions: torch.Tensor, seed: int = 0) -> list:
    """The rows of a run: at reset and after each of `actions`, [T, B]."""
    generator = seeded(seed, env.device.type)
    state, row = env.reset(generator)
    rows = [row]
    for action in actions:
        state, row = env.step(state, action, generator)
        rows.append(row)
    return rows


def random_actions(steps: int, num_envs: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, (steps, num_envs), generator=seeded(seed))


def stack(rows: list, name: str) -> torch.Tensor:
    return torch.stack([getattr(row, name) for row in rows])


def test_known_boards():
    env = Catch(1, rows=3, columns=4)
    state, row = env.step(state_of((0, 3, 2)), torch.tensor([LEFT]), seeded())
    assert row.observations[0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]]
    assert (row.rewards.item(), row.discounts.item(), row.is_first.item(), row.episode_ends.item()) == (0, 1, False, False)
    assert [int(x) for x in (state.ball_row, state.ball_column, state.paddle_column)] == [1, 3, 1]


def test_the_start():
    env = Catch(64, rows=5, columns=6)
    state, row = env.reset(seeded())
    assert (state.ball_row == 0).all() and (state.paddle_column == 3).all()
    assert row.is_first.all() and not row.episode_ends.any() and not row.truncations.any()
    assert (row.rewards == 0).all() and (row.discounts == 1).all() and row.final_observations is None
    assert (row.observations[:, 0].argmax(1) == state.ball_column).all()
    assert (row.observations[:, -1, 3] == 1).all() and (row.observations.sum((1, 2)) == 2).all()


@pytest.mark.parametrize(
    ("paddle", "action", "reward"), [(2, STAY, 1), (1, RIGHT, 1), (3, LEFT, 1), (2, LEFT, -1), (2, RIGHT, -1), (0, STAY, -1)]
)
def test_rewards_and_the_next_episode(paddle, action, reward):
    env = Catch(1, rows=4, columns=5)
    state, row = env.step(state_of((2, 2, paddle)), torch.tensor([action]), seeded())
    assert row.rewards.item() == reward
    assert (row.discounts.item(), row.is_first.item(), row.episode_ends.item()) == (0, True, True)
    assert state.ball_row.item() == 0 and state.paddle_column.item() == 2
    assert row.observations[0, 0, state.ball_column.item()] == 1, "the closing row shows the next episode's first board"


def test_walls_hold_the_paddle():
    env = Catch(2, rows=20, columns=5)
    state = state_of((0, 0, 1), (0, 0, 3))
    for _ in range(4):
        state, _ = env.step(state, torch.tensor([LEFT, RIGHT]), seeded())
    assert state.paddle_column.tolist() == [0, 4]
    state, _ = env.step(state, torch.tensor([RIGHT, LEFT]), seeded())
    assert state.paddle_column.tolist() == [1, 3]


@pytest.mark.parametrize("rows", [2, 8, 11])
def test_episodes_last_one_step_less_than_rows(rows):
    ends = stack(play(Catch(3, rows=rows), random_actions(5 * rows, 3)), "episode_ends")
    steps = torch.arange(len(ends))
    assert torch.equal(ends, ((steps % (rows - 1) == 0) & (steps > 0))[:, None].expand(-1, 3))


def test_a_perfect_player_always_catches():
    env = Catch(32)
    generator = seeded()
    state, row = env.reset(generator)
    total = torch.zeros(32)
    for _ in range(70):
        state, row = env.step(state, (state.ball_column - state.paddle_column).sign() + STAY, generator)
        total += row.rewards
    assert (total == 10).all()


def test_columns_are_uniform():
    state, _ = Catch(80_000, columns=8).reset(seeded())
    counts = torch.bincount(state.ball_column, minlength=8).float()
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 30, "a chi-squared of 7 degrees exceeds 30 once in 10,000"
    rows = play(Catch(20_000, rows=2, columns=5), random_actions(1, 20_000))
    later = rows[1].observations[:, 0].sum(0)  # the second episode's columns
    assert ((later - 4000) ** 2 / 4000).sum() < 28


def test_same_generator_same_stream_and_another_differs():
    actions = random_actions(40, 6)
    first, again, other = (stack(play(Catch(6), actions, seed), "observations") for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_global_randomness_is_not_touched():
    before = torch.get_rng_state()
    play(Catch(4), random_actions(20, 4))
    assert torch.equal(before, torch.get_rng_state())


def test_copies_are_independent():
    actions = random_actions(30, 5)
    changed = actions.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 3
    for name in ("observations", "rewards"):
        one, two = (stack(play(Catch(5, rows=3, columns=3), acts), name) for acts in (actions, changed))
        others = [0, 1, 3, 4]
        assert torch.equal(one[:, others], two[:, others]) and not torch.equal(one[:, 2], two[:, 2])


def test_a_step_writes_nothing_in_place():
    env = Catch(8)
    state, row = env.reset(seeded())
    kept = tree_map(lambda x: x.clone(), (state, row))
    env.step(state, random_actions(1, 8)[0], seeded())
    for now, before in zip(vars(state).values(), vars(kept[0]).values(), strict=True):
        assert torch.equal(now, before)
    assert torch.equal(row.observations, kept[1].observations)


def test_a_saved_state_continues_the_run():
    env, generator = Catch(4), seeded()
    assert env.saves_state
    state, _ = env.reset(generator)
    for action in random_actions(5, 4):
        state, _ = env.step(state, action, generator)
    saved, saved_generator = tree_map(lambda x: x.clone(), state), generator.get_state()

    def rest(state, generator):
        boards = []
        for action in random_actions(20, 4, seed=9):
            state, row = env.step(state, action, generator)
            boards.append(row.observations)
        return torch.stack(boards)

    resumed = torch.Generator()
    resumed.set_state(saved_generator)
    assert torch.equal(rest(state, generator), rest(saved, resumed))


def test_shapes_and_dtypes_of_4096_copies():
    env = Catch(4096, rows=8, columns=8)
    row = play(env, random_actions(8, 4096))[-1]
    example = env.observation_example
    assert row.observations.shape == (4096, *example.shape) and row.observations.dtype == example.dtype == torch.float32
    assert (example == 0).all() and env.num_actions == 3 and env.name == "catch"
    dtypes = {"rewards": torch.float32, "discounts": torch.float32}
    for name in ("rewards", "discounts", "truncations", "is_first", "episode_ends"):
        value = getattr(row, name)
        assert value.shape == (4096,) and value.dtype == dtypes.get(name, torch.bool) and value.device == env.device
    assert len(tree_leaves(row.observations)) == 1


def test_dtypes_do_not_follow_the_default(request):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    row = play(Catch(2, rows=2), random_actions(3, 2))[-1]
    assert {row.observations.dtype, row.rewards.dtype, row.discounts.dtype} == {torch.float32}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu_nothing_is_read_back():
    env, actions = Catch(4096, device="cuda"), random_actions(20, 4096).cuda()
    play(env, actions)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        row = play(env, actions)[-1]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert row.observations.is_cuda and row.rewards.abs().max() == 0  # 20 is no multiple of 7


def test_errors():
    with pytest.raises(ValueError, match=r"`num_envs` must be greater than 0, got 0; it is the number of games"):
        Catch(0)
    with pytest.raises(ValueError, match=r"`rows` must be at least 2, so that the ball can fall, got 1"):
        Catch(1, rows=1)
    with pytest.raises(ValueError, match=r"`columns` must be greater than 0, got 0; the ball and the paddle"):
        Catch(1, columns=0)
    env = Catch(2)
    state, _ = env.reset(seeded())
    with pytest.raises(ValueError, match=r"`actions` must be \[2\], got \[3\]; it needs one action for each environment"):
        env.step(state, torch.zeros(3, dtype=torch.long), seeded())
    with pytest.raises(ValueError, match=r"`actions` must lie in 0 .. 2, got 3 at \[1\]"), checking():
        env.step(state, torch.tensor([0, 3]), seeded())
    with pytest.raises(ValueError, match=r"`actions` must be integers, got torch.float32"):
        env.step(state, torch.zeros(2), seeded())
    env.device = torch.device("cuda")
    with pytest.raises(ValueError, match=r"`generator` must be on the device of the environment, cuda, got one on cpu"):
        env.reset(seeded())


def test_images():
    env = Catch(2, rows=4, columns=3)
    assert env.render() is None
    image = env.render(state_of((1, 2, 0), (0, 0, 0)))
    assert image.shape == (64, 48, 3) and image.dtype == np.uint8
    cells = image[::16, ::16, 0] == 255
    assert cells.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (5, 4), (8, 8)])
def test_gymnasium_twin_gives_the_same_transitions(rows, columns):
    env, generator, steps = Catch(3, rows, columns), seeded(5), 4 * (rows - 1)
    state, row = env.reset(generator)
    twins = [gymnasium.make(CATCH_ID, rows=rows, columns=columns) for _ in range(3)]
    boards = [twin.reset(options={"ball_column": int(c)})[0] for twin, c in zip(twins, state.ball_column, strict=True)]
    assert np.array_equal(row.observations, boards)
    for actions in random_actions(steps, 3):
        before = state
        state, row = env.step(state, actions, generator)
        for i, twin in enumerate(twins):
            board, reward, terminated, truncated, _ = twin.step(actions[i].item())
            assert (reward, terminated, truncated) == (row.rewards[i], bool(row.episode_ends[i]), False)
            if terminated:
                assert board[-1].sum() == (1 if reward == 1 else 2) and board[-1, before.ball_column[i]] == 1
                board, _ = twin.reset(options={"ball_column": int(state.ball_column[i])})
            assert np.array_equal(board, row.observations[i])


def test_gymnasium_twin_keeps_the_interface():
    env = gymnasium.make(CATCH_ID, rows=5, columns=4, render_mode="rgb_array")
    check_env(env.unwrapped)
    first, _ = env.reset(seed=3)
    assert np.array_equal(first, env.reset(seed=3)[0])
    assert env.render().shape == (80, 64, 3) and gymnasium.make(CATCH_ID).unwrapped.render() is None
    with pytest.raises(ValueError, match=r"`ball_column` must lie in 0 .. 3, got 4"):
        env.reset(options={"ball_column": 4})
    with pytest.raises(ValueError, match=r"`render_mode` must be None or 'rgb_array', got 'human'; Catch opens no window"):
        CatchEnv(render_mode="human")


def test_the_id_is_registered_once(recwarn):
    importlib.reload(disco_torch.envs)
    assert not [warning for warning in recwarn if "Catch" in str(warning.message)]
    env = make_env(CATCH_ID, 2, rows=3)
    assert env.observation_example.shape == (3, 8) and env.num_actions == 3
