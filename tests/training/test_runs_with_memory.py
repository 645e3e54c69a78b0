"""Runs of agents with memory: collected, replayed, resumed, traced, evaluated, recorded, and acted with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import TINY_AGENT, assert_same, last_state, metrics_of, small_config
from torch import nn

from disco_torch import AdamConfig, Agent, AgentConfig, Learner, TrainConfig, load_run, train
from disco_torch.data import memory_resets
from disco_torch.layers import LSTMState
from disco_torch.rules import ActorCritic, ActorCriticConfig
from disco_torch.training import record
from disco_torch.training.session import TrainingSession
from disco_torch.types import Rollout, tree_map
from disco_torch.weights.configuration import config_from_plain

LSTM = replace(TINY_AGENT, core="lstm", core_size=5)
RECALL: dict[str, Any] = {"env": "recall", "env_args": {"delay": 9}, "agent": LSTM}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return train(small_config(tmp_path, **RECALL), view=False).folder


def test_learning_begins_with_the_stored_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = TrainingSession(small_config(tmp_path, **RECALL))
    before = {name: param.clone() for name, param in session.learner_state.params.items()}
    seen: list[Rollout] = []
    monkeypatch.setattr(session, "_recorded_update", noting(session._recorded_update, seen))
    for _ in range(6):
        session.advance()
    assert len(seen) == 5 and any(rollout.first_state.cell.any() for rollout in seen)
    # The first batch was collected with the first parameters: they do again as they did.
    first = seen[0]
    out, _ = session.agent.unroll(before, first.observations, memory_resets(first), first.first_state)
    torch.testing.assert_close(out["logits"], first.behaviour_logits, rtol=1e-4, atol=1e-6)
    changed = session.learner_state.params["core.lstm.linear.weight"] != before["core.lstm.linear.weight"]
    assert changed[:, :8].any() and changed[:, 8:].any()  # the weights of what is seen, and of what is remembered


def noting(update: Callable[..., Any], seen: list[Rollout]) -> Callable[..., Any]:
    def noting_update(state: Any, batch: Rollout, *args: Any) -> Any:
        seen.append(batch)
        return update(state, batch, *args)

    return noting_update


@pytest.mark.parametrize("rule", ["actor-critic", "doubly-robust", "policy-gradient", "birch"])
def test_a_resumed_run_is_the_same_run(rule: str, tmp_path: Path) -> None:
    settings = RECALL | {"rule": rule, "burn_in": 1, "eval_every": 48, "eval_episodes": 2}
    whole = train(small_config(tmp_path, name="whole", **settings), view=False).folder
    parts = train(small_config(tmp_path, name="parts", steps=60, **settings), view=False).folder
    state = last_state(parts)
    assert state["actor"]["memory/hidden"].shape == (2, 5) and state["replay"]["tensors"]["first_state.cell"].any()
    assert train(resume=parts, steps=120, view=False).folder == parts
    assert_same(last_state(whole), last_state(parts))
    assert metrics_of(whole)[-1] == metrics_of(parts)[-1]


@pytest.mark.parametrize("rule", ["actor-critic", "doubly-robust"])
def test_a_traced_run_is_the_plain_one(rule: str, tmp_path: Path) -> None:
    settings = RECALL | {"rule": rule}
    folders = [train(small_config(tmp_path, name=speed, speed=speed, **settings)).folder for speed in ("plain", "traced")]
    plain, traced = (load_run(folder, "cpu").params for folder in folders)
    assert all(torch.allclose(plain[name], traced[name], atol=1e-5) for name in plain)


def test_acting_with_the_result(folder: Path) -> None:
    """Predictions one by one are those of the agent on the whole episodes, two of which begin anew on the way."""
    run = load_run(folder, "cpu")
    run.params["heads.logits.0.weight"] = 50 * run.params["heads.logits.0.weight"]
    rows = np.random.default_rng(0).integers(0, 2, (40, 3, 9)).astype(np.float32)
    begins = np.zeros((40, 3), bool)
    begins[0], begins[17, 1], begins[20, 2] = True, True, True
    actions = []
    for row, first in zip(rows, begins, strict=True):
        if len(actions):
            run.reset(first)
        actions.append(run.predict(row, deterministic=True))
    agent: Any = getattr(run.agent, "agent", run.agent)
    out, _ = agent.unroll(run.params, torch.tensor(rows), torch.tensor(begins))
    assert np.array_equal(np.stack(actions), out["logits"].argmax(-1).numpy())
    never, _ = agent.unroll(run.params, torch.tensor(rows))
    assert not torch.equal(never["logits"].argmax(-1), out["logits"].argmax(-1))
    run.reset()
    assert np.array_equal(run.predict(rows[0], deterministic=True), actions[0])


def test_evaluations_and_recordings(folder: Path, tmp_path: Path) -> None:
    run = load_run(folder, "cpu")
    played = run.evaluate(6, num_envs=3)
    assert len(played.returns) == 6 and len(set(played.lengths)) == 1
    assert record(run, tmp_path / "episode.gif") == played.lengths[0] + 1


def test_a_core_behind_a_torso_of_the_users(tmp_path: Path) -> None:
    settings = small_config(tmp_path, **RECALL)
    folder = train(settings, agent=nn.Linear(9, 7), view=False).folder
    run = load_run(folder, "cpu", agent=nn.Linear(9, 7))
    assert run.params["core.lstm.linear.weight"].shape == (4 * 5, 7 + 5)
    assert run.predict(np.zeros(9, np.float32)) in range(4)


def test_burn_in_is_learning_from_the_rest() -> None:
    """The loss is that of the later rows, with the memory that the first ones have left."""
    rule = ActorCritic(ActorCriticConfig(num_bins=1, nonlinear_value_transform=False))
    agent = Agent(torch.zeros(9), 4, rule.outputs(4), LSTM).double()
    state = Learner(agent, rule).init(torch.Generator().manual_seed(0))
    rollout = some_rollout()
    _, memory = agent.unroll(state.params, rollout.observations[:4], memory_resets(rollout)[:4], rollout.first_state)
    rest = replace(tree_map(lambda x: x[4:], replace(rollout, first_state=None)), first_state=memory)
    logs = [
        Learner(agent, rule, AdamConfig(1e-2), burn_in=burn_in).update(state, rows)[1]["total_loss"]
        for burn_in, rows in ((4, rollout), (0, rest), (0, rollout))
    ]
    torch.testing.assert_close(logs[0], logs[1], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(logs[0], logs[2])


def some_rollout() -> Rollout:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    return Rollout(
        observations=draw(9, 3, 9),
        actions=torch.randint(4, (9, 3), generator=generator),
        rewards=draw(9, 3),
        discounts=(draw(9, 3) > 0.2).double(),
        behaviour_logits=draw(9, 3, 4),
        first_state=LSTMState(draw(3, 5), draw(3, 5)),
    )


def test_burn_in_changes_what_is_learned(tmp_path: Path) -> None:
    ends = [train(small_config(tmp_path, name=str(n), burn_in=n, **RECALL), view=False).folder for n in (0, 3)]
    with_all, with_rest = (load_run(folder, "cpu").params["core.lstm.linear.weight"] for folder in ends)
    assert not torch.equal(with_all, with_rest)


def test_files_from_before_have_no_memory(folder: Path) -> None:
    plain = json.loads((folder / "config.json").read_text())
    assert plain["agent"]["core"] == "lstm" and plain["burn_in"] == 0
    for name in ("core", "core_size"):
        del plain["agent"][name]
    del plain["burn_in"]
    assert config_from_plain(AgentConfig, plain["agent"]) == TINY_AGENT
    assert config_from_plain(TrainConfig, plain).burn_in == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"burn_in": 2},
            r"`burn_in` must be 0 for an agent without memory, got 2; set the agent's `core` to 'lstm'",
        ),
        ({"agent": LSTM, "burn_in": 5}, r"`burn_in` must be 0 to 4 for trajectories of 6 rows, .* got 5; use longer roll"),
        ({"agent": LSTM, "burn_in": -1}, r"`burn_in` must be 0 to 4 .* got -1"),
    ],
)
def test_settings_that_do_not_go_together(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(small_config(tmp_path, **changes), view=False)
    assert not list(tmp_path.iterdir())


def test_a_learner_of_its_own() -> None:
    rule = ActorCritic()
    with pytest.raises(ValueError, match=r"`burn_in` must be at least 0, got -2"):
        Learner(Agent(torch.zeros(3), 4, rule.outputs(4), LSTM), rule, burn_in=-2)
