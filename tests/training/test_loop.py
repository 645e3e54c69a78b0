"""`train`: what a run leaves behind, and that one which was stopped goes on as if it had not been."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import TIMING, assert_same, last_state, metrics_of, small_config

from disco_torch import DiscoConfig, DiscoUpdateRule, EnvironmentFailure, TrainConfig, load_run, save_rule, train
from disco_torch.envs import Catch, SpaceConfig
from disco_torch.runs.checkpoint import checkpoint_path, list_checkpoints
from disco_torch.training.config import ObjectsConfig
from disco_torch.training.folder import RunFolder
from disco_torch.training.session import TrainingSession

RULES = ["actor-critic", "doubly-robust", "policy-gradient", "tiny disco"]


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory, tiny_config: DiscoConfig, randomize: Callable[..., None]) -> Path:
    """A small discovered rule in a file."""
    rule = DiscoUpdateRule(tiny_config)
    randomize(rule)
    path = tmp_path_factory.mktemp("rules") / "tiny.safetensors"
    save_rule(path, rule)
    return path


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`with stopping(rollouts, number):` sends the process a signal at the end of that rollout."""

    @contextmanager
    def stop(rollouts: int, number: int = signal.SIGTERM) -> Iterator[None]:
        advance = TrainingSession.advance

        def advancing(session: TrainingSession) -> None:
            advance(session)
            if session.counters.rollouts == rollouts:
                signal.raise_signal(number)

        with monkeypatch.context() as patch:
            patch.setattr(TrainingSession, "advance", advancing)
            yield

    return stop


def run(config: TrainConfig | None = None, **kwargs: Any) -> Path:
    return train(config, view=False, **kwargs).folder


def test_what_a_run_leaves_behind(tmp_path: Path) -> None:
    config = small_config(tmp_path, tensorboard=True, keep_checkpoints=2)
    result = train(config, view=False)
    folder = result.folder
    assert folder == tmp_path / "catch-actor-critic-seed0" and not result.stopped
    stored = RunFolder.open(folder).config
    # The whole configuration, with what stands behind the rule's name, and the spaces of the environment.
    spaces = {"observation_space": SpaceConfig("Box", (4, 3), "float32")}
    spaces["action_space"] = SpaceConfig("Discrete", (), "int64", sizes=(3,), starts=(0,))
    kinds = {"observation_kinds": {"observation": "unit"}}
    resolved = {"hyper_params": {"entropy_cost": 0.01}, "objects": ObjectsConfig(**spaces, **kinds)}
    assert {**vars(stored), "name": ""} == vars(config) | resolved

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.metrics and [line["steps"] for line in lines] == [24, 48, 72, 96, 120]
    assert [line["updates"] for line in lines] == [1, 3, 5, 7, 9]
    assert [line["episodes"] for line in lines] == [8, 16, 24, 32, 40]
    assert all(line["interval_episodes"] == 8 and -1 <= line["return"] <= 1 and line["length"] == 3 for line in lines)
    assert all(np.isfinite(value) for line in lines for value in line.values())
    assert all(line.keys() >= {*TIMING, "total_loss", "entropy", "learning_rate", "interval_return"} for line in lines)
    assert result.final_return == lines[-1]["return"]

    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == [
        "checkpoint-000000008.pt",
        "checkpoint-000000010.pt",
    ]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["rollouts"], summary["updates"], summary["episodes"]) == (120, 10, 9, 40)
    assert summary["finished"] is True and summary["final_return"] == result.final_return
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert not list(folder.rglob("*.partial"))


def test_the_return_of_the_metrics_is_that_of_the_episodes(tmp_path: Path) -> None:
    lines = metrics_of(run(small_config(tmp_path)))
    intervals = [line["interval_return"] for line in lines]
    for i, line in enumerate(lines):
        assert line["return"] == pytest.approx(sum(intervals[: i + 1]) / (i + 1))


def test_the_seed_decides_the_run(tmp_path: Path) -> None:
    folders = [run(small_config(tmp_path, seed=seed)) for seed in (1, 1, 2)]
    assert metrics_of(folders[0]) == metrics_of(folders[1]) != metrics_of(folders[2])
    assert_same(last_state(folders[0]), last_state(folders[1]))
    weights = [last_state(folder)["learning"]["learner/params/heads.logits.0.weight"] for folder in folders]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_last_rollout_may_go_past_the_last_step(tmp_path: Path) -> None:
    assert last_state(run(small_config(tmp_path, steps=37)))["counters"]["steps"] == 48


