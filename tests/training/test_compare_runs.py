"""Comparisons: settings by dotted name, runs that are resumed after a kill, and the uniform policy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from disco_torch import AgentConfig, TrainConfig
from disco_torch.analysis import RANDOM, RunRecord, append_record, read_records
from disco_torch.data import InputConfig
from disco_torch.training import Contender, Task, compare, default_config
from disco_torch.training.comparison import (
    EVAL_SEED,
    changed_settings,
    config_with,
    label_of,
    run_one,
    select_records,
)

SMALL = {"num_envs": 2, "rollout_length": 6, "batch_size": 4, "replay_capacity": 8, "agent.dense": [8]}
BOARD = {"env_args.rows": 4, "env_args.columns": 3}
TASKS = [Task("small catch", "catch", 240, BOARD), Task("CartPole", "CartPole-v1", 480)]
RULES = [Contender(RANDOM), Contender("policy-gradient", SMALL)]


def request(task: Task, contender: Contender, seed: int = 0, **changes: Any) -> dict[str, Any]:
    asked = {"task": task.name, "rule": contender.rule, "settings": contender.settings, "task_settings": task.all_settings}
    return {**asked, "seed": seed, "steps": task.steps, "episodes": 8, "device": "cpu", "imports": [], **changes}


def test_settings_by_dotted_name() -> None:
    settings = {"optimizer.learning_rate": 1e-3, "agent.dense": [8], "inputs.observations": "raw", **BOARD}
    config = config_with(settings)
    assert config.optimizer.learning_rate == 1e-3 and config.agent.dense == (8,)
    assert config.env_args == {"rows": 4, "columns": 3} and config.inputs.observations == "raw"
    assert changed_settings(config) == settings
    assert changed_settings(default_config(TrainConfig.rule)) == {} and config_with({}) == default_config(TrainConfig.rule)
    whole = TrainConfig(agent=AgentConfig(dense=(4, 4)), inputs=InputConfig(), hyper_params={"value_cost": 0.5})
    assert config_with(changed_settings(whole)) == whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 1.0}, "`settings` must name settings of `TrainConfig`, such as optimizer.learning_rate, got"),
        (
            {"optimizer.speed": 1.0},
            "must name settings of `TrainConfig`, such as optimizer.learning_rate, got 'optimizer.speed'",
        ),
        ({"optimizer.learning_rate.x": 1.0}, "got 'optimizer.learning_rate.x'"),
        ({"num_envs": "many"}, "`settings.num_envs` must be int, got 'many'"),
        ({"num_envs": 0}, "`num_envs` must be at least 1, got 0"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_with(settings)


@pytest.mark.parametrize(
    ("task", "contender", "message"),
    [
        (
            TASKS[0],
            Contender("birch", {"seed": 1}),
            "`settings` must leave 'seed' to the comparison, got it for small catch",
        ),
        (Task("x", "catch", 240, {"runs": "a"}), RULES[0], "must leave 'runs' to the comparison"),
        (Task("x", "catch", 240, {"env": "grid"}), RULES[0], "must leave 'env' to the comparison"),
        (
            TASKS[0],
            Contender("birch", {"env_args.rows": 5}),
            r"must not be those of the task small catch, got \['env_args.rows'\]",
        ),
        (
            TASKS[0],
            Contender("birch", {"steps": 5}),
            r"must not be those of the task small catch, got \['steps'\] in both",
        ),
        (TASKS[0], Contender("no-such", SMALL), "`name_or_path` must be one of .* got 'no-such', which is neither"),
        (TASKS[0], Contender("birch"), "`steps` must be at least 1056 for a first update"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_runs(
    tmp_path: Path, task: Task, contender: Contender, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compare([task, TASKS[1]], [RULES[1], contender], [0], tmp_path / "runs.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_run_is_trained_and_evaluated_with_fresh_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    from disco_torch.training import trained

    seen: list[int] = []
    evaluate = trained.evaluate

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["seed"])
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(trained, "evaluate", watched)
    record = RunRecord(**run_one(request(TASKS[0], RULES[1], seed=3)))
    assert record.task == "small catch" and record.rule == "policy-gradient" and record.seed == 3 and record.steps == 240
    assert -1 <= record.score <= 1 and -1 <= record.area <= 1 and record.seconds >= 0
    assert record.curve[0][-1] == 240 and record.settings == SMALL and record.version.startswith("disco-torch ")
    assert seen == [EVAL_SEED + 3]
    again = RunRecord(**run_one(request(TASKS[0], RULES[1], seed=3)))
    assert (again.score, again.area, again.curve) == (record.score, record.area, record.curve)


def test_a_run_in_which_no_episode_ends_is_an_error() -> None:
    task = Task("long", "MountainCar-v0", 24)  # whose episodes take 200
    with pytest.raises(ValueError, match="no episode ended within 24 steps; take more steps"):
        run_one(request(task, RULES[1]))


def test_the_uniform_policy() -> None:
    """It catches about 1 ball in 3 on a board of 4 x 3: from the middle, the paddle is anywhere after three steps."""
    record = RunRecord(**run_one(request(TASKS[0], RULES[0], steps=0, episodes=2000)))
    assert record.score == record.area == pytest.approx(-1 / 3, abs=0.06)
    assert record.steps == 0 and not record.curve[0] and record.seconds == 0.0


def test_the_uniform_policy_draws_from_all_of_several_actions(own_spaces: str) -> None:
    record = RunRecord(**run_one(request(Task("two", own_spaces, 100), RULES[0], steps=0, episodes=400)))
    assert record.score == pytest.approx(1 / 6, abs=0.06)


def test_environments_and_wrappers_of_other_modules(own_spaces: str) -> None:
    flat = {"wrappers": ["gymnasium.wrappers:FlattenObservation", "own_locks:Doubled"]}
    record = RunRecord(**run_one(request(Task("two", own_spaces, 240, flat), RULES[1], steps=240)))
    assert 0 <= record.score <= 2 and record.score % 0.25 == 0  # 8 episodes, of which each gives 0 or 2


@pytest.fixture
def own_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = """
import gymnasium


