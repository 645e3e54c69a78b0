"""What a run tells: evaluations, the best checkpoint, the target return, callbacks, and that nothing is learned."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import assert_same, last_state, metrics_of, small_config

from disco_torch import AdamConfig, EnvironmentFailure, InputConfig, TrainConfig, load_run, make_env, train
from disco_torch.runs import Callback, CallbackFailed, RunStatus
from disco_torch.runs.checkpoint import best_path, load_checkpoint, save_best
from disco_torch.runs.progress import Progress
from disco_torch.training import periodic_evaluation
from disco_torch.training.evaluation import evaluate
from disco_torch.training.folder import RunFolder
from disco_torch.training.periodic_evaluation import SEED_OFFSET, PeriodicEvaluation
from disco_torch.training.session import TrainingSession
from disco_torch.weights.configuration import config_from_plain, config_to_plain


def evaluations_of(folder: Path) -> list[dict[str, float]]:
    return [line for line in metrics_of(folder) if "eval_return" in line]


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def stop_after(monkeypatch: pytest.MonkeyPatch, rollouts: int) -> None:
    """Sends the process a signal at the end of that rollout."""
    advance = TrainingSession.advance

    def advancing(session: TrainingSession) -> None:
        advance(session)
        if session.counters.rollouts == rollouts:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TrainingSession, "advance", advancing)


# Evaluations.


@pytest.mark.parametrize("policy", ["sampled", "greedy"])
@pytest.mark.parametrize("env", ["catch", "disco_torch/Catch-v0"])
def test_a_run_with_evaluations_is_the_same_to_the_last_bit(tmp_path: Path, env: str, policy: str) -> None:
    config = small_config(tmp_path, env=env)
    plain = train(config, view=False)
    watched = train(
        dataclasses.replace(config, eval_every=30, eval_episodes=5, eval_policy=policy, target_return=2.0), view=False
    )
    assert_same(last_state(watched.folder), last_state(plain.folder))
    assert [line for line in metrics_of(watched.folder) if "eval_return" not in line] == metrics_of(plain.folder)
    assert len(evaluations_of(watched.folder)) == 4 and not best_path(plain.folder / "checkpoints").exists()
    assert watched.final_return == plain.final_return and np.isnan(plain.best_return)


def test_evaluations_are_made_when_they_are_due_and_say_how_sure_they_are(tmp_path: Path) -> None:
    result = train(small_config(tmp_path, eval_every=50, eval_episodes=5), view=False)
    lines = evaluations_of(result.folder)
    assert [line["steps"] for line in lines] == [60, 108, 120]  # rollouts of 12 steps; the last one is the end
    assert [line["rollouts"] for line in lines] == [5, 9, 10]
    assert all(line["eval_return_low"] <= line["eval_return"] <= line["eval_return_high"] for line in lines)
    assert all(line["eval_episodes"] == 6 and line["eval_length"] == 3 for line in lines)  # 3 in each of 2 environments
    assert result.best_return == max(line["eval_return"] for line in lines)
    # The number is that of an evaluation by hand, with its seed, of the agent at the end.
    trained = load_run(result.folder, "cpu")
    again = evaluate(trained.agent, trained.params, trained.make_env(2), 5, seed=SEED_OFFSET)
    assert again.interval.mean == lines[-1]["eval_return"]


def test_the_environments_of_an_evaluation_are_its_own_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    config = small_config(tmp_path, env="disco_torch/Catch-v0", eval_every=60)
    monkeypatch.setattr(
        "disco_torch.training.bring_your_own.make_env",
        lambda *args, **more: made.append(make_env(*args, **more)) or made[-1],
    )
    closed: list[Any] = []
    train(config, view=False, callbacks=[_Watch(lambda status: made and _watch_close(made[1], closed))])
    assert len(made) == 2 and closed  # beside those to learn in, made once, closed at the end


class _Watch(Callback):
    def __init__(self, look: Any) -> None:
        self.look = look

    def at_end(self, status: RunStatus) -> None:
        self.look(status)


def _watch_close(env: Any, closed: list[Any]) -> None:
    close = env.close
    env.close = lambda: closed.append(env) or close()


def scores(monkeypatch: pytest.MonkeyPatch, *means: float) -> None:
    """Evaluations with the given means, one after another."""
    rest = list(means)

    def run(self: PeriodicEvaluation, agent: Any, params: Any, steps: int) -> periodic_evaluation.EvaluationPoint:
        mean = rest.pop(0)
        return periodic_evaluation.EvaluationPoint(steps, periodic_evaluation.Interval(mean, mean, mean), 3.0, 5)

    monkeypatch.setattr(PeriodicEvaluation, "run", run)


def test_the_best_checkpoint_is_kept_and_can_be_acted_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores(monkeypatch, 0.1, 0.5, 0.5, 0.2, 0.3)
    result = train(small_config(tmp_path, eval_every=24, keep_checkpoints=1, checkpoint_every=1), view=False)
    folder = result.folder / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["best.pt", "checkpoint-000000010.pt"]
    best = load_checkpoint(folder, "best")
    assert best["session"]["counters"]["steps"] == 48 and best["session"]["replay"] is None
    assert best["best"]["eval_return"] == 0.5 and summary_of(result.folder)["best"]["steps"] == 48
    assert best.keys() >= load_checkpoint(folder).keys()
    # It is whole: the run can be continued from it, as from any other.
    session = TrainingSession(RunFolder.open(result.folder).config)
    session.load_state_dict(RunFolder.open(result.folder).load_checkpoint("best")["session"])
    assert session.counters.steps == 48


def test_a_resumed_run_keeps_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(tmp_path, eval_every=24)
    with monkeypatch.context() as patch:
        scores(patch, 0.1, 0.5)
        stop_after(patch, 5)
        folder = train(config, view=False).folder
    before = best_path(folder / "checkpoints").read_bytes()
    with monkeypatch.context() as patch:
        scores(patch, 0.4, 0.5, 0.3)
        train(resume=folder, view=False)
    assert best_path(folder / "checkpoints").read_bytes() == before
    with monkeypatch.context() as patch:
        scores(patch, 0.6)
        train(small_config(tmp_path, eval_every=24, steps=144), resume=folder, view=False)
    assert load_checkpoint(folder / "checkpoints", "best")["best"]["steps"] == 144
    assert [line["eval_return"] for line in evaluations_of(folder)] == [0.1, 0.5, 0.4, 0.5, 0.3, 0.6]


def test_a_stopped_run_with_evaluations_goes_on_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(tmp_path, eval_every=36)
    whole = train(config, view=False).folder
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        folder = train(config, view=False).folder
    train(resume=folder, view=False)
    assert_same(last_state(folder), last_state(whole))
    assert metrics_of(folder) == metrics_of(whole)
    same = [load_checkpoint(path / "checkpoints", "best")["session"] for path in (folder, whole)]
    assert_same(*same)


def test_a_damaged_best_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        folder = train(small_config(tmp_path, eval_every=24), view=False).folder
    best_path(folder / "checkpoints").write_bytes(b"PK")
    with pytest.warns(UserWarning, match=r"best.pt does not load .*; the next evaluation replaces it"):
        train(resume=folder, view=False)
    assert load_checkpoint(folder / "checkpoints", "best")["best"]["steps"] > 60


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda best: best.pop("eval_return"), r"`best/eval_return` must be float, got NoneType"),
        (
            lambda best: best.update(eval_return=torch.zeros(()).expand(2**40)),
            r"`best/eval_return` must be float, got Tensor",
        ),
        (lambda best: best.update(eval_return=math.inf), r"`best/eval_return` must be finite, got inf"),
        (lambda best: best.update(steps=1e300), r"`best/steps` must be int, got float"),
        (lambda best: best.update(eval_length=torch.zeros(2)), r"converted to"),
        (lambda best: best.update(eval_episodes=10**400), r"int too large to convert to float"),
    ],
)
def test_an_edited_best_is_replaced(
    edit: Callable[[dict[str, Any]], Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        folder = train(small_config(tmp_path, eval_every=24), view=False).folder
    content = load_checkpoint(folder / "checkpoints", "best")
    edit(content["best"])
    save_best(folder / "checkpoints", content)
    with pytest.warns(UserWarning, match=rf"best.pt does not load .*{reason}.*; the next evaluation replaces it"):
        train(resume=folder, view=False)
    assert load_checkpoint(folder / "checkpoints", "best")["best"]["steps"] > 60


class Endless(gymnasium.Env):
    """Ends only where action 1 is taken."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    fails = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.fails:
            raise RuntimeError("the simulator is gone")
        return np.zeros(2, np.float32), float(action), bool(action), False, {}


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    spec = gymnasium.envs.registration.EnvSpec("Endless-v0", entry_point=Endless)
    monkeypatch.setitem(gymnasium.registry, "Endless-v0", spec)
    return {"env": "Endless-v0", "env_args": {}}


