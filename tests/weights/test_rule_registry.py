"""Rules by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from disco_torch.rules import PPO, ActorCritic, DiscoConfig, DiscoUpdateRule, PolicyGradient
from disco_torch.weights import RuleEntry, list_rules, load_rule, load_rule_file, registry, save_rule
from disco_torch.weights.files import read_file


def test_the_names() -> None:
    assert [entry.name for entry in list_rules()] == [
        *("birch", "disco103", "actor-critic", "ppo", "ppo-replay", "doubly-robust", "policy-gradient")
    ]
    assert type(load_rule("ppo")) is type(load_rule("ppo-replay")) is PPO
    assert type(load_rule("actor-critic")) is ActorCritic
    assert type(load_rule("policy-gradient")) is PolicyGradient


def test_disco103_by_name(disco103_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    rule = load_rule("disco103", dtype=torch.float64)
    assert isinstance(rule, DiscoUpdateRule) and rule.config == DiscoConfig()
    entry = next(entry for entry in list_rules() if entry.name == "disco103")
    assert sum(param.numel() for param in rule.parameters()) == entry.num_parameters == 754_778
    same = dict(load_rule(disco103_path).named_parameters())
    for name, param in rule.named_parameters():
        assert param.dtype == torch.float64 and torch.equal(param, same[name].double())


def test_the_name_stands_for_one_configuration(
    tiny_rule: DiscoUpdateRule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_rule(tmp_path / "other.safetensors", tiny_rule)
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(tmp_path / "other.safetensors"))
    with pytest.raises(ValueError, match=r"other\.safetensors: holds a rule of another configuration: .*prediction_size"):
        load_rule("disco103")


def test_files(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    save_rule(tmp_path / "rule.safetensors", tiny_rule)
    save_rule(tmp_path / "rule.npz", tiny_rule)
    (tmp_path / "no_ending").write_bytes((tmp_path / "rule.safetensors").read_bytes())
    wanted = dict(tiny_rule.named_parameters())
    for rule in (
        load_rule(tmp_path / "rule.safetensors"),
        load_rule(str(tmp_path / "rule.npz"), config=tiny_rule.config),
        load_rule(tmp_path / "no_ending"),
    ):
        assert all(torch.equal(param, wanted[name]) for name, param in rule.named_parameters())


def test_unknown_names_and_needless_configurations() -> None:
    names = r"\['actor-critic', 'birch', 'disco103', 'doubly-robust', 'policy-gradient', 'ppo', 'ppo-replay'\]"
    message = rf"must be one of {names} or .* file, got 'disco104', which is neither"
    with pytest.raises(ValueError, match=message):
        load_rule("disco104")
    with pytest.raises(ValueError, match="`config` is for files, got one with the name 'disco103'"):
        load_rule("disco103", config=DiscoConfig())


@pytest.mark.parametrize("name", ["birch"])
def test_an_embedded_rule_is_small_and_says_where_it_comes_from(name: str) -> None:
    entry = next(entry for entry in list_rules() if entry.name == name)
    assert entry.locate is not None
    path = entry.locate()
    assert path is not None and path.stat().st_size <= 2_000_000
    rule = load_rule(name)
    assert isinstance(rule, DiscoUpdateRule)
    assert sum(param.numel() for param in rule.parameters()) == entry.num_parameters
    provenance = json.loads(read_file(path).metadata["provenance"])
    assert provenance["started_from"] == "random weights" and provenance["meta_updates"] > 0
    assert provenance["config"]["groups"] and "seeds" in provenance


def test_a_rule_that_ships_is_one_more_entry(
    tiny_rule: DiscoUpdateRule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shipped.safetensors"
    save_rule(path, tiny_rule)
    entry = RuleEntry("shipped", "discovered", "A test.", "here", 1, lambda: load_rule_file(path), lambda: path)
    monkeypatch.setitem(registry.REGISTRY, "shipped", entry)
    rule = load_rule("shipped")
    assert isinstance(rule, DiscoUpdateRule) and rule.config.net.hidden_size == 20
    assert list_rules()[-1] is entry