@pytest.mark.parametrize(
    ("changes", "kept"),
    [({"checkpoint_every": 0}, [0, 10]), ({"checkpoint_every": 1, "keep_checkpoints": 1}, [10])],
)
def test_checkpoints_at_both_ends_alone_and_one_of_many(tmp_path: Path, changes: dict[str, Any], kept: list[int]) -> None:
    folder = run(small_config(tmp_path, **changes))
    assert list_checkpoints(folder / "checkpoints") == [checkpoint_path(folder / "checkpoints", count) for count in kept]


@pytest.mark.parametrize("rule", RULES)
def test_a_stopped_run_goes_on_to_the_last_bit(tmp_path: Path, rule: str, rule_file: Path, stopping: Any) -> None:
    config = small_config(tmp_path, rule=str(rule_file) if rule == "tiny disco" else rule)
    whole = run(config)
    with stopping(5):  # neither a line of metrics nor a checkpoint is due then
        result = train(config, view=False)
    assert result.stopped and last_state(result.folder)["counters"]["rollouts"] == 5
    assert json.loads((result.folder / "summary.json").read_text())["finished"] is False
    with stopping(6):
        assert train(resume=result.folder, view=False).stopped
    again = train(resume=str(result.folder), view=False)
    assert not again.stopped and again.folder == result.folder != whole
    assert_same(last_state(again.folder), last_state(whole))
    assert metrics_of(again.folder) == metrics_of(whole)
    assert len(again.metrics) == 5 and again.metrics[-1]["seconds"] > again.metrics[0]["seconds"]
    assert json.loads((result.folder / "summary.json").read_text())["finished"] is True


@pytest.mark.parametrize("rule", RULES)
def test_a_longer_run_goes_on_to_the_last_bit(tmp_path: Path, rule: str, rule_file: Path) -> None:
    changes: dict[str, Any] = {"rule": str(rule_file) if rule == "tiny disco" else rule, "updates_per_rollout": 2}
    whole = run(small_config(tmp_path, **changes))
    short = run(small_config(tmp_path, steps=60, **changes))
    run(small_config(tmp_path, **changes), resume=short)
    assert RunFolder.open(short).config.steps == 120
    assert_same(last_state(short), last_state(whole))
    assert metrics_of(short) == metrics_of(whole)


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path))
    state, lines = last_state(folder), metrics_of(folder)
    assert not train(resume=folder, view=False).stopped
    assert_same(last_state(folder), state)
    assert metrics_of(folder) == lines


def test_going_on_without_the_replay(tmp_path: Path, stopping: Any) -> None:
    config = small_config(tmp_path, checkpoint_replay=False)
    with stopping(5):
        folder = run(config)
    run(resume=folder)
    state = last_state(folder)
    assert state["replay"] is None and state["counters"]["steps"] == 120
    assert state["counters"]["updates"] == 4 + 4  # the first rollout after the stop only fills the replay
    assert [line["steps"] for line in metrics_of(folder)] == [24, 48, 72, 96, 120]


def test_going_on_after_the_newest_checkpoint_was_damaged(tmp_path: Path, stopping: Any) -> None:
    whole = run(small_config(tmp_path))
    with stopping(7):
        folder = run(small_config(tmp_path))
    newest = list_checkpoints(folder / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=r"checkpoint-000000007\.pt does not load .* trying the one before"):
        run(resume=folder)
    assert_same(last_state(folder), last_state(whole))
    assert metrics_of(folder) == metrics_of(whole)  # the lines behind the older checkpoint were written again, once


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    whole = run(small_config(tmp_path))
    settings = dataclasses.replace(RunFolder.open(whole).config, name="killed")
    killed = RunFolder.create(settings).path  # as far as a process gets before it writes anything else
    run(resume=killed)
    assert_same(last_state(killed), last_state(whole))
    assert metrics_of(killed) == metrics_of(whole)


def test_a_run_has_a_checkpoint_before_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(small_config(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(TrainingSession, "advance", lambda session: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(small_config(tmp_path, name="killed"))
    killed = tmp_path / "killed"
    assert list_checkpoints(killed / "checkpoints") == [checkpoint_path(killed / "checkpoints", 0)]
    run(resume=killed)
    assert_same(last_state(killed), last_state(whole))


def test_a_run_that_lost_its_checkpoints_cannot_go_on(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path))
    for path in list_checkpoints(folder / "checkpoints"):
        path.unlink()
    before = metrics_of(folder)
    with pytest.raises(ValueError, match="a run can be resumed once it has written one"):
        train(resume=folder, view=False)
    assert metrics_of(folder) == before
    with pytest.raises(ValueError, match="`run` must be the folder of a run"):
        train(resume=tmp_path / "nowhere", view=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "katch", "env_args": {}}, "an environment that Gymnasium knows, got 'katch'"),
        ({"rule": "actor-kritik"}, "got 'actor-kritik', which is neither"),
        ({"hyper_params": {"value_kost": 1.0}}, "`hyper_params` has no 'value_kost'"),
        ({"env_args": {"rows": 1, "columns": 3}}, "`rows` must be at least 2"),
    ],
)
def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(small_config(tmp_path / "runs", **changes))
    assert not (tmp_path / "runs").exists()


