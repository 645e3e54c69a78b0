"""The suite of benchmarks: its tasks can be made and mean what they say; its command leaves out what is not installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from disco_torch.analysis import RANDOM, RunRecord, append_record, read_records
from disco_torch.training.comparison import config_with

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("suite")


@pytest.fixture
def tasks(suite: Any) -> Any:
    return sys.modules["suite_tasks"]


def test_tasks_have_names_of_their_own_and_settings_of_train(tasks: Any) -> None:
    assert len({task.name for task in tasks.SUITE}) == len(tasks.SUITE) == 19
    for task in tasks.SUITE:
        config = config_with({"env": task.env, "steps": task.steps, **task.settings})
        assert config.steps == task.steps and config.env == task.env


def test_every_installed_task_ends_its_episodes(tasks: Any) -> None:
    sys.modules.setdefault("peer_suite", importlib.import_module("peer_suite"))
    make_single = sys.modules["peer_suite"].make_single
    played = 0
    for task in tasks.SUITE:
        if not tasks.installed(task):
            continue
        env = make_single(task)
        env.action_space.seed(0)
        seen, _ = env.reset(seed=0)
        assert env.observation_space.contains(seen) and isinstance(env.action_space, gymnasium.spaces.Discrete)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            ended = terminated or truncated
        env.close()
        played += 1
    assert played >= 10


def test_the_bandit_has_one_right_arm_for_each_context(tasks: Any) -> None:
    env = gymnasium.make("suite_tasks:suite/Bandit-v0")
    right = 0.0
    contexts = set()
    for seed in range(100):
        context, _ = env.reset(seed=seed)
        contexts.add(int(context))
        _, reward, terminated, _, _ = env.step(tasks.Bandit.arms[context])
        right += float(reward)
        assert terminated
    assert right == 100 and len(contexts) == 10
    context, _ = env.reset(seed=0)
    assert env.step((tasks.Bandit.arms[context] + 1) % 4)[1] == 0.0


def test_subsets(suite: Any, tasks: Any) -> None:
    assert suite.choose("all", None) == tasks.SUITE
    assert {task.name for task in suite.choose("quick", None)} < {task.name for task in tasks.SUITE}
    assert all(task.steps <= 300_000 for task in suite.choose("short", None))
    assert [task.name for task in suite.choose("all", ["bandit"])] == ["bandit"]
    with pytest.raises(SystemExit, match=r"`--tasks` must be names of the suite, CartPole, .*, got Chess"):
        suite.choose("all", ["Chess"])


def test_a_task_whose_package_is_missing_is_left_out_with_a_notice(
    suite: Any, tasks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "installed", lambda task: task.package != "minigrid")
    out = tmp_path / "runs.jsonl"
    bandit = next(task for task in tasks.SUITE if task.name == "bandit")
    for rule, score in ((RANDOM, 0.25), ("birch", 0.9), ("ppo", 0.8)):
        steps = 0 if rule == RANDOM else bandit.steps
        append_record(out, RunRecord("bandit", rule, 0, steps, score, score, {}, {"env": bandit.env}))
    command = ["--rules", "birch", "--tasks", "bandit", "MiniGrid FourRooms", "--out", str(out), "--table-only"]
    assert suite.main([*command, "--also", str(out)]) == 0
    text = capsys.readouterr().out
    assert "MiniGrid FourRooms is left out: minigrid is not installed" in text
    assert "| bandit, 20k | 0.25" in text and "| peer | 1 [1, 1]" in text


def test_the_results_of_peers_are_runs_of_the_tasks_as_they_are(suite: Any, tasks: Any) -> None:
    known = {task.name: task for task in tasks.SUITE}
    for record in read_records(suite.PEER_RESULTS):
        task = known[record.task]
        assert record.rule in (*suite.PEERS, RANDOM)
        assert record.steps == (0 if record.rule == RANDOM else task.steps)
        assert record.task_settings == {"env": task.env, **task.settings}


def test_episodes_of_parallel_environments_end_in_order(suite: Any) -> None:
    peer = importlib.import_module("peer_suite")
    ends, returns = peer.episode_ends([[10, 5], [12]], [[1.0, 2.0], [3.0]])
    assert ends == [20, 24, 30] and returns == [1.0, 3.0, 2.0]
    assert np.all(np.diff(ends) > 0)
