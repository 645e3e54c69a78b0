"""Value functions that agents of several processes share, or unequal numbers of agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_discoveries import PAPER, TINY_AGENT, end, last_state, metrics_of, run, small_config, start
from small_groups import (
    CATCH,
    CHAIN,
    REPLAY,
    Watched,
    assert_close,
    assert_close_trees,
    make_group,
    meta_gradient_by_hand,
    params_of,
    pick,
    poison,
    random_rule,
    tiny_config,
)

from disco_torch import ValueFunctionConfig
from disco_torch.discovery import DiscoverySession
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.local_group import LocalGroup
from disco_torch.discovery.pooled_values import PooledValues
from disco_torch.discovery.recorded_meta_update import pooled_parts
from disco_torch.discovery.run import discover
from disco_torch.kernels import Speed
from disco_torch.runs import World
from disco_torch.types import tree_map

CHAINS = HabitatConfig("chain", {"length": 4}, agents=2)
CUTS = HabitatConfig("own_habitats:Counting", agents=2)
ALIGNED = {"value_function": ValueFunctionConfig(dense=(8,), aligned=True)}
VARIANTS: dict[str, tuple[tuple[HabitatConfig, ...], dict[str, Any]]] = {
    "the notebook's": ((CATCH, CHAINS), {}),
    "aligned": ((CATCH, CHAINS), ALIGNED),
    "cut episodes": ((CATCH, CUTS), REPLAY),
    "cut, aligned and all steps": ((CATCH, CUTS), ALIGNED | {"first_steps": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_sums_over_agents_are_the_update_of_one_batch(variant: str) -> None:
    """Where all agents are here and equally many for each function, both ways can be taken."""
    habitats, changes = VARIANTS[variant]
    batched, pooled = (Watched(make_group(tiny_config(*habitats, share_values=True, **changes))) for _ in range(2))
    assert batched.group.loop.pooled is None
    force_pooling(pooled.group)
    eta = params_of(random_rule())
    for _ in range(2):
        want, got = batched.group.advance(eta), pooled.group.advance(eta)
        assert want is not None and got is not None
        assert_close(got.grads, want.grads)
        assert_close_trees(pooled.group.state.values, batched.group.state.values)
        torch.testing.assert_close(got.logs, want.logs, rtol=1e-10, atol=1e-12)


def force_pooling(group: LocalGroup) -> None:
    """Learns from sums although the agents could be one batch."""
    is_masked = group.value_function.config.aligned or group.habitats.truncates or group.config.first_steps
    pooled = PooledValues(group.value_function, [2, 2], is_masked, World().sum)
    loop, parts = replace(group.loop, pooled=pooled), group.meta_update.parts
    parts.update_values, parts.meta_loss_and_grad = pooled_parts(loop, Speed())


def test_habitats_may_have_unequal_numbers_of_agents() -> None:
    """Two agents on Catch share one function, that of the chain's one agent is its own."""
    watched = Watched(make_group(tiny_config(CATCH, CHAIN, share_values=True)))
    group = watched.group
    gradient = group.advance(params_of(random_rule()))
    assert gradient is not None and watched.valid is not None and watched.values is not None
    last = watched.updates[-1]
    assert all(leaf.shape[0] == 2 for leaf in group.state.values.params.values())
    for function, agents in enumerate(([0, 1], [2])):
        batches = [pick(last.batch, agent) for agent in agents]
        logits = [
            group.agent.unroll(pick(last.before, agent).params, batch.observations)[0]["logits"]
            for agent, batch in zip(agents, batches, strict=True)
        ]
        joined = tree_map(lambda *xs: torch.cat(xs, dim=1), *batches)
        want, *_ = group.value_function.update(pick(last.values, function), joined, torch.cat(logits, dim=1))
        assert_close_trees(pick(group.state.values, function), want)
    assert_close(pick(gradient.grads, 2), meta_gradient_by_hand(watched, 2, watched.updates, value_of_chain(watched)))


