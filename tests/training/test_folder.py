"""The folder of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from small_runs import small_config

from disco_torch.training.folder import RunFolder


def test_names_are_made_of_environment_rule_and_seed_and_numbered(tmp_path: Path) -> None:
    config = small_config(tmp_path, seed=3)
    names = [RunFolder.create(config).path.name for _ in range(3)]
    assert names == ["catch-actor-critic-seed3", "catch-actor-critic-seed3-2", "catch-actor-critic-seed3-3"]
    other = RunFolder.create(small_config(tmp_path, env="disco_torch/Catch-v0", rule="some/where/mine.safetensors"))
    assert other.path == tmp_path / "disco_torch-Catch-v0-mine-seed0"
    module = RunFolder.create(small_config(tmp_path, env="my.module:Own-v1"))
    assert module.path == tmp_path / "my.module-Own-v1-actor-critic-seed0"  # no system has trouble with it


def test_a_given_name_must_be_free(tmp_path: Path) -> None:
    folder = RunFolder.create(small_config(tmp_path, name="mine"))
    assert folder.path == tmp_path / "mine"
    with pytest.raises(
        ValueError, match=r"`name` must be new, got 'mine', whose folder .*mine exists; resume it with --resume"
    ):
        RunFolder.create(small_config(tmp_path, name="mine"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_whole_configuration_is_written(tmp_path: Path) -> None:
    config = small_config(tmp_path / "deep" / "er")
    folder = RunFolder.create(config)
    assert folder.config == dataclasses.replace(config, name="catch-actor-critic-seed0")
    assert RunFolder.open(folder.path) == folder
    written = json.loads((folder.path / "config.json").read_text())
    assert set(written) == {field.name for field in dataclasses.fields(config)}
    assert written["agent"]["dense"] == [8] and written["env_args"] == {"rows": 4, "columns": 3}


def test_more_steps_are_written_fewer_are_not(tmp_path: Path) -> None:
    folder = RunFolder.create(small_config(tmp_path))
    assert RunFolder.open(folder.path, extend_to=60).config.steps == 120
    assert RunFolder.open(folder.path, extend_to=240).config.steps == 240
    assert RunFolder.open(folder.path).config == dataclasses.replace(folder.config, steps=240)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`run` must be the folder of a run, with a config.json in it, got .*nowhere"):
        RunFolder.open(tmp_path / "nowhere")


def test_metrics_before_there_are_any(tmp_path: Path) -> None:
    assert RunFolder.create(small_config(tmp_path)).read_metrics() == []