class Locks(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Discrete(2), "b": gymnasium.spaces.Discrete(3)})
    action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(tuple(action) == (1, 2)), True, False, {}


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward
"""
    (tmp_path / "own_locks.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_locks:Locks"


def test_finished_runs_are_not_repeated_and_those_of_a_killed_comparison_go_on(tmp_path: Path) -> None:
    path, lines = tmp_path / "runs.jsonl", list[str]()
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_compare_runs import RULES, TASKS, compare
compare(TASKS, RULES, [0], Path({str(path)!r}), episodes=4)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not read_records(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = read_records(path)
    assert 1 <= len(before) < 4
    path.write_bytes(path.read_bytes() + b'{"task": "small ca')  # as if killed while it wrote
    outcomes = compare(TASKS, RULES, [0], path, episodes=4, processes=2, say=lines.append)
    after = read_records(path)
    assert len(outcomes) == len(lines) == 4 - len(before) and len(after) == 4
    assert after[: len(before)] == before
    assert {(x.task, x.rule) for x in after} == {(task.name, rule.rule) for task in TASKS for rule in RULES}
    assert compare(TASKS, RULES, [0], path, episodes=4) == []


def test_a_run_that_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    lines: list[str] = []
    task = Task("none", "NoSuchEnvironment-v0", 240)
    for _ in range(2):
        (outcome,) = compare([task], [RULES[1]], [0], tmp_path / "runs.jsonl", say=lines.append)
        assert outcome.answer is None and "NoSuchEnvironment-v0" in outcome.error
    assert lines[0].startswith(f"1/1 none, {label_of(RULES[1])}, seed 0 failed: ValueError: `name` must be")
    assert read_records(tmp_path / "runs.jsonl") == []


def test_runs_of_other_steps_settings_and_seeds_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"

    def add(seed: int, steps: int, settings: Mapping[str, Any], rule: str = "birch") -> None:
        append_record(path, RunRecord("small catch", rule, seed, steps, 0.0, 0.0, {}, settings))

    add(0, 240, TASKS[0].all_settings)
    add(0, 0, TASKS[0].all_settings, RANDOM)
    add(1, 240, {"env": "catch"})
    add(1, 480, TASKS[0].all_settings)
    add(7, 240, TASKS[0].all_settings)
    chosen = select_records(read_records(path), TASKS, range(3))
    assert [(record.seed, record.steps, record.rule) for record in chosen] == [(0, 240, "birch"), (0, 0, RANDOM)]


def test_a_rule_has_its_own_settings() -> None:
    config = config_with({"num_envs": 3}, "ppo")
    assert (config.rule, config.num_envs, config.epochs) == ("ppo", 3, default_config("ppo").epochs)
    assert config.epochs > 1 and changed_settings(config) == {"num_envs": 3}
