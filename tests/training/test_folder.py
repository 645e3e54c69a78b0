"""The folder of a run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import metrics_of, small_config

from disco_torch.rules import DiscoConfig, DiscoUpdateRule, MetaNetConfig, MetaRNNConfig
from disco_torch.training import train
from disco_torch.training.folder import RunFolder
from disco_torch.weights import save_rule


@pytest.fixture
def disco_file(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """A rule's file of its own, of either format; an .npz must be of Disco103's shapes."""

    def make(suffix: str) -> Path:
        path = tmp_path / f"given{suffix}"
        if suffix == ".npz":
            shutil.copyfile(request.getfixturevalue("disco103_path"), path)
        else:
            net = MetaNetConfig(prediction_size=6, hidden_size=8, meta_rnn=MetaRNNConfig(hidden_size=5))
            save_rule(path, DiscoUpdateRule(DiscoConfig(net, num_bins=11, max_abs_value=5.0)))
        return path

    return make


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


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_run_keeps_a_copy_of_its_rule(disco_file: Callable[[str], Path], tmp_path: Path, suffix: str) -> None:
    """It is resumed with that, whatever has become of the file that it was given."""
    source = disco_file(suffix)
    config = small_config(tmp_path, rule=str(source), steps=72)
    whole = train(dataclasses.replace(config, steps=120, name="whole"), view=False)
    first = train(dataclasses.replace(config, name="first"), view=False)
    assert (first.folder / f"rule{suffix}").read_bytes() == source.read_bytes()
    source.unlink()
    train(resume=first.folder, steps=120, view=False)
    assert metrics_of(first.folder) == metrics_of(whole.folder)
    (first.folder / f"rule{suffix}").unlink()
    with pytest.raises(ValueError, match="`name_or_path` must be one of"):
        train(resume=first.folder, steps=132, view=False)


def test_metrics_before_there_are_any(tmp_path: Path) -> None:
    assert RunFolder.create(small_config(tmp_path)).read_metrics() == []
