"""The configuration of a discovery: what it derives, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from small_groups import CATCH, CHAIN, tiny_config

from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.presets import PRESETS
from disco_torch.discovery.session import DiscoverySession
from disco_torch.optim import AdamConfig
from disco_torch.rules import DiscoUpdateRule
from disco_torch.weights import list_rules, load_rule
from disco_torch.weights.configuration import config_from_plain, config_to_plain
from disco_torch.weights.files import read_file

FRESH = {"fresh_validation": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": ()}, r"`groups` must name at least one group of agents, got none"),
        *[
            ({name: low - 1}, rf"`{name}` must be at least {low}, got {low - 1}\.")
            for name, low in {
                "meta_updates": 1,
                "window": 1,
                "stride": 0,
                "rollout_length": 2,
                "valid_length": 2,
                "num_envs": 1,
                "valid_envs": 0,
                "batch_size": 1,
                "replay_capacity": 0,
                "log_every": 1,
                "snapshot_every": 0,
                "checkpoint_every": 0,
                "keep_checkpoints": 1,
                "minutes": 0,
            }.items()
        ],
        ({"replayed_share": 1.5}, r"`replayed_share` must lie in \[0.0, 1.0\], got 1.5"),
        ({"window": 2, "stride": 3}, r"`stride` must be at most the window, 2, got 3"),
        ({"lifetimes": (5, 0)}, r"`lifetimes` must be at least 1 update each, got \[5, 0\]"),
        ({"valid_envs": 2}, r"`valid_envs` must be at least `num_envs`, 3, got 2"),
        ({"batch_size": 4}, r"`batch_size` must be `num_envs`, 3, without a replay, got 4"),
        ({"replay_capacity": 2, **FRESH}, r"`replay_capacity` must hold a rollout, 3 trajectories, got 2"),
        (
            {"replay_capacity": 20, "batch_size": 10, "replayed_share": 0.5, **FRESH},
            r"`replayed_share` must leave at most 3 new trajectories .* got 0.5, which leaves 5",
        ),
        ({"replay_capacity": 9}, r"`fresh_validation` is needed with a replay or a stride, got False"),
        ({"stride": 1}, r"`fresh_validation` is needed with a replay or a stride, got False"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(**changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"habitats": ()}, r"`habitats` must name at least one environment, each with at least 1 agent"),
        (
            {"habitats": (CATCH, HabitatConfig(agents=0))},
            r"`habitats` must name at least one environment, each with at leas",
        ),
        ({"learning_rates": ()}, r"`learning_rates` must be finite and greater than 0, got \[\]"),
        ({"learning_rates": (1e-3, 0.0)}, r"`learning_rates` must be finite and greater than 0, got \[0.001, 0.0\]"),
        ({"learning_rates": (float("nan"),)}, r"`learning_rates` must be finite and greater than 0, got \[nan\]"),
        ({"learning_rates": (float("inf"),)}, r"`learning_rates` must be finite and greater than 0, got \[inf\]"),
    ],
)
def test_groups_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupConfig(**settings)


def test_what_follows_from_it() -> None:
    config = tiny_config(groups=(GroupConfig((CATCH, CHAIN)), GroupConfig((CHAIN,))))
    assert config.num_agents == 4 and config.groups[0].num_agents == 3
    assert (config.num_parallel_envs, config.updates_per_meta_update, config.num_fresh) == (3, 2, 3)
    replay = tiny_config(valid_envs=8, stride=1, batch_size=10, replay_capacity=20, replayed_share=0.8, **FRESH)
    assert (replay.num_parallel_envs, replay.updates_per_meta_update, replay.num_fresh) == (8, 1, 2)
    assert tiny_config(stride=2).updates_per_meta_update == 2  # a stride of a whole window is no overlap


def test_the_rate_of_the_rule_falls_once() -> None:
    config = tiny_config(slow_after=3, optimizer=AdamConfig(learning_rate=4e-3))
    assert [config.learning_rate(n) for n in (0, 2, 3, 9)] == [4e-3, 4e-3, 1e-3, 1e-3]
    assert tiny_config(optimizer=AdamConfig(learning_rate=4e-3)).learning_rate(9) == 4e-3


def test_the_notebooks_preset_is_the_notebook() -> None:
    _, config = PRESETS["notebook"]
    default = DiscoverConfig()
    assert config.num_agents == 2 and config.groups[0].habitats[0].env_args == {"rows": 5, "columns": 5}
    assert (default.window, default.rollout_length, default.valid_length, default.num_envs) == (2, 16, 32, 32)
    assert default.optimizer.learning_rate == 5e-4 == default.groups[0].learning_rates[0]


def test_the_preset_for_a_cpu_is_small_and_starts_from_random_weights() -> None:
    _, config = PRESETS["cpu"]
    assert config.start == "" and config.rule.improvement == 0.0
    assert sum(param.numel() for param in DiscoUpdateRule(config.rule).parameters()) == 17_312
    assert config.first_steps and "bandit" in [habitat.env for habitat in config.groups[0].habitats]


@pytest.mark.parametrize("name", ["birch"])
def test_the_preset_of_an_embedded_rule_is_what_found_it(name: str) -> None:
    entry = next(entry for entry in list_rules() if entry.name == name)
    assert entry.locate is not None
    path = entry.locate()
    assert path is not None
    found_with = json.loads(read_file(path).metadata["provenance"])["config"]
    # Through the dataclass: settings that came later have their defaults.
    assert config_to_plain(PRESETS[name][1]) == config_to_plain(config_from_plain(DiscoverConfig, found_with))
    rule = load_rule(name)
    assert isinstance(rule, DiscoUpdateRule) and rule.config == PRESETS[name][1].rule


def test_the_papers_loop_begins_with_the_embedded_rule() -> None:
    config = PRESETS["paper-loop"][1]
    assert (config.start, config.rule) == ("birch", PRESETS["birch"][1].rule) and config.updates_per_meta_update == 10
    session = DiscoverySession(dataclasses.replace(config, device="cpu"))
    embedded = dict(load_rule("birch").named_parameters())
    assert all(torch.equal(param, embedded[name]) for name, param in session.rule.named_parameters())
