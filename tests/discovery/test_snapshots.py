"""Snapshots: a rule and its optimiser's state, taken up by a new discovery."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from small_discoveries import TINY_RULE, assert_same, run, small_config
from small_groups import tiny_config

from disco_torch import DiscoUpdateRule, load_rule
from disco_torch.discovery import DiscoverySession
from disco_torch.discovery.snapshots import load_start, moments_path
from disco_torch.runs.checkpoint import load_checkpoint
from disco_torch.types import tree_map

QUICK = {"rollout_length": 3, "valid_length": 3, "window": 1}


def snapshot(path: Path, **changes: Any) -> DiscoverySession:
    """A session after two meta-updates, and its snapshot."""
    session = DiscoverySession(tiny_config(**QUICK, **changes))
    for _ in range(2):
        session.advance()
    session.save_snapshot(path, {"seeds": [0]})
    return session


@pytest.mark.parametrize("before", [False, True], ids=["from one", "from one each"])
@pytest.mark.parametrize("after", [False, True], ids=["to one", "to one each"])
def test_a_new_discovery_takes_up_the_rule_and_its_moments(tmp_path: Path, before: bool, after: bool) -> None:
    path = tmp_path / "rule.safetensors"
    session = snapshot(path, adam_per_agent=before)
    other = DiscoverySession(tiny_config(**QUICK, adam_per_agent=after, start=str(path), seed=5))
    for name, param in session.rule_params.items():
        assert torch.equal(other.rule_params[name], param.float().double()), "a rule file is in float32"
    for state in other.opt_states:
        for agent in range(3) if after else [None]:
            assert_same(state if agent is None else tree_map(lambda x, i=agent: x[i], state), session.moments())
    assert int(session.moments().count) == 2 and any(bool((x != 0).any()) for x in session.moments().mu.values())
    first = other.rule_params
    other.advance()
    assert any(not torch.equal(first[name], param) for name, param in other.rule_params.items())
    assert int(other.moments().count) == 3 and other.counters.meta_updates == 1


def test_a_snapshot_of_another_precision(tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    snapshot(path)
    session = DiscoverySession(tiny_config(**QUICK, dtype="float32", start=str(path)))
    session.advance()
    assert {param.dtype for param in session.rule_params.values()} == {torch.float32}
    assert {x.dtype for x in session.moments().mu.values()} == {torch.float32}


def test_a_rule_file_alone_starts_with_an_optimiser_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    session = snapshot(path)
    assert moments_path(path) == tmp_path / "rule.moments.pt"
    moments_path(path).unlink()
    rule, moments = load_start(tiny_config(start=str(path)))
    assert moments is None
    for name, param in rule.named_parameters():
        assert torch.equal(param, session.rule_params[name].float())
    loaded = load_rule(path)
    assert isinstance(loaded, DiscoUpdateRule) and loaded.config == TINY_RULE


def test_random_weights_are_the_seeds_and_leave_other_randomness_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    (first, none), (again, _), (other, _) = (load_start(tiny_config(seed=seed)) for seed in (3, 3, 4))
    assert none is None and torch.equal(torch.rand(3), expected)
    weights = [dict(rule.named_parameters())["meta_net.pi_head.weight"] for rule in (first, again, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_discovery_goes_on_without_the_file_that_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    snapshot(path)
    quick = {"log_every": 1, **QUICK}
    whole, folder = (run(small_config(tmp_path, meta_updates=n, start=str(path), **quick)) for n in (2, 1))
    path.unlink()
    run(small_config(tmp_path, meta_updates=2), resume=folder)
    assert_same(*(load_checkpoint(each / "checkpoints")["session"] for each in (whole, folder)))


def test_a_start_that_is_no_discovered_rule() -> None:
    with pytest.raises(ValueError, match=r"`start` must be a discovered rule, got 'actor-critic', which has no weights\."):
        load_start(tiny_config(start="actor-critic"))


def test_a_start_of_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    snapshot(path)
    larger = dataclasses.replace(TINY_RULE, num_bins=13)
    with pytest.raises(ValueError, match=r"`start` must be a rule of the configured sizes, got .* of others; set `rule` to"):
        load_start(tiny_config(start=str(path), rule=larger))