def test_episodes_that_do_not_end_are_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endless: dict[str, Any]
) -> None:
    monkeypatch.setattr(periodic_evaluation, "MAX_STEPS", 20)
    config = small_config(tmp_path, **endless, eval_every=120, eval_policy="greedy", steps=120)
    monkeypatch.setattr(torch.Tensor, "argmax", lambda logits, dim: torch.zeros(logits.shape[:-1], dtype=torch.long))
    with pytest.warns(UserWarning, match=r"no evaluation at step 120: episodes of .* A greedy policy may walk in circles"):
        result = train(config, view=False)
    assert not result.stopped and evaluations_of(result.folder) == []


def test_an_environment_that_fails_in_an_evaluation_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endless: dict[str, Any]
) -> None:
    evaluating = PeriodicEvaluation.run

    def fail(self: PeriodicEvaluation, agent: Any, params: Any, steps: int) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Endless, "fails", True)
            return evaluating(self, agent, params, steps)

    monkeypatch.setattr(PeriodicEvaluation, "run", fail)
    with pytest.raises(EnvironmentFailure, match="the simulator is gone"):
        train(small_config(tmp_path, **endless, name="failing", eval_every=60), view=False)
    assert last_state(tmp_path / "failing")["counters"]["steps"] == 60


# The target return.


