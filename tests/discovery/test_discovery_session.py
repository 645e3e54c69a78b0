"""A discovery in memory: how gradients become a change of the rule, what is left out, measured, saved and taken up again."""

from __future__ import annotations

import dataclasses
import io
import warnings
from typing import Any

import pytest
import torch
from small_discoveries import PAPER, TINY_AGENT, assert_same
from small_groups import CATCH, CHAIN, REPLAY, SLIDING, Watched, assert_close, assert_close_trees, poison, tiny_config

from disco_torch import AdamConfig
from disco_torch.discovery import DiscoverySession, World, recorded_meta_update
from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.discovery.group_state import GroupGradient
from disco_torch.optim import adam_init, adam_update, apply_updates, flat
from disco_torch.runs import first_not_finite
from disco_torch.types import Params

OTHER_AGENT = dataclasses.replace(TINY_AGENT, dense=(6,))
TWO_GROUPS = {"groups": (GroupConfig((CATCH,), TINY_AGENT, (1e-2, 3e-3)), GroupConfig((CHAIN,), OTHER_AGENT, (5e-3,)))}
QUICK = {"rollout_length": 3, "valid_length": 3}


def make_session(**changes: Any) -> DiscoverySession:
    return DiscoverySession(tiny_config(**changes))


def noting_gradients(session: DiscoverySession) -> list[list[GroupGradient]]:
    """The gradients of all groups from now on, a list for each group."""
    noted: list[list[GroupGradient]] = []

    def note(group: Any) -> None:
        own: list[GroupGradient] = []
        noted.append(own)
        advance = group.advance

        def noting(eta: Params) -> GroupGradient:
            own.append(advance(eta))
            return own[-1]

        group.advance = noting

    for group in session.groups:
        note(group)
    return noted


def agent_grads(noted: list[list[GroupGradient]], n: int) -> list[Params]:
    """The gradient of each agent of all groups at a meta-update."""
    grads = [own[n].grads for own in noted]
    return [{name: g[i] for name, g in group.items()} for group in grads for i in range(len(next(iter(group.values()))))]


def mean(trees: list[Params]) -> Params:
    return {name: torch.stack([tree[name] for tree in trees]).mean(0) for name in trees[0]}


OPTIMIZER = AdamConfig(learning_rate=1e-2, weight_decay=0.1, max_abs_update=0.9)


@pytest.mark.parametrize("groups", [{}, TWO_GROUPS], ids=["one group", "two groups"])
def test_one_adam_is_on_the_mean_gradient(groups: dict[str, Any]) -> None:
    session = make_session(optimizer=OPTIMIZER, **QUICK, **groups)
    noted = noting_gradients(session)
    params, state = session.rule_params, adam_init(session.rule_params)
    for n in range(2):
        session.advance()
        average = mean(agent_grads(noted, n))
        changes, state = adam_update(average, state, params, OPTIMIZER)
        params = apply_updates(params, changes)
        assert len(agent_grads(noted, n)) == 3
        assert_close(session.rule_params, params, 1e-12)
        assert_close_trees(session.moments(), state, 1e-12)
        metrics = session.read_metrics()
        assert metrics["meta_grad_norm"] == pytest.approx(float(flat(average).norm()), rel=1e-12)
        assert metrics["meta_up_norm"] == pytest.approx(float(flat(changes).norm()), rel=1e-12)


@pytest.mark.parametrize("groups", [{}, TWO_GROUPS], ids=["one group", "two groups"])
def test_an_adam_for_each_agent_and_the_mean_of_their_updates(groups: dict[str, Any]) -> None:
    session = make_session(optimizer=OPTIMIZER, adam_per_agent=True, **QUICK, **groups)
    noted = noting_gradients(session)
    params, states = session.rule_params, [adam_init(session.rule_params) for _ in range(3)]
    for n in range(2):
        session.advance()
        grads = agent_grads(noted, n)
        steps = [adam_update(grad, state, params, OPTIMIZER) for grad, state in zip(grads, states, strict=True)]
        changes, states = mean([step[0] for step in steps]), [step[1] for step in steps]
        params = apply_updates(params, changes)
        assert_close(session.rule_params, params, 1e-12)
        metrics = session.read_metrics()
        assert metrics["meta_grad_norm"] == pytest.approx(float(flat(mean(grads)).norm()), rel=1e-12)
        assert metrics["meta_up_norm"] == pytest.approx(float(flat(changes).norm()), rel=1e-12)
    moments = session.moments()
    assert_close(moments.mu, mean([state.mu for state in states]), 1e-12)
    assert_close(moments.nu, mean([state.nu for state in states]), 1e-12)
    assert int(moments.count) == 2 and moments.count.dtype == torch.int64


