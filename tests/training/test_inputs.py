"""Normalised inputs and first steps in a training run: what is counted, what stays raw, what is frozen, what is saved."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import assert_same, last_state, small_config

from disco_torch import AdamConfig, AgentConfig, TrainConfig, evaluate, load_run, train
from disco_torch.data import InputConfig
from disco_torch.rules import discount_of
from disco_torch.training.session import TrainingSession
from disco_torch.types import flatten_tree, tree_map
from disco_torch.weights import load_rule
from disco_torch.weights.configuration import config_from_plain, config_to_plain

ALL = InputConfig(observations="auto", rewards="normalized")
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "env_args": {}}


class Bandit(gymnasium.Env):
    """10 contexts, 4 arms, episodes of one step: reward 1 for the context's own arm, else 0."""

    observation_space = spaces.Discrete(10)
    action_space = spaces.Discrete(4)
    arms = (2, 0, 3, 1, 1, 0, 2, 3, 0, 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.context = int(self.np_random.integers(10))
        return self.context, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self.context, float(action == self.arms[self.context]), True, False, {}


class Large(gymnasium.Env):
    """Observes a large number and a code in a byte; each step gives -100, an episode takes 5."""

    observation_space = spaces.Dict(
        {"far": spaces.Box(-1e6, 1e6, (2,), np.float32), "code": spaces.Box(0, 255, (3,), np.uint8)}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.see(), {}

    def see(self) -> dict[str, np.ndarray]:
        far = 1000.0 + 300.0 * self.np_random.standard_normal(2)
        return {"far": far.astype(np.float32), "code": self.np_random.integers(0, 11, 3).astype(np.uint8)}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.see(), -100.0, self.time == 5, False, {}


@pytest.fixture(autouse=True)
def environments() -> Any:
    made = {"InputsBandit-v0": Bandit, "InputsLarge-v0": Large}
    for name, entry_point in made.items():
        gymnasium.register(name, entry_point=entry_point)
    yield
    for name in made:
        del gymnasium.registry[name]


def session_of(tmp_path: Path, **changes: Any) -> TrainingSession:
    return TrainingSession(small_config(tmp_path, **({"inputs": ALL, "first_steps": True} | changes)))


LARGE: dict[str, Any] = {"env": "InputsLarge-v0", "env_args": {}}


def test_a_contextual_bandit_is_learned_with_a_hand_written_rule(tmp_path: Path) -> None:
    config = TrainConfig(
        env="InputsBandit-v0",
        rule="actor-critic",
        steps=16 * 16 * 80,
        device="cpu",
        agent=AgentConfig(dense=(64,)),
        optimizer=AdamConfig(learning_rate=3e-3),
        first_steps=True,
        runs=tmp_path,
        checkpoint_every=0,
        tensorboard=False,
    )
    trained = load_run(train(config, view=False).folder)
    assert evaluate(trained.agent, trained.params, trained.make_env(10), 500).interval.mean >= 0.95
    without = train(dataclasses.replace(config, first_steps=False, steps=16 * 16 * 40), view=False)
    assert without.final_return < 0.5  # chance is 0.25


def test_statistics_are_of_raw_rows_and_batches_are_normalised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(tmp_path, **LARGE)
    learned: list[Any] = []
    update, targets = type(session.learner).update, type(session.learner).targets

    def noting_update(self: Any, state: Any, rollout: Any, **kwargs: Any) -> Any:
        learned.append(rollout)
        return update(self, state, rollout, **kwargs)

    def noting_targets(self: Any, params: Any, meta_state: Any, rollout: Any, inputs: Any, *args: Any) -> Any:
        assert rollout is learned[-1] and inputs.observations is rollout.observations  # one snapshot for both passes
        return targets(self, params, meta_state, rollout, inputs, *args)

    monkeypatch.setattr(type(session.learner), "update", noting_update)
    monkeypatch.setattr(type(session.learner), "targets", noting_targets)
    for _ in range(6):
        session.advance()
    assert session.normalizer is not None and session.input_stats is not None and session.input_stats.rewards is not None
    far = session.input_stats.observations["observation/far"]
    assert float(far.count) == session.counters.steps and (far.mean - 1000).abs().max() < 200
    drawn = session.replay.sample(8)
    assert drawn.observations["far"].mean() > 500 and drawn.observations["code"].dtype == torch.uint8
    assert set(drawn.rewards.unique().tolist()) <= {-100.0, 0.0}
    batch = learned[-1]
    assert batch.observations["far"].abs().max() < 10 and batch.observations["code"].abs().max() < 5
    assert batch.rewards.min() >= -10 and batch.executed is not None
    assert session.read_metrics()["return"] == -500.0  # logged returns are never scaled


def test_the_snapshot_of_an_update_holds_its_newest_rollout(tmp_path: Path) -> None:
    session = session_of(tmp_path, **LARGE)
    session.advance()
    first = session.snapshot
    assert first is not None and session.input_stats is not None and session.normalizer is not None
    expected = session.normalizer.snapshot(session.input_stats)
    for ours, theirs in zip(flatten_tree(first)[0], flatten_tree(expected)[0], strict=True):
        assert torch.equal(ours, theirs)
    session.advance()
    assert session.snapshot is not first


def test_statistics_are_no_parameters(tmp_path: Path) -> None:
    session = session_of(tmp_path, **LARGE)
    for _ in range(3):
        session.advance()
    state = session.state_dict()
    assert not [name for name in state["learning"] if "observation" in name]
    assert state["inputs"]["observations/observation/far/mean"].dtype == torch.float64
    assert not any(x.requires_grad for x in flatten_tree(session.input_stats)[0])


@pytest.mark.parametrize("speed", ["plain", "traced"])
def test_the_state_is_all_that_changes(tmp_path: Path, speed: str) -> None:
    changes = {"inputs": ALL, "speed": speed}
    session, again = session_of(tmp_path, **changes), session_of(tmp_path, seed=7, **changes)
    for _ in range(4):
        session.advance()
    torch.save(session.state_dict(), tmp_path / "state.pt")
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(3):
        session.advance()
        again.advance()
        assert_same(session.state_dict(), again.state_dict())
    assert session.input_stats is not None and session.input_stats.rewards is not None


def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    config = small_config(tmp_path, inputs=ALL, first_steps=True, name="whole")
    whole = train(config, view=False).folder
    half = train(dataclasses.replace(config, name="half", steps=60), view=False).folder
    train(dataclasses.replace(config, name="half", steps=120), resume=half, view=False)
    assert_same(last_state(whole), last_state(half))


def test_a_resumed_environment_that_begins_anew_begins_new_returns(tmp_path: Path) -> None:
    session, again = session_of(tmp_path, **LARGE), session_of(tmp_path, **LARGE)
    for _ in range(3):
        session.advance()
    again.load_state_dict(session.state_dict())
    ours, theirs = session.input_stats, again.input_stats
    assert ours is not None and theirs is not None and ours.returns is not None and theirs.returns is not None
    assert_same(vars(ours.rewards), vars(theirs.rewards))
    assert (ours.returns != 0).any() and (theirs.returns == 0).all()


def test_traced_is_plain(tmp_path: Path) -> None:
    sessions = [session_of(tmp_path, speed=speed) for speed in ("plain", "traced")]
    for session in sessions:
        for _ in range(4):
            session.advance()
    states = [flatten_tree((s.learner_state.params, s.input_stats))[0] for s in sessions]
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-6)


def test_statistics_are_frozen_in_a_trained_agent(tmp_path: Path) -> None:
    folder = train(small_config(tmp_path, **LARGE, inputs=ALL), view=False).folder
    trained = load_run(folder)
    agent: Any = trained.agent
    before = tree_map(torch.clone, agent.snapshot)
    stored = last_state(folder)["inputs"]["observations/observation/far/mean"]
    assert torch.equal(before.offsets["observation/far"], stored.float())
    assert len(evaluate(trained.agent, trained.params, trained.make_env(2), 6).returns) == 6
    for ours, theirs in zip(flatten_tree(agent.snapshot)[0], flatten_tree(before)[0], strict=True):
        assert torch.equal(ours, theirs)
    observations = {"far": torch.tensor([[1000.0, 1300.0]]), "code": torch.tensor([[0, 5, 10]], dtype=torch.uint8)}
    seen = agent.normalizer.normalize_observations(agent.snapshot, observations)
    logits = agent.policy(trained.params, observations)[0]
    assert torch.equal(logits, agent.agent.policy(trained.params, seen)[0])
    assert not torch.equal(logits, agent.agent.policy(trained.params, observations)[0])


def test_a_configuration_from_before_means_what_was_done_then() -> None:
    plain = json.loads(json.dumps(config_to_plain(TrainConfig())))
    del plain["inputs"], plain["first_steps"]
    old = config_from_plain(TrainConfig, plain)
    assert old.inputs == InputConfig() and old.inputs.changes_nothing and not old.first_steps


def test_raw_inputs_need_no_state(tmp_path: Path) -> None:
    session = session_of(tmp_path, inputs=InputConfig(), first_steps=False, **CARTPOLE)
    session.advance()
    assert session.normalizer is None and session.state_dict()["inputs"] is None
    assert session.replay.sample(2).executed is None


def test_scaled_rewards_without_statistics(tmp_path: Path) -> None:
    session = session_of(tmp_path, inputs=InputConfig(rewards="scaled", reward_scale=0.5), speed="traced")
    for _ in range(3):
        session.advance()
    assert session.state_dict()["inputs"] == {} and session.counters.updates > 0


def test_the_discount_is_the_rules_own() -> None:
    rule = load_rule("birch")
    assert discount_of(rule, None) == 0.99
    critic = load_rule("actor-critic")
    assert discount_of(critic, critic.hyper_params_type(discount_factor=0.7)) == 0.7
    assert discount_of(load_rule("policy-gradient"), None) == 0.99
