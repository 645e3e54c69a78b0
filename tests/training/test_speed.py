"""A recorded run is the plain one, sooner: the same games, the same parameters, the same checkpoints."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from small_runs import assert_same, last_state, metrics_of, small_config

from disco_torch import AdamConfig, Agent, AgentConfig, Learner, Rollout
from disco_torch.kernels import Recorded, Speed
from disco_torch.rules import DiscoConfig, DiscoUpdateRule, MetaNetConfig, UpdateRule
from disco_torch.rules.meta_net import MetaRNNConfig
from disco_torch.training import train
from disco_torch.training.recorded_update import ALWAYS_LOGGED
from disco_torch.training.session import TrainingSession
from disco_torch.types import Params
from disco_torch.weights import load_rule

RULES = ("disco", "actor-critic")


def tiny_disco() -> DiscoUpdateRule:
    net = MetaNetConfig(prediction_size=7, hidden_size=5, meta_rnn=MetaRNNConfig(hidden_size=4))
    return DiscoUpdateRule(DiscoConfig(net=net, num_bins=11))


def make_learner(rule: UpdateRule, dtype: torch.dtype) -> Learner:
    rule = rule.to(dtype)
    sizes = AgentConfig(dense=(8,), lstm_size=6, head_mlp_hiddens=(5,))
    return Learner(Agent(torch.zeros(4), 3, rule.outputs(3), sizes).to(dtype), rule, AdamConfig(1e-2))


def random_rollout(generator: torch.Generator, dtype: torch.dtype, T: int = 5, B: int = 3) -> Rollout:
    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(T + 1, B, *shape, generator=generator, dtype=dtype)

    actions = torch.randint(3, (T + 1, B), generator=generator)
    return Rollout(draw(4), actions, draw(), (draw() > -1.0).to(dtype), draw(3))


def difference(a: Params, b: Params) -> float:
    """Of all parameters together, relative to the second ones."""
    flat_a, flat_b = (torch.cat([x.flatten() for x in params.values()]) for params in (a, b))
    return float((flat_a - flat_b).norm() / flat_b.norm())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_ten_traced_updates_are_ten_plain_ones(rule: str, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    learner = make_learner(tiny_disco() if rule == "disco" else load_rule(rule), dtype)
    generator = torch.Generator().manual_seed(0)
    start = learner.init(generator)
    rollouts = [random_rollout(generator, dtype) for _ in range(10)]
    results = []
    for speed in (Speed(), Speed(trace=True)):
        update = Recorded(lambda state, rollout, rate: learner.update(state, rollout, learning_rate=rate)[0], speed)
        state = start
        for i, rollout in enumerate(rollouts):
            state = update(state, rollout, torch.full((), 1e-2 / (1 + i), dtype=dtype))
        assert len(update._recordings) == (1 if speed.trace else 0)  # other data, another rate: the same recording
        results.append(state)
    plain, traced = results
    assert difference(traced.params, plain.params) <= tolerance
    assert difference(plain.params, start.params) > 1e-3


def test_arguments_that_are_one_tensor_at_first_are_two_later() -> None:
    subtract = Recorded(lambda a, b: a - b, Speed(trace=True))
    one = torch.ones(2)
    assert subtract(one, one).tolist() == [0.0, 0.0]
    assert subtract(one, 3.0 * one).tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("rule", ["actor-critic", "doubly-robust", "policy-gradient"])
def test_a_traced_session_is_the_plain_one(tmp_path: Path, rule: str) -> None:
    sessions = [TrainingSession(small_config(tmp_path, rule=rule, speed=speed)) for speed in ("plain", "traced")]
    for _ in range(6):
        for session in sessions:
            session.advance()
    plain, traced = sessions
    assert difference(traced.learner_state.params, plain.learner_state.params) <= 1e-5
    actions = [session.replay.state_dict()["tensors"]["actions"] for session in (traced, plain)]
    assert_same(*actions)
    assert traced.read_episodes() == plain.read_episodes()


def test_logs_are_whole_when_metrics_are_due(tmp_path: Path) -> None:
    session = TrainingSession(small_config(tmp_path, speed="traced", log_every=3, steps=60))
    plain = TrainingSession(small_config(tmp_path, speed="plain", log_every=3, steps=60))
    for rollouts in range(1, 6):
        session.advance()
        plain.advance()
        if rollouts >= 2:
            due = rollouts in (3, 5)  # every third, and the last one
            assert set(session.logs) == (set(plain.logs) if due else set(ALWAYS_LOGGED))
            torch.testing.assert_close(session.logs, {name: plain.logs[name] for name in session.logs})


def test_a_traced_run_that_is_resumed_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    config = small_config(tmp_path, speed="traced", rule="policy-gradient")
    whole = train(config, view=False).folder
    half = train(dataclasses.replace(config, steps=60, name="half"), view=False).folder
    train(dataclasses.replace(config, steps=120), resume=half, view=False)
    assert_same(last_state(half), last_state(whole))
    assert metrics_of(half) == metrics_of(whole)


def test_a_run_may_go_on_at_another_speed(tmp_path: Path) -> None:
    config = small_config(tmp_path, speed="plain", steps=60)
    folder = train(config, view=False).folder
    train(dataclasses.replace(config, speed="traced", steps=120), resume=folder, view=False)
    assert last_state(folder)["counters"]["updates"] == 9
