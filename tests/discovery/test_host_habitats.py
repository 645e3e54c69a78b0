"""Habitats on the host: other people's environments in a population, beside those of tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import own_habitats
import pytest
import torch
from small_discoveries import PAPER, TINY_AGENT, assert_same, end, last_state, metrics_of, run, small_config, start
from small_groups import (
    CATCH,
    REPLAY,
    SLIDING,
    Watched,
    assert_close,
    assert_close_trees,
    make_group,
    params_of,
    pick,
    random_rule,
    tiny_config,
)

from disco_torch.data import InputConfig
from disco_torch.discovery import DiscoverySession, PlainMetaGradient
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.host_environments import modules_of
from disco_torch.discovery.local_group import LocalGroup, seed_of
from disco_torch.discovery.run import discover
from disco_torch.envs import EnvironmentFailure, make_env, registered
from disco_torch.kernels import Speed
from disco_torch.runs.checkpoint import list_checkpoints
from disco_torch.types import flatten_tree, tree_map

CARTPOLE = HabitatConfig("own_habitats:make_cartpole", agents=2)
COUNTING = HabitatConfig("own_habitats:Counting", agents=2)
ALL: dict[str, Any] = {"inputs": InputConfig(observations="auto", rewards="normalized"), "first_steps": True}
B = 3


def with_agent(*habitats: HabitatConfig, changes: Any = None, **agent: Any) -> DiscoverConfig:
    group = GroupConfig(habitats, replace(TINY_AGENT, **agent), learning_rates=(1e-2, 3e-3))
    return tiny_config(groups=(group,), **(changes or {}))


def life_seed(group: LocalGroup, agent: int) -> int:
    """The seed that a life draws for its environments."""
    life = group._life(group.habitats.ids[agent], group.lives[agent])
    return int(torch.randint(2**62, (), generator=life.generator))


def test_an_agents_rows_are_those_of_its_own_environments() -> None:
    """Stepped alone with the same actions and the seed of its life, they give the rollouts; cuts show last observations."""
    watched = Watched(make_group(tiny_config(CATCH, CARTPOLE)))
    group = watched.group
    group.advance(params_of(random_rule()))
    played: Any = tree_map(lambda *xs: torch.cat(xs, dim=1), *(replace(r, first_state=None) for r in watched.collected))
    assert group.habitats.num_actions == 3 and group.habitats.observation_size == 9
    assert played.truncations[2:].any() and not played.truncations[:2].any()
    for agent in (2, 3):
        env = make_env(own_habitats.make_cartpole, B)
        generator = torch.Generator().manual_seed(life_seed(group, agent))
        _, step = env.reset(generator)
        for t, actions in enumerate(played.actions[agent]):
            assert torch.equal(played.observations[agent, t, :, :4], step.final_observations), t  # type: ignore[arg-type]
            assert not played.observations[agent, t, :, 4:].any()
            for name in ("rewards", "discounts", "truncations"):
                assert torch.equal(getattr(played, name)[agent, t].double(), getattr(step, name).double()), name
            _, step = env.step(None, actions % 2, generator)  # CartPole has 2 actions, Catch 3
        assert torch.equal(group.state.acting.steps[1].observations[(agent - 2) * B :][:B], step.observations)  # type: ignore[index]


@pytest.mark.parametrize(
    ("habitats", "agent"),
    [
        ((CARTPOLE, CATCH), {}),
        ((CARTPOLE, CATCH), {"core": "lstm", "core_size": 3}),
        ((HabitatConfig("own_habitats:Board", agents=2),), {"torso": "board", "channels": (2,)}),
        ((HabitatConfig("own_habitats:Image", agents=2),), {"torso": "impala", "channels": (2,), "core": "lstm"}),
    ],
    ids=["flat", "memory", "board", "image and memory"],
)
@pytest.mark.parametrize("changes", [REPLAY, REPLAY | ALL], ids=["raw", "normalised"])
def test_plain_and_mixed_mode_meta_gradients_agree(habitats: Any, agent: Any, changes: Any) -> None:
    watched = Watched(make_group(with_agent(*habitats, changes=changes, **agent)))
    group, eta = watched.group, params_of(random_rule())
    group.advance(eta)
    watched.updates.clear()
    gradient, first = group.advance(eta), watched.updates[0]
    assert gradient is not None and any(bool(update.batch.truncations.any()) for update in watched.updates)  # type: ignore[union-attr]
    compute = PlainMetaGradient(group.meta_gradient.learner, group.value_function, group.config.weights)
    for i in range(group.num_agents):
        states = pick(first.before, i), pick(first.values, i)
        train = [pick(update.batch, i) for update in watched.updates]
        alone = compute(eta, *states, train, pick(watched.valid, i), group.rates[i])
        assert_close(pick(gradient.grads, i), alone.grads)
        assert_close_trees(pick(group.state.learners, i), alone.learner_state)
    group.habitats.close()


def test_all_but_the_environments_is_recorded() -> None:
    """Traced agents in a mixed group play and learn as plain ones do."""
    config = tiny_config(COUNTING, CATCH, window=1, rollout_length=2, valid_length=2)
    eta, cpu = params_of(random_rule()), torch.device("cpu")
    plain, traced = (LocalGroup(config, 0, random_rule(), cpu, speed) for speed in (Speed(), Speed(trace=True)))
    for _ in range(2):
        got, want = traced.advance(eta), plain.advance(eta)
        assert got is not None and want is not None
        assert_close(got.grads, want.grads)
    assert_close_trees(traced.state.acting, plain.state.acting)


@pytest.mark.filterwarnings("ignore:.*parts")
def test_observations_of_several_parts_are_flat_and_on_the_scale_of_training() -> None:
    """Bytes are divided by 255 where they are raw or an image; codes of known meaning stay numbers to be normalised."""
    parts = HabitatConfig("own_habitats:Parts", agents=1)
    for inputs, codes in ((InputConfig(), 1 / 255), (InputConfig(observations="auto"), 1.0)):
        group = make_group(tiny_config(parts, CATCH, inputs=inputs))
        assert group.habitats.observation_shape == (32 * 32 + 4 + 2,) and group.habitats.layout.dtype == torch.float32
        actions = torch.ones(3, B, dtype=torch.long)
        (step, _) = group.habitats.step_hosts(actions)
        assert step is not None
        flat = group.habitats.layout.flat(group.habitats.habitats[0].env, step.observations)
        values = {"view": 0.2, "cells": codes, "place": 1.0}
        want = [torch.full((B, x.numel() // B), values[name]) for name, x in step.observations.items()]  # type: ignore[union-attr]
        torch.testing.assert_close(flat, torch.cat(want, dim=1))
        assert (group.inputs is None) == (inputs.observations == "raw")
        assert group.inputs is None or group.inputs.counted.tolist() == [1, 0, 0]
    with pytest.raises(ValueError, match=r"`torso` of a group must be 'mlp' where .*several parts.*, got 'board'; put"):
        make_group(with_agent(parts, torso="board"))


def test_images_stay_bytes_unless_beside_something_else() -> None:
    image = HabitatConfig("own_habitats:Image", agents=1)
    alone = make_group(with_agent(image, changes=ALL | REPLAY, torso="auto", channels=(2,)))
    alone.advance(params_of(random_rule()))
    assert alone.agent.config.torso == "impala" and alone.habitats.observation_shape == (32, 32, 1)
    assert alone.state.replay is not None and alone.state.replay.trajectories.observations.dtype == torch.uint8  # type: ignore[union-attr]
    beside = Watched(make_group(with_agent(image, CATCH, changes=ALL | REPLAY)))
    beside.group.advance(params_of(random_rule()))
    shown = {round(x, 6) for x in beside.collected[0].observations[0].unique().tolist()}  # type: ignore[index]
    assert shown == {0.0, 0.2, 0.4, 0.6} and beside.group.habitats.layout.dtype == torch.float32


def test_a_population_is_repeatable_and_does_not_depend_on_the_split() -> None:
    config = tiny_config(
        COUNTING, replace(CARTPOLE, agents=1), HabitatConfig("chain", agents=1), lifetimes=(1, 3), **SLIDING
    )
    whole, again = Watched(make_group(config)), Watched(make_group(config))
    parts = [Watched(make_group(config, rank, 2)) for rank in range(2)]
    eta = params_of(random_rule())
    for _ in range(3):
        for each in (whole, again, *parts):
            each.group.advance(eta)
            each.group.renew([])
    assert any(whole.group.lives)
    for rollout, other, *split in zip(whole.collected, again.collected, *(part.collected for part in parts), strict=True):
        assert_same(rollout, other)
        assert torch.equal(torch.cat([each.observations for each in split]), rollout.observations)  # type: ignore[arg-type]
        assert torch.equal(torch.cat([each.actions for each in split]), rollout.actions)


def test_a_new_life_begins_new_episodes_of_its_own_agent_alone() -> None:
    group = make_group(with_agent(COUNTING, changes=SLIDING, core="lstm", core_size=2))
    group.advance(params_of(random_rule()))
    before = tree_map(torch.clone, group.state.acting)
    seed = life_seed(group, 1)
    group.renew([1])
    after, shown = group.state.acting, group.state.acting.steps[0]
    assert torch.equal(shown.observations[:B], before.steps[0].observations[:B])  # type: ignore[index]
    assert shown.is_first[B:].all() and not shown.observations[B:, 1].any() and life_seed(group, 1) != seed  # type: ignore[index]
    assert not after.returns[1].any() and torch.equal(after.returns[0], before.returns[0])
    memory = flatten_tree(after.memory)[0]
    assert all(x[0].any() for x in memory) and not any(x[1].any() for x in memory)


def test_wrappers_arguments_and_registered_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registered.ENVIRONMENTS, "counts-of-my-own", own_habitats.Counting)
    wrapped = HabitatConfig("counts-of-my-own", {"limit": 2}, 1, ("own_habitats:Doubled",))
    watched = Watched(make_group(tiny_config(wrapped, rollout_length=7)))
    watched.group.advance(params_of(random_rule()))
    rollout = watched.collected[0]
    assert set(rollout.rewards.unique().tolist()) == {0.0, 2.0} and rollout.truncations is not None
    assert rollout.truncations[0, :, 0].nonzero().flatten().tolist() == [2, 4, 6]


def test_a_resumed_discovery_begins_new_episodes_on_the_host_alone() -> None:
    config = tiny_config(COUNTING, CATCH, **(PAPER | ALL | {"lifetimes": ()}))
    session, again = DiscoverySession(config), DiscoverySession(config)
    for _ in range(2):
        session.advance()
    again.load_state_dict(tree_map(torch.clone, session.state_dict()))
    group, other = session.groups[0], again.groups[0]
    acting, restarted = group.state.acting, other.state.acting
    assert_same(restarted.env_states[1], acting.env_states[1])
    assert_same(restarted.steps[1], acting.steps[1])
    assert restarted.steps[0].is_first.all() and not restarted.returns[:2].any()
    assert torch.equal(restarted.returns[2:], acting.returns[2:])
    assert_same(other.state.learners, group.state.learners)
    stats, others = group.state.inputs, other.state.inputs
    assert stats is not None and others is not None and stats.returns is not None and others.returns is not None
    assert_same(others.observations, stats.observations)
    assert not others.returns[:2].any() and torch.equal(others.returns[2:], stats.returns[2:])
    first = torch.Generator().manual_seed(seed_of(config.seed, 0, 0, 0, group.ages[0]))
    seed = int(torch.randint(2**62, (), generator=first))
    _, step = make_env(own_habitats.Counting, B).reset(torch.Generator().manual_seed(seed))
    assert torch.equal(restarted.steps[0].observations[:B], step.observations)  # type: ignore[index]
    again.advance()


def host_config(runs: Path, *habitats: HabitatConfig, **changes: Any) -> DiscoverConfig:
    return small_config(runs, groups=(GroupConfig(habitats, TINY_AGENT, (1e-2,)),), **({"window": 1} | changes))


@pytest.mark.parametrize(
    ("habitats", "agent"),
    [
        ((HabitatConfig("CartPole-v1", agents=2), HabitatConfig("chain", {"length": 4})), {}),
        ((HabitatConfig("CartPole-v1", agents=1), HabitatConfig("grid", {"size": 5})), {"core": "lstm", "core_size": 3}),
    ],
    ids=["without memory", "memory"],
)
def test_a_discovery_beside_tensors_is_stopped_and_resumed(tmp_path: Path, habitats: Any, agent: Any) -> None:
    group = GroupConfig(habitats, replace(TINY_AGENT, **agent), (1e-2,))
    config = small_config(tmp_path, groups=(group,), rollout_length=12, **(PAPER | ALL))
    folder = run(replace(config, meta_updates=2))
    first = last_state(folder)
    run(replace(config, meta_updates=4), resume=folder)
    state, lines = last_state(folder), metrics_of(folder)
    assert (first["counters"]["meta_updates"], state["counters"]["meta_updates"]) == (2, 4)
    assert not torch.equal(state["rule"]["meta_net.y_head.bias"], first["rule"]["meta_net.y_head.bias"])
    assert lines[-1]["return/CartPole-v1"] >= 8 and lines[-1]["nonfinite"] == 0  # no pole falls sooner


FAILING = HabitatConfig("own_habitats:Counting", {"fails_at": 40}, agents=1)


def test_a_failure_saves_the_state_and_says_what_happened(tmp_path: Path) -> None:
    """Steps 1 to 33 are of three meta-updates; the fourth is lost, with what it wrote over in the replay."""
    changes: dict[str, Any] = {"meta_updates": 9, "checkpoint_every": 0}
    replay = {"fresh_validation": True, "replay_capacity": 12, "replayed_share": 0.5}
    config = host_config(tmp_path, CATCH, FAILING, **changes, **replay)
    own_habitats.CLOSED.clear()
    message = (
        r"environment 'Counting' failed at step 40 in environment \d: RuntimeError: the cable is loose\..* The state is "
    )
    with pytest.raises(
        EnvironmentFailure, match=message + r"saved; continue with `disco-torch discover --resume .* --import"
    ):
        run(config)
    assert own_habitats.CLOSED.count("Counting") >= 4
    folder = tmp_path / "discovery-seed0"
    state = last_state(folder)
    assert state["counters"]["meta_updates"] == 3
    assert state["groups"][0]["agents"]["replay/1"].tolist() == [8, 8, 8] and state["groups"][0]["position"] == 0
    registered.IMPORTED.add("own_habitats")
    try:
        with pytest.raises(EnvironmentFailure, match="failed at step 40"):  # it fails again, later
            run(resume=folder)
    finally:
        registered.IMPORTED.discard("own_habitats")
    assert last_state(folder)["counters"]["meta_updates"] == 6


def test_a_failure_ends_all_processes_together(tmp_path: Path) -> None:
    """What they save is from before the meta-update in both of them, also where no environment has failed."""
    changes: dict[str, Any] = {"meta_updates": 9, "checkpoint_every": 0, "share_values": True}
    replay = {"fresh_validation": True, "replay_capacity": 12, "replayed_share": 0.5}
    config = host_config(tmp_path, CATCH, FAILING, name="split", **changes, **replay)
    assert end(start(begin, config, size=2, errors=tmp_path)) == [1, 1]
    for rank in range(2):
        assert "the cable is loose. Close it" in (tmp_path / f"{rank}.txt").read_text()
    state = last_state(tmp_path / "split")
    assert state["counters"]["meta_updates"] == 3
    assert state["groups"][0]["agents"]["replay/1"].tolist() == [8, 8, 8] and state["groups"][0]["position"] == 0
    assert state["groups"][0]["lives"][1] == [3, 3, 3]  # ages


def begin(config: DiscoverConfig) -> None:
    discover(config, view=False)


def test_an_environment_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, **_: Any) -> Any:
        raise OSError("no such device")

    monkeypatch.setattr(own_habitats.Counting, "reset", broken)
    with pytest.raises(EnvironmentFailure, match=r"environment 'Counting' failed at step 0 .*no such device"):
        run(host_config(tmp_path / "runs", CATCH, COUNTING))
    assert not (tmp_path / "runs").exists()


def test_a_file_imports_nothing(tmp_path: Path) -> None:
    config = host_config(tmp_path, COUNTING, meta_updates=1)
    assert modules_of(config) == ["own_habitats"]
    folder = run(config)
    with pytest.raises(
        ValueError, match=r"names 'own_habitats:Counting', of a module that is not imported; .* --import own_h"
    ):
        run(replace(config, meta_updates=2), resume=folder)
    assert len(list_checkpoints(folder / "checkpoints")) == 2


@pytest.mark.parametrize(
    ("habitat", "message"),
    [
        (HabitatConfig(own_habitats.Counting), r"`env` of a habitat must be a name, got type; .* register_env\(name, funct"),  # type: ignore[arg-type]
        (HabitatConfig("CartPole-v9"), r"got 'CartPole-v9'; did you mean"),
        (HabitatConfig("own_habitats:Nothing"), r"'own_habitats:Nothing'"),
        (HabitatConfig("Pendulum-v1"), r"got Box.*; continuous actions are not supported; wrap .*BinActions\(env, bins\)"),
        (
            HabitatConfig("own_habitats:Counting", {"speed": 2}),
            r"`env_args` .* 'own_habitats:Counting' can be made with, got {'spe",
        ),
        (
            HabitatConfig("CartPole-v1", wrappers=("own_habitats:Nothing",)),
            r"`wrappers` of a habitat must be .* 'own_habitat",
        ),
        (HabitatConfig("catch", wrappers=("own_habitats:Doubled",)), r"`wrappers` are for single Gymnasium environments"),
    ],
)
def test_what_cannot_be_made(habitat: HabitatConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_group(tiny_config(habitat))


def test_two_processes_find_the_rule_of_one_on_the_host(tmp_path: Path) -> None:
    habitats = (COUNTING, replace(CARTPOLE, agents=1), replace(CATCH, agents=1))
    config = host_config(tmp_path, *habitats, **(PAPER | ALL | {"window": 3}))
    alone = run(replace(config, name="alone"))
    assert end(start(begin, replace(config, name="split"), size=2)) == [0, 0]
    ours, theirs = (last_state(folder)["rule"] for folder in (tmp_path / "split", alone))
    assert_close(ours, theirs)