def test_an_evaluation_that_reaches_the_target_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(tmp_path, eval_every=24, target_return=0.5)
    with monkeypatch.context() as patch:
        scores(patch, 0.1, 0.5)
        result = train(config, view=False)
    assert result.stopped and last_state(result.folder)["counters"]["steps"] == 48
    assert result.stopped_because == "the mean return of the evaluation, 0.5, reached the target of 0.5"
    summary = summary_of(result.folder)
    assert summary["stopped_because"] == result.stopped_because and summary["finished"] is False
    # It stays where it is, until the target is raised.
    again = train(resume=result.folder, view=False)
    assert again.stopped_because.startswith("the mean return of an evaluation at step 48, 0.5, reached")
    assert last_state(result.folder)["counters"]["steps"] == 48
    with monkeypatch.context() as patch:
        scores(patch, 0.2, 0.3, 0.9)
        higher = train(dataclasses.replace(config, target_return=0.8), resume=result.folder, view=False)
    assert last_state(result.folder)["counters"]["steps"] == 120 and not higher.stopped


def test_without_evaluations_the_last_hundred_episodes_count(tmp_path: Path) -> None:
    # Episodes of 3 steps in 2 environments: 8 between two lines of metrics, so that there are 100 after 13 of them.
    result = train(small_config(tmp_path, steps=1200, target_return=-1.0), view=False)
    assert result.stopped and last_state(result.folder)["counters"]["steps"] == 13 * 24
    assert result.stopped_because.startswith("the mean return of the last 100 episodes, ")
    assert not train(small_config(tmp_path, steps=120, target_return=-1.0), view=False).stopped
    assert not train(small_config(tmp_path, steps=480, target_return=1.01), view=False).stopped


# Callbacks.


