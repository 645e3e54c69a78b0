"""Environments of other packages by name. Those that are not installed are skipped; what is tricky is tested with fakes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from disco_torch.envs import PACKAGES, GymnasiumEnvironment, make_env, packages
from disco_torch.envs.crafter import CrafterEnv
from disco_torch.envs.nethack import NetHackView
from disco_torch.envs.procgen import PROCGEN_GAMES, ProcgenEnvironment, import_procgen

SHOWN = {
    "minatar/space-invaders": ((10, 10, 6), torch.float32, 4),
    "minigrid/memory-s7": ((7, 7, 3), torch.uint8, 7),
    "procgen/coinrun": ((64, 64, 3), torch.uint8, 15),
    "crafter/reward": ((64, 64, 3), torch.uint8, 17),
}


def needs(package: str) -> None:
    try:
        PACKAGES[package].load()
    except ImportError as error:
        pytest.skip(f"{package} is not installed ({error}); {PACKAGES[package].install}")


def play(env: Any, steps: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    _, row = env.reset(generator)
    rows = [row]
    for _ in range(steps):
        _, row = env.step(None, torch.randint(env.num_actions, (env.num_envs,), generator=generator), generator)
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_seen_and_done(name: str) -> None:
    needs(name.partition("/")[0])
    shape, dtype, num_actions = SHOWN[name]
    env = make_env(name, 2)
    assert env.name == name and env.num_actions == num_actions
    rows = play(env, 20)
    env.close()
    assert rows[-1].observations.shape == (2, *shape) and rows[-1].observations.dtype == dtype
    assert rows[0].is_first.all() and any((row.observations != rows[0].observations).any() for row in rows)
    again = make_env(name, 2)
    assert all(
        torch.equal(a.observations, b.observations) and torch.equal(a.rewards, b.rewards)
        for a, b in zip(rows, play(again, 20), strict=True)
    )
    again.close()


def test_nethack() -> None:
    needs("nethack")
    env = make_env("nethack/score", 2, frame_stack=4)
    assert env.num_actions == 23 and env.observation_kinds == {"screen": "image", "stats": "numbers"}
    rows = play(env, 20)
    env.close()
    screen, stats = rows[-1].observations["screen"], rows[-1].observations["stats"]
    assert screen.shape == (2, 4, 21, 79, 3) and screen.dtype == torch.uint8 and stats.shape == (2, 4, 27)
    assert (screen[..., 2] == 255).sum((2, 3)).eq(1).all() and (screen[..., 0] == ord("@")).any() and stats.abs().max() < 3
    again = make_env("nethack/score", 2, frame_stack=4)
    assert torch.equal(play(again, 20)[-1].observations["screen"], screen), "the same games for the same seed"
    again.close()


def test_procgen_has_levels() -> None:
    needs("procgen")
    env = make_env("procgen/maze", 4, distribution_mode="easy", num_levels=1, frame_stack=2)
    _, row = env.reset(torch.Generator().manual_seed(0))
    first = row.observations
    assert first.shape == (4, 2, 64, 64, 3) and (first == first[:1, :1]).all(), "one level, and all see its first frame"
    assert env.render().shape == (64, 64, 3)
    env.close()


def test_crafter_writes_what_was_achieved(tmp_path: Path) -> None:
    needs("crafter")
    env = make_env("crafter/no-reward", 1, vectorization_mode="sync", length=5, stats=str(tmp_path), render_mode="rgb_array")
    rows = play(env, 11)
    assert env.render().shape == (256, 256, 3)
    env.close()
    assert [int(row.truncations.sum()) for row in rows].count(1) == 2 and all((row.rewards == 0).all() for row in rows)
    lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert [line["length"] for line in lines] == [5, 5] and sum(key.startswith("achievement_") for key in lines[0]) == 22


def test_minatar_has_a_picture_a_time_limit_and_least_actions() -> None:
    needs("minatar")
    env = make_env("minatar/breakout", 1, render_mode="rgb_array", max_episode_steps=3)
    rows = play(env, 9)
    assert env.render().shape == (160, 160, 3) and env.num_actions == 3
    assert sum(bool(row.truncations.any()) for row in rows) >= 2
    env.close()
    assert isinstance(env, GymnasiumEnvironment)


def test_names_in_any_spelling_and_names_that_are_none() -> None:
    needs("minigrid")
    for spelling in ("minigrid/door-key-5x5", "minigrid/DoorKey-5x5", "minigrid/doorkey_5x5"):
        env = make_env(spelling, 1)
        assert isinstance(env, GymnasiumEnvironment) and env.name == spelling
        env.close()
    assert PACKAGES["minigrid"].games()["multi-room-n4-s5"] == "MiniGrid-MultiRoom-N4-S5-v1", "the newest version"
    with pytest.raises(
        ValueError,
        match=r"`env` must be an environment of minigrid, got 'minigrid/four-room'; did you mean minigrid/four-rooms",
    ):
        make_env("minigrid/four-room", 1)
    with pytest.raises(ValueError, match=r"`frame_stack` must be at least 1, got 0"):
        make_env("minigrid/empty-5x5", 1, frame_stack=0)


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("minatar/breakout", "minatar.gym", "pip install --no-deps minatar"),
        ("minigrid/empty-5x5", "minigrid", "pip install minigrid"),
        ("procgen/coinrun", "procgen", "pip install --no-deps procgen-mirror gym3 cffi"),
        ("crafter/reward", "crafter", "pip install crafter"),
        ("nethack/score", "nle", "pip install --no-deps nle"),
    ],
)
def test_a_missing_package_is_one_line(name: str, module: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    known = importlib.import_module

    def refuse(wanted: str, *args: Any) -> Any:
        if wanted == module:
            raise ModuleNotFoundError(f"No module named {wanted!r}")
        return known(wanted, *args)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ValueError, match=rf"`env` '{name}' needs the package .*install it with {command}") as caught:
        make_env(name, 1)
    assert "\n" not in str(caught.value)


class FakeGames:
    """gym3: the second game ends every third step; `first` comes with the new episode's frame and the old one's reward."""

    def __init__(self, num: int, **options: Any) -> None:
        self.num, self.options, self.time, self.closed = num, options, 0, False
        self.acted: list[np.ndarray] = []

    def observe(self) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
        first = np.array([self.time == 0, self.time % 3 == 0])
        self.images = np.full((2, 64, 64, 3), self.time, np.uint8)
        return np.array([0.0, 10.0 if self.time and first[1] else 1.0], np.float32), {"rgb": self.images}, first

    def act(self, actions: np.ndarray) -> None:
        self.acted.append(actions)
        self.time += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake_procgen(monkeypatch: pytest.MonkeyPatch) -> list[FakeGames]:
    made: list[FakeGames] = []
    module = ModuleType("procgen")
    module.ProcgenGym3Env = lambda **options: made.append(FakeGames(**options)) or made[-1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "procgen", module)
    return made


def test_gym3_rows_as_ends_with_the_next_first_observation(fake_procgen: list[FakeGames]) -> None:
    env = make_env("procgen/coinrun", 2, distribution_mode="easy", num_levels=200, start_level=7)
    generator = torch.Generator().manual_seed(0)
    _, row = env.reset(generator)
    assert row.is_first.all() and not row.episode_ends.any() and (row.rewards == 0).all() and (row.discounts == 1).all()
    assert row.final_observations is None and not env.truncates
    rows = [env.step(None, torch.tensor([3, 14]), generator)[1] for _ in range(4)]
    assert [row.rewards.tolist() for row in rows] == [[0, 1], [0, 1], [0, 10], [0, 1]]
    assert [row.discounts.tolist() for row in rows] == [[1, 1], [1, 1], [1, 0], [1, 1]]
    assert (
        [row.is_first.tolist()[1] for row in rows]
        == [row.episode_ends.tolist()[1] for row in rows]
        == [False, False, True, False]
    )
    assert [int(row.observations[1, 0, 0, 0]) for row in rows] == [1, 2, 3, 4], "copied: gym3 may reuse its arrays"
    assert not any(row.truncations.any() for row in rows)
    (games,) = fake_procgen
    assert games.acted[0].tolist() == [3, 14] and games.acted[0].dtype == np.int32 and (env.render() == 4).all()
    assert games.options["num_levels"] == 200 and games.options["start_level"] == 7
    assert games.options["env_name"] == "coinrun" and games.options["distribution_mode"] == "easy"
    env.reset(generator)
    assert games.closed and fake_procgen[1].options["rand_seed"] != games.options["rand_seed"]
    env.close()
    assert fake_procgen[1].closed


def test_procgen_arguments(fake_procgen: list[FakeGames]) -> None:
    with pytest.raises(ValueError, match=r"`distribution_mode` must be one of 'easy', .*got 'normal'"):
        make_env("procgen/maze", 1, distribution_mode="normal")
    with pytest.raises(ValueError, match=r"procgen/maze takes distribution_mode, .*got 'colour'"):
        make_env("procgen/maze", 1, colour=True)
    with pytest.raises(ValueError, match=r"`num_levels` must be at least 0, got -1"):
        make_env("procgen/maze", 1, num_levels=-1)
    with pytest.raises(ValueError, match=r"`wrappers` are for single Gymnasium environments, got 1 for 'procgen/maze'"):
        make_env("procgen/maze", 1, wrappers=[lambda env: env])
    env = ProcgenEnvironment(2, "maze", distribution_mode="exploration")
    with pytest.raises(ValueError, match=r"`reset` must come before `step`"):
        env.step(None, torch.zeros(2, dtype=torch.long), torch.Generator())
    env.reset(torch.Generator())
    assert "num_levels" not in fake_procgen[0].options and len(PROCGEN_GAMES) == 16


def test_procgen_is_imported_without_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in is gone afterwards, and a `gym` that was there is there again."""
    (tmp_path / "procgen.py").write_text("from gym.envs.registration import register\nregister(id='x')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ModuleType("gym")
    monkeypatch.setitem(sys.modules, "gym", own)
    monkeypatch.delitem(sys.modules, "gym.envs", raising=False)
    monkeypatch.delitem(sys.modules, "gym.envs.registration", raising=False)
    monkeypatch.delitem(sys.modules, "procgen", raising=False)
    assert import_procgen().__file__ == str(tmp_path / "procgen.py") and import_procgen() is sys.modules["procgen"]
    assert sys.modules["gym"] is own and "gym.envs" not in sys.modules
    monkeypatch.delitem(sys.modules, "procgen")


class FakeCrafter:
    """The old interface: done at a death (discount 0) or at the limit."""

    def __init__(self, reward: bool, length: int, seed: int | None) -> None:
        self.length, self.seed, self.time, self.episodes = length, seed, 0, 0

    def reset(self) -> np.ndarray:
        self.time, self.episodes = 0, self.episodes + 1
        return np.zeros((64, 64, 3), np.uint8)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, dict[str, Any]]:
        self.time += 1
        dead = action == 1
        info = {"discount": 1.0 - dead, "reward": 0.5, "achievements": {"collect_wood": 2}}
        return np.full((64, 64, 3), self.time, np.uint8), 0.5, dead or self.time >= self.length, info


