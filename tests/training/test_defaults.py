"""Settings by rule: what a run uses where a user names a rule, and that everything given explicitly stands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from disco_torch import PRESETS, TrainConfig
from disco_torch.cli import main, parse
from disco_torch.cli.train import Train
from disco_torch.rules import PPO
from disco_torch.training import default_config, train
from disco_torch.training.defaults import DEFAULTS, DISCOVERED, chosen_settings
from disco_torch.weights import list_rules

SMALL: dict[str, Any] = {"steps": 72, "num_envs": 2, "rollout_length": 6, "minibatches": 3, "device": "cpu"}
CATCH: dict[str, Any] = {"env": "catch", "env_args": {"rows": 4, "columns": 3}}


def parsed(*args: str) -> TrainConfig:
    command = parse(["train", *args])
    assert isinstance(command, Train)
    return command.config


def test_rules_without_settings_of_their_own_have_the_plain_defaults() -> None:
    assert default_config("mine") == TrainConfig(rule="mine") and chosen_settings(TrainConfig()) == ""
    assert set(DEFAULTS) <= {entry.name for entry in list_rules()}


@pytest.mark.parametrize("name", ["birch", "my/rule.safetensors", "my/rule.npz", "hf:lab/rule", "hf:lab/rule@v1"])
def test_discovered_rules_have_many_small_steps(name: str) -> None:
    config = default_config(name)
    assert config == TrainConfig(rule=name, **DISCOVERED)
    assert (config.optimizer.learning_rate, config.schedule) == (1.5e-3, "cosine")
    ours = dataclasses.replace(config, optimizer=default_config().optimizer, schedule="constant", rule="ppo-replay")
    assert ours == default_config()


def test_the_default_is_ppo_on_the_last_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = default_config()
    assert config == default_config("ppo-replay") == parsed() == PRESETS["default"][1]
    assert dataclasses.replace(parsed("--rule", "auto"), rule=config.rule) == config
    sized = config.with_sizes()
    assert sized.num_fresh == sized.batch_size == sized.replay_capacity == 8 * sized.num_envs
    assert (config.rollout_length - 1) * sized.batch_size / config.minibatches == 64
    result = train(runs=tmp_path, tensorboard=False, **CATCH, **SMALL | {"steps": 216})
    assert result.folder.name == "catch-ppo-replay-seed0"
    printed = capsys.readouterr().out
    assert "settings of ppo-replay: " in printed and "agent.activation tanh" in printed


def test_a_rule_that_is_an_object_has_the_plain_defaults(tmp_path: Path) -> None:
    result = train(rule=PPO(), runs=tmp_path, tensorboard=False, **CATCH, **SMALL | {"steps": 216})
    stored = json.loads((result.folder / "config.json").read_text())
    assert (stored["epochs"], stored["batch_size"], stored["optimizer"]["learning_rate"]) == (1, 32, 5e-4)


def test_ppo_learns_from_the_newest_rollout_in_minibatches_of_64() -> None:
    config = default_config("ppo")
    assert (config.rule, config.epochs, config.minibatches, config.max_gradient_norm) == ("ppo", 10, 32, 0.5)
    assert (config.optimizer.learning_rate, config.optimizer.eps) == (3e-4, 1e-5)
    assert (config.rollout_length - 1) * config.num_envs / config.minibatches == 64
    for num_envs in (4, 40):
        sized = TrainConfig(**{**vars(config), "num_envs": num_envs}).with_sizes()
        assert sized.num_fresh == sized.batch_size == sized.replay_capacity == num_envs


def test_the_command_line_begins_with_the_settings_of_the_rule() -> None:
    assert parsed("--rule", "ppo") == parsed("--rule=ppo") == default_config("ppo")
    changed = parsed("--epochs", "3", "--rule", "ppo", "--optimizer.learning-rate", "0.5")
    assert (changed.epochs, changed.minibatches) == (3, 32)
    assert (changed.optimizer.learning_rate, changed.optimizer.eps) == (0.5, 1e-5)


def test_a_preset_takes_the_place_of_the_settings_of_the_rule() -> None:
    assert parsed("--preset", "default", "--rule", "ppo") == dataclasses.replace(default_config(), rule="ppo")
    assert parsed("--preset", "cartpole") == PRESETS["cartpole"][1]


def test_train_has_the_settings_of_the_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(rule="ppo", runs=tmp_path, tensorboard=False, view=True, **CATCH, **SMALL)
    stored = json.loads((result.folder / "config.json").read_text())
    assert (stored["epochs"], stored["minibatches"], stored["num_envs"]) == (10, 3, 2)
    assert (stored["batch_size"], stored["replay_capacity"], stored["replayed_share"]) == (2, 2, 0.0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("settings of")]
    assert lines == [chosen_settings(TrainConfig(**{**vars(default_config("ppo")), **SMALL}))]
    assert "epochs 10, max_gradient_norm 0.5" in lines[0] and "optimizer.learning_rate 0.0003" in lines[0]
    assert "minibatches" not in lines[0] and "num_envs" not in lines[0]  # the caller's


def test_a_configuration_that_is_given_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = SMALL | {"minibatches": 1, "batch_size": 2}
    result = train(TrainConfig(**CATCH, **fields), rule="ppo", runs=tmp_path, tensorboard=False)
    stored = json.loads((result.folder / "config.json").read_text())
    assert (stored["epochs"], stored["replay_capacity"], stored["optimizer"]["eps"]) == (1, 256, 1e-8)
    assert "settings of" not in capsys.readouterr().out


def test_a_resumed_run_keeps_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rule", "ppo", "--env-args", "rows", "4", "columns", "3", "--no-tensorboard", "--runs", str(tmp_path)]
    options += [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    assert main(["train", *options, "--epochs", "2"]) == 0
    assert "settings of ppo: " in capsys.readouterr().out
    folder = tmp_path / "catch-ppo-seed0"
    assert main(["train", "--resume", str(folder), "--steps", "96"]) == 0
    stored = json.loads((folder / "config.json").read_text())
    assert (stored["epochs"], stored["steps"]) == (2, 96) and "settings of" not in capsys.readouterr().out