def value_of_chain(watched: Watched) -> Any:
    group, valid = watched.group, pick(watched.valid, 2)
    logits = group.agent.unroll(pick(group.state.learners, 2).params, valid.observations)[0]["logits"]
    return group.value_function.estimate(pick(watched.values, 1), valid, logits)[0]


def test_traced_sums_are_the_plain_ones() -> None:
    config = tiny_config(CATCH, CHAIN, share_values=True, window=1, rollout_length=2, valid_length=2)
    eta, cpu = params_of(random_rule()), torch.device("cpu")
    plain, traced = (LocalGroup(config, 0, random_rule(), cpu, speed) for speed in (Speed(), Speed(trace=True)))
    want, got = plain.advance(eta), traced.advance(eta)
    assert want is not None and got is not None
    assert_close(got.grads, want.grads)
    assert_close_trees(traced.state.values, plain.state.values)


# Several processes.


def begin(config: DiscoverConfig) -> None:
    discover(config, view=False)


THREE = (CATCH, CHAIN)
GROUPS = (GroupConfig(THREE, TINY_AGENT, (1e-2, 1e-3)), GroupConfig((replace(CATCH, agents=1),), TINY_AGENT, (1e-2,)))
"""The second group has one agent: the first of two processes has none of it."""


@pytest.mark.parametrize("changes", [PAPER | ALIGNED, {"window": 1}], ids=["paper", "notebook"])
def test_two_processes_find_the_rule_of_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = small_config(tmp_path, groups=GROUPS, share_values=True, **changes)
    alone = run(replace(config, name="alone"))
    assert end(start(begin, replace(config, name="split"), size=2)) == [0, 0]
    ours, theirs = last_state(tmp_path / "split"), last_state(alone)
    assert_close(ours["rule"], theirs["rule"])
    for group, other in zip(ours["groups"], theirs["groups"], strict=True):
        assert group["shared_values"].keys() == other["shared_values"].keys() != set()
        torch.testing.assert_close(group["shared_values"], other["shared_values"], rtol=1e-10, atol=1e-12)
        assert group["lives"] == other["lives"]
    for line, other in zip(metrics_of(tmp_path / "split"), metrics_of(alone), strict=True):
        assert line == pytest.approx(other, rel=1e-9, abs=1e-11)


def test_a_split_discovery_with_shared_values_is_resumed_by_one_process(tmp_path: Path) -> None:
    config = small_config(tmp_path, groups=GROUPS, share_values=True, **PAPER)
    assert end(start(begin, replace(config, name="split", meta_updates=2), size=2)) == [0, 0]
    run(replace(config, meta_updates=4), resume=tmp_path / "split")
    alone = run(replace(config, name="alone"))
    assert_close(last_state(tmp_path / "split")["rule"], last_state(alone)["rule"])


def lose_an_agent(config: DiscoverConfig) -> None:
    """An agent of the second process is poisoned; its function must be the same new one in both processes."""
    with World.from_environment() as world:
        session = DiscoverySession(config, world)
        session.advance()
        if world.rank == world.size - 1:
            poison(session.groups[0], session.groups[0].num_agents - 1)
        session.advance()
        session.advance()
        assert session.not_finite() is None and session.read_metrics()["nonfinite"] == 4  # all that shared the function
        values = world.gather(session.groups[0].state.values.params)
        if values is not None:
            for other in values:
                assert_close_trees(other, values[0], 0.0)
            torch.save(session.rule_params, config.runs / f"{world.size}.pt")


def test_all_processes_renew_a_shared_function_that_is_not_finite(tmp_path: Path) -> None:
    habitat = HabitatConfig("catch", {"rows": 3, "columns": 3}, agents=4)
    config = small_config(tmp_path, groups=(GroupConfig((habitat,), TINY_AGENT, (1e-2,)),), share_values=True, window=1)
    assert end(start(lose_an_agent, config, size=2)) == [0, 0]
    with pytest.warns(UserWarning, match="is not finite"):
        lose_an_agent(config)
    assert_close(*(torch.load(tmp_path / f"{size}.pt") for size in (2, 1)))