def test_crafters_deaths_end_and_its_limit_cuts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("crafter")
    module.Env = FakeCrafter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "crafter", module)
    env = CrafterEnv(length=3, stats=str(tmp_path / "stats"))
    env.reset(seed=5)
    assert env.step(0)[1:4] == (0.5, False, False) and env.step(1)[2:4] == (True, False)
    env.reset()
    assert env._env.seed == 5 and env._env.episodes == 2, "the next world of the same seed"
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    (file,) = (tmp_path / "stats").iterdir()
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"length": 2, "reward": 1.0, "achievement_collect_wood": 2},
        {"length": 3, "reward": 1.5, "achievement_collect_wood": 2},
    ]


class FakeNetHack(gymnasium.Env):
    observation_space = spaces.Dict()
    action_space = spaces.Discrete(2)
    shown: ClassVar[dict[str, np.ndarray]] = {
        "blstats": np.zeros(27, np.int64),
        "chars": np.zeros((21, 79), np.uint8),
        "colors": np.zeros((21, 79), np.uint8),
    }

    def __init__(self) -> None:
        self.seeds: list[tuple[int, int, bool]] = []

    def seed(self, core: int, disp: int, reseed: bool) -> None:
        self.seeds.append((core, disp, reseed))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.shown, {}


def test_games_of_nethack_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    games = [FakeNetHack() for _ in range(3)]
    for game, seed in zip(games, (5, 5, 6), strict=True):
        view = NetHackView(game)
        view.reset(seed=seed)
        view.reset()
    assert games[0].seeds == games[1].seeds and not any(reseed for *_, reseed in games[0].seeds)
    assert len({core for game in games[1:] for core, *_ in game.seeds}) == 4, "each game is another one"

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no seeds here")

    monkeypatch.setattr(FakeNetHack, "seed", refuse)
    assert NetHackView(FakeNetHack()).reset(seed=0)[0]["screen"].shape == (21, 79, 3)


def test_the_view_of_nethack() -> None:
    stats = np.zeros(27, np.int64)
    stats[:4] = 7, 3, -9, 10**6
    chars = np.full((21, 79), ord("."), np.uint8)
    shown = NetHackView(FakeNetHack()).observation(
        {"blstats": stats, "chars": chars, "colors": np.full((21, 79), 15, np.uint8)}
    )
    assert shown["screen"].shape == (21, 79, 3) and (shown["screen"][..., 0] == ord(".")).all()
    assert (shown["screen"][..., 1] == 255).all() and np.argwhere(shown["screen"][..., 2]).tolist() == [[3, 7]]
    assert shown["stats"].dtype == np.float32 and shown["stats"][:4] == pytest.approx(
        np.array([np.log(8), np.log(4), -np.log(10), np.log(1e6 + 1)]) / 10
    )
    assert (
        packages.is_packaged("nethack/score")
        and not packages.is_packaged("MinAtar/Breakout-v1")
        and not packages.is_packaged("minatar")
    )