class Keeps(Callback):
    """Keeps what it sees; may stop the run or raise."""

    def __init__(self, at: int = 0, what: Any = None) -> None:
        self.seen: list[tuple[str, int, dict[str, float]]] = []
        self.at, self.what = at, what
        self.reason = ""

    def after_rollout(self, status: RunStatus) -> str | None:
        self.seen.append(("rollout", status.counters["steps"], dict(status.metrics)))
        return self._act(status)

    def after_evaluation(self, status: RunStatus) -> str | None:
        self.seen.append(("evaluation", status.counters["steps"], dict(status.metrics)))
        return None

    def at_end(self, status: RunStatus) -> None:
        self.reason = status.stop_reason
        assert (status.folder / "summary.json").is_file()
        self.seen.append(("end", status.counters["steps"], dict(status.metrics)))

    def _act(self, status: RunStatus) -> str | None:
        if status.counters["rollouts"] != self.at:
            return None
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


def test_callbacks_are_called_in_order(tmp_path: Path) -> None:
    keeps = Keeps()
    result = train(small_config(tmp_path, steps=48, eval_every=30), view=False, callbacks=[keeps])
    events = [(event, steps) for event, steps, _ in keeps.seen]
    rollouts = [("rollout", steps) for steps in (12, 24, 36, 48)]
    expected = [*rollouts[:2], ("evaluation", 36), rollouts[2], ("evaluation", 48), rollouts[3], ("end", 48)]
    assert events == expected and keeps.reason == ""
    assert keeps.seen[0][2] == {} and keeps.seen[1][2]["steps"] == 24 and "return" in keeps.seen[1][2]
    assert keeps.seen[2][2]["eval_return"] == result.metrics[1]["eval_return"]
    plain = train(small_config(tmp_path, steps=48), view=False)
    assert_same(last_state(result.folder), last_state(plain.folder))


def test_a_callback_stops_the_run(tmp_path: Path) -> None:
    keeps = Keeps(3, "enough")
    result = train(small_config(tmp_path), view=False, callbacks=[keeps])
    assert result.stopped and result.stopped_because == keeps.reason == "Keeps: enough"
    assert last_state(result.folder)["counters"]["rollouts"] == 3 and keeps.seen[-1][0] == "end"
    assert not train(resume=result.folder, view=False).stopped


def test_a_callback_that_fails_is_named_after_the_state_is_saved(tmp_path: Path) -> None:
    whole = train(small_config(tmp_path), view=False).folder
    failing = Keeps(5, ZeroDivisionError("0 / 0"))
    message = (
        r"the callback Keeps failed in after_rollout at step 60 \(ZeroDivisionError: 0 / 0\); the state is saved, resume"
    )
    with pytest.raises(CallbackFailed, match=message) as caught:
        train(small_config(tmp_path, name="failing"), view=False, callbacks=[failing])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    folder = tmp_path / "failing"
    assert last_state(folder)["counters"]["rollouts"] == 5
    train(resume=folder, view=False)
    assert_same(last_state(folder), last_state(whole))
    assert metrics_of(folder) == metrics_of(whole)


# A run that does not learn.


def learning_config(tmp_path: Path, **changes: Any) -> TrainConfig:
    """Some hundred updates on a 4x3 board, which is enough to catch most balls."""
    settings: dict[str, Any] = {
        "steps": 16 * 6 * 300,
        "num_envs": 16,
        "batch_size": 16,
        "replay_capacity": 16,
        "replayed_share": 0.0,
        "log_every": 10,
        "checkpoint_every": 0,
        "rollout_length": 6,
        "optimizer": AdamConfig(learning_rate=1e-2),
    }
    return small_config(tmp_path, **(settings | changes))


def test_a_run_that_cannot_learn_says_so_once_and_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(learning_config(tmp_path, optimizer=AdamConfig(learning_rate=0.0)), view=False)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Not learning?")]
    assert len(said) == 2 and said[0].startswith("Not learning? At step 5,760 ")  # a fifth of 28,800
    assert all(line.endswith("; `--rule ppo-replay` is the one to try, and docs/not_learning.md has more.") for line in said)
    assert result.warnings == summary_of(result.folder)["warnings"] == [said[1]]


def test_a_run_that_ends_with_the_first_look_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = learning_config(tmp_path, optimizer=AdamConfig(learning_rate=0.0), steps=16 * 6 * 60, log_every=60)
    result = train(config, view=False)
    assert capsys.readouterr().out.count("Not learning?") == len(result.warnings) == 1


