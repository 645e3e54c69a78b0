"""Atari games: what is played is what the settings say, and what goes wrong is said in a sentence."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from disco_torch.envs import Atari, AtariConfig, EnvStep, make_env
from disco_torch.envs import atari as module


def play(env: Atari, steps: int, seed: int = 0) -> Iterator[EnvStep]:
    """Rows of random play, the first of `reset` included."""
    generator = torch.Generator().manual_seed(seed)
    _, row = env.reset(generator)
    yield row
    for _ in range(steps):
        actions = torch.randint(env.num_actions, (env.num_envs,), generator=generator)
        _, row = env.step(None, actions, generator)
        yield row
    env.close()


@pytest.mark.parametrize("name", ["atari/ms_pacman", "atari/MsPacman", "atari/ms-pacman", "atari/Ms Pacman"])
def test_a_name_may_be_spelled_in_any_way(name: str) -> None:
    env = make_env(name, 2)
    assert env.name == "atari/ms_pacman" and env.num_actions == 9
    assert env.observation_example.shape == (4, 84, 84) and env.observation_example.dtype == torch.uint8
    env.close()


def test_every_setting_of_the_vector_environment_is_set_on_purpose() -> None:
    """What ale-py decides by its own defaults would change with its version."""
    vector = module._import_ale()[0]
    theirs = set(inspect.signature(vector.__init__).parameters)
    about_speed = {"self", "game", "num_envs", "batch_size", "num_threads", "thread_affinity_offset"}
    assert theirs - about_speed - set(AtariConfig().arguments()) == set()


def test_the_protocol_of_the_defaults() -> None:
    assert AtariConfig().arguments() == {
        "img_height": 84,
        "img_width": 84,
        "grayscale": True,
        "stack_num": 4,
        "frameskip": 4,
        "maxpool": True,
        "noop_max": 30,
        "repeat_action_probability": 0.0,
        "full_action_space": False,
        "continuous": False,
        "continuous_action_threshold": 0.5,
        "max_num_frames_per_episode": 108_000,
        "use_fire_reset": False,
        "reward_clipping": False,
        "episodic_life": False,
        "life_loss_info": False,
        "autoreset_mode": "NextStep",
    }


def test_a_time_limit_cuts_and_the_next_row_begins() -> None:
    rows = list(play(Atari("pong", 2, AtariConfig(max_frames=40), num_threads=1), 25))
    ends = [t for t, row in enumerate(rows) if row.episode_ends.all()]
    assert ends == [10, 21]  # 10 steps of 4 screens, and a row for the reset
    for t in ends:
        cut, first = rows[t], rows[t + 1]
        assert cut.truncations.all() and (cut.discounts == 1).all() and cut.observations.flatten(1).any(1).all()
        assert first.is_first.all() and (first.discounts == 0).all() and (first.rewards == 0).all()
        assert not first.observations[:, :3].any() and first.observations[:, 3].any()
    begins = [t for t, row in enumerate(rows) if row.is_first.any()]
    assert begins == [0, 11, 22]


def test_a_lost_life_ends_the_return_but_not_the_game() -> None:
    """Breakout has five lives: four losses close a row within an episode, the fifth ends it."""
    plain, ending = (
        list(play(Atari("breakout", 1, AtariConfig(lost_life_ends_return=flag), num_threads=1), 400))
        for flag in (False, True)
    )
    assert all(torch.equal(x.observations, y.observations) for x, y in zip(plain, ending, strict=True))
    first_end = next(t for t, row in enumerate(plain) if row.episode_ends.any())
    losses = [t for t in range(first_end + 1) if ending[t].discounts[0] == 0]
    assert len(losses) == 5 and losses[-1] == first_end
    assert [t for t in range(first_end + 1) if plain[t].discounts[0] == 0] == [first_end]
    assert not any(ending[t].episode_ends[0] for t in losses[:-1])


def test_rewards_are_the_points_of_the_game() -> None:
    rewards = torch.stack([row.rewards for row in play(Atari("ms_pacman", 2, num_threads=1), 200)])
    assert rewards.dtype == torch.float32 and rewards.max() >= 10


def test_games_do_not_depend_on_the_number_of_threads() -> None:
    one, two = (list(play(Atari("breakout", 3, num_threads=n), 40, seed=5)) for n in (1, 2))
    other = list(play(Atari("breakout", 3, num_threads=1), 40, seed=6))
    assert all(torch.equal(x.observations, y.observations) for x, y in zip(one, two, strict=True))
    assert not all(torch.equal(x.observations, y.observations) for x, y in zip(one, other, strict=True))


def test_sticky_actions_change_the_game() -> None:
    plain, sticky = (
        list(play(Atari("breakout", 2, AtariConfig(repeat_action_probability=p), num_threads=1), 60)) for p in (0.0, 0.25)
    )
    assert not all(torch.equal(x.observations, y.observations) for x, y in zip(plain, sticky, strict=True))


def test_the_screen_is_drawn_in_colours_and_in_step() -> None:
    env = Atari("breakout", 1, AtariConfig(max_frames=40), num_threads=1, render_mode="rgb_array")
    for row in play(env, 15):
        screen = env.render()
        assert screen is not None and screen.shape == (210, 160, 3) and screen.dtype == np.uint8
        # Grey values of the bricks' rows agree with what the agent sees there.
        grey = (screen @ [0.299, 0.587, 0.114])[57:93, 10:150].mean()
        assert abs(grey - row.observations[0, -1, 23:37, 5:79].float().mean()) < 6
    assert Atari("breakout", 1, num_threads=1).render() is None


def test_a_game_must_be_reset_first_and_actions_must_be_its_own() -> None:
    env, generator = Atari("pong", 2, num_threads=1), torch.Generator()
    with pytest.raises(ValueError, match="`reset` must come before `step`"):
        env.step(None, torch.zeros(2, dtype=torch.long), generator)
    env.reset(generator)
    with pytest.raises(ValueError, match="`actions` must be"):
        env.step(None, torch.zeros(3, dtype=torch.long), generator)
    with pytest.raises(ValueError, match="`actions`"):
        env.step(None, torch.tensor([0, 6]), generator)
    env.close()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("atari/pongg", {}, "got 'atari/pongg'; did you mean atari/pong"),
        ("atari/qqqq", {}, "`env` must be one of the 104 games that ale-py has, got 'atari/qqqq'"),
        ("atari/joust", {}, "`env` must be a game for one player, got 'atari/joust'"),
        ("atari/pong", {"sticky": 1}, r"`atari/pong` takes height, .* and render_mode, got 'sticky'"),
        ("atari/pong", {"stack": 0}, "`stack` must be at least 1, got 0"),
        ("atari/pong", {"stack": 2.5}, "`stack` of atari must be int, got 2.5"),
        ("atari/pong", {"grayscale": "maybe"}, "`grayscale` of atari must be bool, got 'maybe'"),
        ("atari/pong", {"repeat_action_probability": 2}, "`repeat_action_probability` must"),
        (
            "atari/pong",
            {"repeat_action_probability": "often"},
            "`repeat_action_probability` must lie in",
        ),
        ("atari/pong", {"render_mode": "human"}, "`render_mode` of atari must be 'rgb_array' or None, got 'human'"),
        ("atari/pong", {"num_threads": -1}, "`num_threads` must be at least 0, got -1"),
        ("atari/pong", {"wrappers": [lambda env: env]}, "`wrappers`"),
    ],
)
def test_what_there_is_not_is_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(name, 1, **arguments)


def test_words_of_a_command_line_are_booleans() -> None:
    env = make_env("atari/pong", 1, grayscale="false", full_action_space="true", height=32, width=40)
    assert env.num_actions == 18 and env.observation_example.shape == (4, 32, 40, 3)
    env.close()


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(
        ValueError, match=r"needs the package ale-py, .*; install it with pip install 'ale-py>=0.12.1'$"
    ) as error:
        make_env("atari/pong", 1)
    assert "\n" not in str(error.value)


def test_a_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(game: str, num_envs: int, num_threads: int) -> None:
        raise AssertionError

    roms = module._import_ale()[1]
    monkeypatch.setattr(module, "_import_ale", lambda: (old, roms))
    with pytest.raises(ValueError, match="ale-py is too old"):
        make_env("atari/pong", 1)