POISONS = [
    "heads.y",
    "",
]


@pytest.mark.parametrize("adam_per_agent", [False, True])
def test_the_rule_slows_down(adam_per_agent: bool) -> None:
    """The first update is at the full rate, the second at a quarter of it; moments do not know of the rate."""
    even, slowing = (make_session(**QUICK, adam_per_agent=adam_per_agent, slow_after=n) for n in (0, 1))
    steps = []
    for session in (even, slowing):
        session.advance()
        before = flat(session.rule_params)
        session.advance()
        steps.append((before, flat(session.rule_params) - before))
    (first, change), (same, slow) = steps
    assert torch.equal(first, same)
    torch.testing.assert_close(slow, change / 4.0, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("part", POISONS)
@pytest.mark.parametrize("adam_per_agent", [False, True])
def test_an_agent_that_is_not_finite_is_left_out_and_replaced(adam_per_agent: bool, part: str) -> None:
    changes: dict[str, Any] = SLIDING | QUICK | {"adam_per_agent": adam_per_agent, "optimizer": OPTIMIZER}
    session, undisturbed = make_session(**changes), make_session(**changes)
    noted = noting_gradients(undisturbed)
    for each in (session, undisturbed):
        each.advance()
        each.read_metrics()
    params, before = session.rule_params, session.opt_states[0]
    poison(session.groups[0], 1, part)
    with pytest.warns(UserWarning, match=r"the state of agent 1 of group 0 \(catch\) is not finite; it is left out, a"):
        session.advance()
    undisturbed.advance()
    finite = [agent_grads(noted, 1)[agent] for agent in (0, 2)]
    if adam_per_agent:
        states = [dataclasses.replace(before, **rows(before, agent)) for agent in (0, 2)]
        steps = [adam_update(grad, state, params, OPTIMIZER) for grad, state in zip(finite, states, strict=True)]
        change = mean([step[0] for step in steps])
        assert session.opt_states[0].count.tolist() == [2, 1, 2]
        assert all(bool(x.isfinite().all()) for x in session.opt_states[0].mu.values())
    else:
        change, _ = adam_update(mean(finite), before, params, OPTIMIZER)
    assert_close(session.rule_params, apply_updates(params, change), 1e-9)
    assert session.lost == ["agent 1 of group 0 (catch) at meta-update 1"]
    assert session.groups[0].lives == [0, 1, 0] and session.counters.lives == 4
    metrics = session.read_metrics()
    assert metrics["nonfinite"] == 1 and all(value == value for value in metrics.values())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.advance()  # the new agent's gradient counts at once
    assert session.read_metrics()["nonfinite"] == 0 and session.counters.lives == 4


def rows(state: Any, agent: int) -> dict[str, Any]:
    """One agent's part of the optimisers."""
    parts = {name: {key: x[agent] for key, x in getattr(state, name).items()} for name in ("mu", "nu")}
    return parts | {"count": state.count[agent]}


@pytest.mark.parametrize("share_values", [False, True])
@pytest.mark.parametrize("part", ["agent", "value"])
def test_an_agent_whose_moments_overflow_is_replaced(part: str, share_values: bool) -> None:
    """Its gradients are finite, yet some of its weights would never move again."""
    habitats = (HabitatConfig("catch", {"rows": 5, "columns": 5}, agents=2), HabitatConfig("chain", agents=2))
    groups = (GroupConfig(habitats, TINY_AGENT, (1e-2,)),)
    session = make_session(groups=groups, share_values=share_values, **QUICK)
    session.advance()
    group = session.groups[0]
    state = group.state.learners.opt_state.nu if part == "agent" else group.state.values.opt_state.nu
    shared = part == "value" and share_values
    next(iter(state.values()))[0 if shared else 1].view(-1)[0] = float("inf")
    failed = [0, 1] if shared else [1]  # of the habitat, or the one
    with pytest.warns(UserWarning, match=r"or the state of agent \d of group 0 \(catch\) is not finite; it is left out"):
        session.advance()
    assert session.lost == [f"agent {agent} of group 0 (catch) at meta-update 1" for agent in failed]
    assert group.lives == [1 if agent in failed else 0 for agent in range(4)]
    assert first_not_finite({"agents": group.state.learners, "values": group.state.values}) is None
    session.advance()
    assert len(session.lost) == len(failed)


@pytest.mark.parametrize("adam_per_agent", [False, True])
def test_where_no_gradient_is_finite_the_rule_stays(adam_per_agent: bool) -> None:
    session = make_session(adam_per_agent=adam_per_agent, **SLIDING, **QUICK)
    session.advance()
    session.read_metrics()
    rule, optimizers = session.rule_params, session.opt_states[0]
    for agent in range(3):
        poison(session.groups[0], agent, "heads.y")
    with pytest.warns(UserWarning, match="is not finite") as caught:
        session.advance()
    assert len(caught) == 3 == len(session.lost)
    assert_same(session.rule_params, rule)
    assert_same(session.opt_states[0], optimizers)
    metrics = session.read_metrics()
    assert metrics["nonfinite"] == 3 and metrics["meta_up_norm"] == 0 and metrics["meta_grad_norm"] == 0
    session.advance()
    assert any(not torch.equal(session.rule_params[name], rule[name]) for name in rule)


@pytest.mark.parametrize("changes", [{}, SLIDING | REPLAY | {"valid_envs": 4}], ids=["notebook", "paper"])
def test_metrics_are_sums_over_all_episodes_and_steps(changes: dict[str, Any]) -> None:
    session = make_session(num_envs=3, batch_size=3, **changes)
    watched, noted = Watched(session.groups[0]), noting_gradients(session)
    for _ in range(3):
        session.advance()
    metrics = session.read_metrics()
    acting = session.groups[0].state.acting
    copies = session.config.num_parallel_envs
    # What a row holds arrived with it; the step after the last row is still on its way.
    pending = [torch.cat([getattr(step, name) for step in acting.steps]).double() for name in ("rewards", "discounts")]
    rewards, discounts = (
        torch.cat([*[getattr(part, name) for part in watched.collected], last.reshape(3, 1, copies)], dim=1)
        for name, last in zip(("rewards", "discounts"), pending, strict=True)
    )  # [P, rows + 1, copies]
    returns: dict[str, list[float]] = {"catch": [], "chain": []}
    for agent, name in enumerate(("catch", "catch", "chain")):
        for copy in range(copies):
            total = 0.0
            for reward, discount in zip(rewards[agent, :, copy], discounts[agent, :, copy], strict=True):
                total += float(reward)
                if discount == 0:
                    returns[name].append(total)
                    total = 0.0
    assert returns["catch"] and len(set(returns["catch"])) == 2
    for name, ended in returns.items():
        if ended:
            assert metrics[f"return/{name}"] == pytest.approx(sum(ended) / len(ended), abs=1e-12)
        else:
            assert f"return/{name}" not in metrics
    steps = rewards[:, 1:]
    assert metrics["rewards"] == pytest.approx(float(steps.mean()), abs=1e-12)
    assert metrics["pos_rewards"] == int((steps > 0).sum()) and metrics["neg_rewards"] == int((steps < 0).sum())
    assert session.counters.steps == steps.numel()
    assert session.counters.updates == 3 * len(watched.updates) and session.counters.meta_updates == 3
    for name in ("meta_loss", "entropy", "target_kl", "agent/total_loss"):
        values = torch.stack([gradient.logs[name] for gradient in noted[0]])
        assert metrics[name] == pytest.approx(float(values.mean()), rel=1e-12)
    assert session.read_metrics() == {}


MODES: dict[str, dict[str, Any]] = {
    "notebook": {},
    "paper": PAPER | {"batch_size": 4, "valid_envs": 4},
    "shared values": {"share_values": True, "groups": (GroupConfig((CATCH, HabitatConfig("chain", agents=2)), TINY_AGENT),)},
    "two groups": TWO_GROUPS | SLIDING | {"adam_per_agent": True, "lifetimes": (2,)},
}


def stored(session: DiscoverySession) -> Any:
    """A state as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(session.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("mode", MODES)
def test_a_state_goes_on_to_the_last_bit(mode: str) -> None:
    changes = QUICK | MODES[mode]
    session = make_session(**changes)
    for _ in range(2):
        session.advance()
    state = stored(session)
    assert_same(state, stored(session))
    other = make_session(**changes)
    other.advance()  # whatever it did before
    other.load_state_dict(state)
    assert_same(stored(other), state)
    for each in (session, other):
        each.advance()
        each.advance()
    assert_same(stored(other), stored(session))
    assert session.read_metrics() == other.read_metrics()


def test_a_state_is_a_copy() -> None:
    session = make_session(**(QUICK | SLIDING | REPLAY))
    session.advance()
    state, kept = session.state_dict(), stored(session)
    session.advance()
    assert_same(state, kept)


def test_a_traced_session_is_the_plain_one_and_goes_on_to_the_last_bit() -> None:
    config = tiny_config(CATCH, speed="traced", window=2, stride=1, fresh_validation=True, rollout_length=2, valid_length=2)
    session = DiscoverySession(config)
    plain = DiscoverySession(dataclasses.replace(config, speed="plain"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no stage may fail
        session.advance()
    plain.advance()
    state = stored(session)
    for each in (session, plain):
        each.advance()
    assert_close(session.rule_params, plain.rule_params, 1e-12)
    assert_close_trees(session.groups[0].state.learners, plain.groups[0].state.learners)
    after = stored(session)
    session.load_state_dict(state)
    session.advance()
    assert_same(stored(session), after)


def test_updates_without_logs_are_the_same_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(CATCH, speed="traced", window=2, rollout_length=2, valid_length=2)
    loud = DiscoverySession(config)
    monkeypatch.setattr(recorded_meta_update, "FEW_UPDATES", 0)
    quiet = DiscoverySession(config)
    for session in (loud, quiet):
        session.advance()
    parts = [session.groups[0].meta_update.parts for session in (quiet, loud)]
    assert [each.update_agents_silently is each.update_agents for each in parts] == [False, True]
    assert [len(each.update_agents_silently._recordings) for each in parts] == [1, 1]
    assert_same(stored(quiet), stored(loud))
    assert quiet.read_metrics() == loud.read_metrics()


def test_a_checkpoint_of_another_device_goes_on_with_other_numbers() -> None:
    session = make_session(**QUICK)
    session.advance()
    state = stored(session) | {"device": "cuda"}
    other = make_session(**QUICK)
    fresh = other.groups[0].generator.get_state()
    with pytest.warns(UserWarning, match="the checkpoint is of a discovery on cuda; it continues on cpu with other random"):
        other.load_state_dict(state)
    assert torch.equal(other.groups[0].generator.get_state(), fresh)
    assert_same(other.rule_params, session.rule_params)


def test_a_checkpoint_of_other_settings() -> None:
    session = make_session(**QUICK)
    session.advance()
    state = stored(session)
    with pytest.raises(ValueError, match="the checkpoint's `groups/0/agents/replay/0/observations` is missing; use the set"):
        make_session(**QUICK, replay_capacity=6, fresh_validation=True).load_state_dict(state)


def test_more_processes_than_agents() -> None:
    for rank in (0, 3):  # in all of them, so that none waits for the others
        with pytest.raises(ValueError, match=r"agents for each of the 4 processes, process 0 has none\."):
            DiscoverySession(tiny_config(), World(rank, 4))


def test_habitats_of_one_agent_each_are_split_over_processes() -> None:
    kinds = tuple(HabitatConfig(name) for name in ("catch", "chain", "grid", "crossing"))
    for rank in range(2):
        session = DiscoverySession(tiny_config(*kinds), World(rank, 2))
        assert session.groups[0].habitats.ids == [[0, 1], [2, 3]][rank]
