"""A training run in memory: what it counts, when it learns, and that its state is all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same, small_config

from disco_torch.rules import PPO, ActorCritic, DiscoUpdateRule, PolicyGradient
from disco_torch.training import default_config
from disco_torch.training.bring_your_own import RunObjects
from disco_torch.training.defaults import resolve_rule
from disco_torch.training.session import TRACED_FROM, Counters, TrainingSession
from disco_torch.types import tree_map
from disco_torch.weights import load_rule, save_rule


def session_of(tmp_path: Path, **changes: Any) -> TrainingSession:
    return TrainingSession(small_config(tmp_path, **changes))


def test_auto_is_the_default_rule() -> None:
    assert resolve_rule("auto") == default_config().rule == "ppo-replay"
    assert resolve_rule("actor-critic") == "actor-critic"


def test_counts_and_when_learning_begins(tmp_path: Path) -> None:
    session = session_of(tmp_path, batch_size=5, updates_per_rollout=3)
    before = tree_map(torch.clone, session.learner_state.params)
    for rollouts in (1, 2):  # 2 and 4 trajectories, too few for a batch
        session.advance()
        assert session.counters == Counters(rollouts, 12 * rollouts, 0, 0)
    assert_same(before, session.learner_state.params)
    session.advance()
    assert session.counters == Counters(3, 36, 3, 0)
    assert all(not torch.equal(before[name], param) for name, param in session.learner_state.params.items())
    assert "total_loss" in session.logs


def test_a_batch_may_be_larger_than_the_replay(tmp_path: Path) -> None:
    session = session_of(tmp_path, batch_size=50, replay_capacity=4)
    session.advance()
    assert session.counters.updates == 0
    session.advance()
    assert session.counters.updates == 1


def test_fresh_trajectories_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, asked = session_of(tmp_path, replayed_share=0.5), []
    sample = session.replay.sample
    monkeypatch.setattr(session.replay, "sample", lambda *args: asked.append((args[0], *args[2:])) or sample(*args))
    session.advance()
    session.advance()
    assert asked == [(4, 2, 0)]


def test_updates_of_a_rollout_have_new_trajectories_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"num_envs": 4, "batch_size": 2, "replayed_share": 0.5, "updates_per_rollout": 5, "steps": 240}
    session, asked = session_of(tmp_path, **few), []
    sample = session.replay.sample
    monkeypatch.setattr(session.replay, "sample", lambda *args: asked.append(args[2:]) or sample(*args))
    session.advance()
    assert asked == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 0)]


def test_the_schedule_reaches_the_optimiser(tmp_path: Path) -> None:
    sizes = []
    for warmup in (0, 24_000_000):
        session = session_of(tmp_path, warmup_steps=warmup)
        session.advance()
        session.advance()
        sizes.append(session.logs["global_update_norm"].item())
    assert sizes[1] == pytest.approx(1e-6 * sizes[0], rel=1e-3)


def test_episodes_are_counted_when_they_are_read(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    session.advance()
    session.advance()
    finished = session.read_episodes()  # 2 copies, 12 steps each, 3 an episode
    assert len(finished) == session.counters.episodes == 8
    assert all(abs(episode[0]) == 1.0 and episode[1] == 3.0 for episode in finished)
    assert session.read_episodes() == [] and len(session.episodes.recent) == 8


def test_recent_episodes_are_the_last_hundred(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    for _ in range(30):
        session.advance()
    finished = session.read_episodes()
    assert len(finished) == 120 and list(session.episodes.recent) == finished[-100:]


def test_a_checkpoint_takes_no_episodes_from_the_next_line_of_metrics(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    session.advance()
    state = session.state_dict()
    again = session_of(tmp_path, seed=5)
    again.load_state_dict(state)
    for one in (session, again):
        one.advance()
    assert len(session.read_episodes()) == 8 and len(again.read_episodes()) == 8


def test_a_value_function_beside_the_agent_for_the_rule_that_needs_it(tmp_path: Path) -> None:
    plain, with_values = session_of(tmp_path), session_of(tmp_path, rule="policy-gradient")
    assert isinstance(plain.rule, ActorCritic) and plain.value_function is None and plain.value_state is None
    assert isinstance(with_values.rule, PolicyGradient) and with_values.value_state is not None
    before = tree_map(torch.clone, with_values.value_state.params)
    for _ in range(2):
        with_values.advance()
    after = with_values.value_state.params
    assert any(not torch.equal(before[name], after[name]) for name in before)


def through_file(state: Any, tmp_path: Path) -> Any:
    torch.save(state, tmp_path / "state.pt")
    return torch.load(tmp_path / "state.pt", weights_only=True)


@pytest.mark.parametrize("rule", ["actor-critic", "doubly-robust", "policy-gradient"])
def test_the_state_is_all_that_changes(tmp_path: Path, rule: str) -> None:
    session, again = session_of(tmp_path, rule=rule), session_of(tmp_path, rule=rule, seed=7)
    for _ in range(4):
        session.advance()
    again.load_state_dict(through_file(session.state_dict(), tmp_path))
    for _ in range(3):
        session.advance()
        again.advance()
        assert_same(session.state_dict(), again.state_dict())


def test_an_environment_that_cannot_be_saved_begins_new_episodes(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"env": "disco_torch/Catch-v0"}
    session, again = session_of(tmp_path, **changes), session_of(tmp_path, seed=7, **changes)
    for _ in range(3):
        session.advance()
    state = session.state_dict()
    assert state["actor"] is None
    again.load_state_dict(through_file(state, tmp_path))
    assert again.counters == session.counters and again.actor.step.is_first.all()
    again.advance()
    assert again.counters.updates == session.counters.updates + 1


def test_without_the_replay_it_is_filled_anew(tmp_path: Path) -> None:
    session = session_of(tmp_path, checkpoint_replay=False)
    for _ in range(3):
        session.advance()
    state = session.state_dict()
    assert state["replay"] is None
    again = session_of(tmp_path, checkpoint_replay=False)
    again.load_state_dict(state)
    assert len(again.replay) == 0
    again.advance()
    assert again.counters.updates == session.counters.updates == 2
    again.advance()
    assert again.counters.updates == 3


def test_mistakes_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`hyper_params` has no 'value_kost'"):
        session_of(tmp_path, hyper_params={"value_kost": 1.0})
    with pytest.raises(ValueError, match="which is neither"):
        session_of(tmp_path, rule="actor-kritik")
    with pytest.raises(
        ValueError, match="`name` must be 'catch', a family of levels or an environment that Gymnasium knows, got 'katch'"
    ):
        session_of(tmp_path, env="katch", env_args={})
    with pytest.raises(ValueError, match=r"the checkpoint's `learning/learner/params/heads.v.0.weight` is missing; use the"):
        session_of(tmp_path).load_state_dict(session_of(tmp_path, rule="policy-gradient").state_dict())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_rule_that_is_stored_in_another_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    rule, path = load_rule("birch"), tmp_path / "rule.safetensors"
    assert isinstance(rule, DiscoUpdateRule)
    save_rule(path, rule, dtype=dtype)
    session = session_of(tmp_path, rule=str(path))
    for _ in range(4):
        session.advance()
    assert session.counters.updates > 0 and {param.dtype for param in session.rule.parameters()} == {torch.float32}
    wide = {name: param.detach().double() for name, param in rule.named_parameters()}
    wide["meta_net.state_gate.weight"] = wide["meta_net.state_gate.weight"] + 1e300
    save_rule(path, rule, params=wide, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"rule\.safetensors: array 'meta_net\.state_gate\.weight' must be finite in torch\.float32"
    ):
        session_of(tmp_path, rule=str(path))


def test_long_runs_trace_their_updates_and_learn_the_same(tmp_path: Path) -> None:
    """A gradient step for each environment step; nothing but the updates is traced."""
    settings: dict[str, Any] = {"rule": "ppo", "epochs": 2, "minibatches": 6, "batch_size": 2, "replay_capacity": 0}
    runs = {"plain": (TRACED_FROM + 8, "plain"), "short": (TRACED_FROM - 8, "auto"), "long": (TRACED_FROM + 8, "auto")}
    sessions = {name: session_of(tmp_path, **settings, steps=steps, speed=speed) for name, (steps, speed) in runs.items()}
    for session in sessions.values():
        for _ in range(3):
            session.advance()
        assert not session.speed.trace
        assert_same(session.learner_state.params, sessions["plain"].learner_state.params)
    assert [session._update_speed().trace for session in sessions.values()] == [False, False, True]


def test_updates_of_what_a_user_wrote_are_not_traced(tmp_path: Path) -> None:
    class Rule(PPO):
        """One that might do other things from update to update."""

    config = small_config(tmp_path, rule="ppo", steps=10**9)
    torso = torch.nn.Sequential(torch.nn.Flatten(2), torch.nn.Linear(12, 8))
    for objects in (RunObjects(agent=torso), RunObjects(rule=Rule())):
        assert not TrainingSession(config, objects)._update_speed().trace