def test_training_outside_of_the_main_thread(tmp_path: Path) -> None:
    folders: list[Path] = []
    thread = threading.Thread(target=lambda: folders.append(run(small_config(tmp_path, steps=24))))
    thread.start()
    thread.join(60)
    assert last_state(folders[0])["counters"]["steps"] == 24


def test_an_environment_that_fails_stops_the_run_behind_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(small_config(tmp_path))
    step, calls = Catch.step_with, 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 40:  # within the seventh rollout of 6 steps
            raise EnvironmentFailure("catch failed at step 40 in copy 1: the ball is lost")
        return step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Catch, "step_with", failing)
        with pytest.raises(EnvironmentFailure, match="step 40 in copy 1: the ball is lost"):
            run(small_config(tmp_path, name="failing"))
    folder = tmp_path / "failing"
    assert last_state(folder)["counters"]["rollouts"] == 6 and len(metrics_of(folder)) == 3
    run(resume=folder)
    assert_same(last_state(folder), last_state(whole))
    assert metrics_of(folder) == metrics_of(whole)


class Fragile(gymnasium.Env):
    """Gives a reward that is no number, or raises, at the given step of its life; two steps are an episode."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    trouble: str | None = None

    def __init__(self, at: int = 15) -> None:
        self.at, self.steps = at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.at and self.trouble == "raise":
            raise RuntimeError("the simulator is gone")
        reward = float("nan") if self.steps == self.at and self.trouble == "nan" else 0.5
        return np.full(2, self.steps % 2, np.float32), reward, self.steps % 2 == 0, False, {}


@pytest.mark.parametrize(
    ("trouble", "message"),
    [("nan", "the reward must be a finite float32, got nan"), ("raise", "RuntimeError: the simulator is gone")],
)
def test_a_gymnasium_environment_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, message: str
) -> None:
    monkeypatch.setitem(
        gymnasium.registry, "Fragile-v0", gymnasium.envs.registration.EnvSpec("Fragile-v0", entry_point=Fragile)
    )
    monkeypatch.setattr(Fragile, "trouble", trouble)
    config = small_config(tmp_path, env="Fragile-v0", env_args={"at": 15}, name="fragile")
    with pytest.raises(EnvironmentFailure, match=message):
        run(config)
    folder = tmp_path / "fragile"
    assert last_state(folder)["counters"]["rollouts"] == 2
    monkeypatch.setattr(Fragile, "trouble", None)
    result = train(resume=folder, view=False)
    assert [line["steps"] for line in result.metrics] == [24, 48, 72, 96, 120] and result.final_return == 1.0


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 60.0) -> None:
    """Waits until something is so, while the process lives."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.02)


def test_a_process_that_is_told_to_stop_leaves_a_checkpoint_and_ends_well(tmp_path: Path, stopping: Any) -> None:
    processes = {}
    for number in (signal.SIGTERM, signal.SIGINT):  # both at once: most of the time goes into imports
        options = ["--rule", "actor-critic", "--device", "cpu", "--steps", "1000000000", "--agent.dense", "8"]
        options += ["--env-args", "rows", "4", "columns", "3", "--rollout-length", "6", "--batch-size", "4"]
        options += ["--checkpoint-every", "3", "--no-tensorboard", "--runs", str(tmp_path), "--name", number.name]
        processes[number] = subprocess.Popen(
            [sys.executable, "-m", "disco_torch", "train", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    for number, process in processes.items():
        folder = tmp_path / number.name
        third = checkpoint_path(folder / "checkpoints", 3)
        wait_for(lambda path=third: path.exists() or len(list_checkpoints(path.parent)) > 1, process)
        process.send_signal(number)
    for number, process in processes.items():
        folder = tmp_path / number.name
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "stopped; resume with `disco-torch train --resume" in out and "Traceback" not in err
        rollouts = last_state(folder)["counters"]["rollouts"]
        assert rollouts >= 3 and json.loads((folder / "summary.json").read_text())["rollouts"] == rollouts
        assert load_run(folder, "cpu").params.keys()
        with stopping(rollouts + 2):
            assert train(resume=folder, view=False).stopped
        assert last_state(folder)["counters"]["rollouts"] == rollouts + 2