def test_a_run_that_learns_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(learning_config(tmp_path), view=False)
    assert result.final_return > 0.5  # or the test says nothing
    assert "Not learning" not in capsys.readouterr().out
    assert result.warnings == summary_of(result.folder)["warnings"] == []


def test_what_was_said_is_not_said_again_when_the_run_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = learning_config(tmp_path, optimizer=AdamConfig(learning_rate=0.0), steps=9600)
    with monkeypatch.context() as patch:
        stop_after(patch, 45)
        folder = train(config, view=False).folder
    assert capsys.readouterr().out.count("Not learning?") == 2  # when it was noticed, and at this end
    train(resume=folder, view=False)
    assert capsys.readouterr().out.count("Not learning?") == 1


def test_evaluations_see_inputs_as_the_agent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With normalised inputs, an evaluation during training is what the loaded agent gives in the same episodes."""
    seen: list[Any] = []
    evaluating = PeriodicEvaluation.run

    def run(self: PeriodicEvaluation, agent: Any, params: Any, steps: int) -> Any:
        seen.append(type(agent).__name__)
        return evaluating(self, agent, params, steps)

    monkeypatch.setattr(PeriodicEvaluation, "run", run)
    inputs = InputConfig(observations="auto", rewards="raw")
    config = small_config(tmp_path, env="CartPole-v1", env_args={}, inputs=inputs, eval_every=120, eval_episodes=4)
    result = train(config, view=False)
    trained = load_run(result.folder)
    assert seen == ["NormalizedAgent"] == [type(trained.agent).__name__]
    again = evaluate(trained.agent, trained.params, trained.make_env(min(4, config.num_envs)), 4, seed=SEED_OFFSET)
    assert result.best_return == pytest.approx(sum(again.returns) / len(again.returns))


def test_the_page_that_the_line_points_to_is_there() -> None:
    assert (Path(__file__).parents[2] / "docs" / "not_learning.md").is_file()


# Progress without a terminal.


def test_a_run_says_what_it_does_before_its_first_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Progress, "doing", lambda self, activity: said.append(activity))
    config = small_config(tmp_path, batch_size=6, replay_capacity=6, steps=60, eval_every=60)
    train(config, view=False)
    kept = list(dict.fromkeys(said))
    assert kept == [
        "collecting rollouts, 0 of the 6 trajectories that the first update needs",
        "collecting rollouts, 2 of the 6 trajectories that the first update needs",
        "making the first update",
        "",
        "evaluating the agent in 20 episodes",
    ]
    said.clear()
    train(dataclasses.replace(config, speed="traced", name="traced"), view=False)
    assert said[0].startswith("recording and collecting") and "recording the first update" in said


def test_without_a_terminal_there_are_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disco_torch.runs.progress.LINE_SECONDS", 0.0)
    train(small_config(tmp_path, eval_every=60))
    lines = capsys.readouterr().out.splitlines()
    pattern = r"\d+ of 120 steps \(\d+%\), [\d,]+ steps/s, \d+ s left(, return \S+)?(, evaluation \S+)?"
    assert lines[0] == "settings of actor-critic: updates_per_rollout 1" and lines[1].startswith("catch with actor-critic")
    assert len(lines) >= 6 and all(re.fullmatch(pattern, line) for line in lines[2:-1])
    assert re.fullmatch(r"120 steps in \d+ s, return \S+, evaluation \S+", lines[-1])
    train(small_config(tmp_path), view=False)
    assert not capsys.readouterr().out


# The configuration.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_every": -1}, "`eval_every` must be at least 0, got -1"),
        ({"eval_episodes": 0}, "`eval_episodes` must be at least 1, got 0"),
        ({"target_return": float("nan")}, "`target_return` must be finite, got nan; leave it out for none"),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainConfig(**changes)


def test_configurations_from_before_load() -> None:
    plain = config_to_plain(TrainConfig(steps=77))
    for name in ("eval_every", "eval_episodes", "eval_policy", "target_return"):
        del plain[name]
    assert config_from_plain(TrainConfig, plain) == TrainConfig(steps=77)
    for target in (None, 1.5, 2):
        config = TrainConfig(target_return=target, eval_every=3, eval_policy="greedy")
        assert config_from_plain(TrainConfig, config_to_plain(config)) == config
