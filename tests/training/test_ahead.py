"""Rollouts that are collected while the agent learns: with which parameters, beside what, and how they fail."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_runs import assert_same, metrics_of, small_config

from disco_torch import train
from disco_torch.data import InputConfig
from disco_torch.envs import EnvironmentFailure
from disco_torch.runs import pack
from disco_torch.runs.checkpoint import list_checkpoints
from disco_torch.training.bring_your_own import bring
from disco_torch.training.session import TrainingSession
from disco_torch.types import Rollout, tree_map

PATIENCE = 30.0


class Walk(gym.Env[np.ndarray, np.int64]):
    """Left or right for ten steps. `before_step` is called first in each step, with the number of steps so far."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, before_step: Any = lambda step: None) -> None:
        self.before_step, self.steps = before_step, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.time = 0.0, 0
        return self._seen(), {}

    def step(self, action: np.int64) -> Any:
        self.before_step(self.steps)
        self.steps += 1
        self.place, self.time = self.place + 2.0 * float(action) - 1.0, self.time + 1
        return self._seen(), self.place, self.time == 10, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.place, self.time], dtype=np.float32)


def session_of(tmp_path: Path, env: Any = Walk, **changes: Any) -> TrainingSession:
    settings = small_config(tmp_path, env_args={}, **{"overlap": True, **changes})
    return TrainingSession(*bring(settings, env=env, agent=None, rule=None, wrappers=None))


@pytest.mark.parametrize(
    ("device", "speed"),
    [
        ("cpu", "plain"),
        ("cpu", "traced"),
        pytest.param("cuda", "captured", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
    ],
)
def test_the_policy_is_that_of_one_rollout_before(tmp_path: Path, device: str, speed: str) -> None:
    session = session_of(tmp_path, updates_per_rollout=2, batch_size=2, inputs=InputConfig(), device=device, speed=speed)
    stored: list[Rollout] = []
    add = session.replay.add
    session.replay.add = lambda rollout: (stored.append(rollout), add(rollout))[1]  # type: ignore[method-assign]
    params = [tree_map(torch.clone, session.learner_state.params)]
    for _ in range(5):
        session.advance()
        params.append(tree_map(torch.clone, session.learner_state.params))
    session.close()
    assert all(not torch.equal(first, second) for first, second in zip(params[0].values(), params[1].values(), strict=True))
    for i, rollout in enumerate(stored):
        outputs, _ = session.agent.unroll(params[max(i - 1, 0)], rollout.observations)
        torch.testing.assert_close(outputs["logits"], rollout.behaviour_logits, rtol=1e-4, atol=1e-5)


def test_steps_are_taken_while_the_agent_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rollout begins with waiting for the update after the first one, which would not come before its end."""
    has_learned, waited = threading.Event(), []

    def before_step(step: int) -> None:
        if step == 6:
            waited.append(has_learned.wait(PATIENCE))

    session = session_of(tmp_path, lambda: Walk(before_step), num_envs=1, batch_size=1)
    update = session._update
    monkeypatch.setattr(session, "_update", lambda *args: (update(*args), has_learned.set()))
    session.advance()
    session.advance()
    session.close()
    assert waited == [True]


def test_the_two_threads_do_not_share_a_module(tmp_path: Path) -> None:
    """`functional_call` puts other parameters into a module while it computes, which the other thread would use."""
    session = session_of(tmp_path)
    modules = [set(map(id, agent.modules())) for agent in (session.agent, session._collect.agent)]
    assert not modules[0] & modules[1]
    alone = session_of(tmp_path, overlap=False)
    assert alone._collect.agent is alone.agent


def test_a_run_is_the_same_again(tmp_path: Path) -> None:
    runs = [train(small_config(tmp_path, env_args={}, overlap=True, name=name), env=Walk, view=False) for name in "ab"]
    a, b = (metrics_of(run.folder) for run in runs)
    assert a == b and len(a) == 5
    other = train(small_config(tmp_path, env_args={}, name="c"), env=Walk, view=False)
    assert metrics_of(other.folder) != a  # the policy was another one


def test_no_step_is_taken_after_the_last_rollout(tmp_path: Path) -> None:
    taken: list[int] = []
    train(small_config(tmp_path, env_args={}, overlap=True), env=lambda: Walk(taken.append), view=False)
    assert len(taken) == 120


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"env_args": {}, "overlap": True}
    folder = train(small_config(tmp_path, **changes), env=Walk, view=False).folder
    result = train(small_config(tmp_path, steps=180, **changes), env=Walk, resume=folder, view=False)
    assert result.metrics[-1]["steps"] == 180


def test_tensor_environments_are_left_as_they_are(tmp_path: Path) -> None:
    states = []
    for overlap in (False, True):
        session = TrainingSession(small_config(tmp_path, overlap=overlap))
        for _ in range(4):
            session.advance()
        states.append(pack(session.learner_state))
    assert_same(*states)


def test_a_failing_environment_ends_the_run_with_its_state_saved(tmp_path: Path) -> None:
    def before_step(step: int) -> None:
        if step == 20:
            raise RuntimeError("out of road")

    config = small_config(tmp_path, env_args={}, overlap=True, num_envs=1, batch_size=1, name="fails")
    with pytest.raises(EnvironmentFailure, match=r"failed at step 21 .*out of road"):
        train(config, env=lambda: Walk(before_step), view=False)
    assert list_checkpoints(tmp_path / "fails" / "checkpoints")[-1].stem.endswith("3")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("collecting")]
