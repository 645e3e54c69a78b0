"""An agent in a file of its own, beside the configuration of its run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from small_runs import small_config

from disco_torch import InputConfig, load_run, train
from disco_torch.training.agent_export import export_agent
from disco_torch.training.folder import RunFolder
from disco_torch.training.trained import TrainedAgent


@pytest.fixture
def exported(tmp_path: Path) -> tuple[TrainedAgent, Path]:
    """The agent of a run, and a folder with it that has no checkpoints."""
    config = small_config(tmp_path, env="CartPole-v1", env_args={}, inputs=InputConfig("auto", "normalized"))
    run, folder = train(config, view=False).folder, tmp_path / "exported"
    folder.mkdir()
    export_agent(RunFolder.open(run).load_checkpoint()["session"], folder / "agent.safetensors", {"made_by": "a test"})
    shutil.copyfile(run / "config.json", folder / "config.json")
    return load_run(run, "cpu"), folder


def test_it_acts_as_in_its_run(exported: tuple[TrainedAgent, Path]) -> None:
    ours, folder = exported
    theirs = load_run(folder, "cpu")
    assert all(torch.equal(ours.params[name], theirs.params[name]) for name in ours.params)
    assert ours.evaluate(4).returns == theirs.evaluate(4).returns
    with pytest.raises(ValueError, match=r"`checkpoint` must be 'newest' .* which holds one agent, got 3"):
        load_run(folder, checkpoint=3)


def test_its_configuration_imports_nothing(
    exported: tuple[TrainedAgent, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somebodys_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _, folder = exported
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"env": "somebodys_module:CartPole-v1"}))
    run = load_run(folder, "cpu")
    with pytest.raises(ValueError, match="`env` must not name a module that is not imported, got 'somebodys_module:Cart"):
        run.make_env(1)
    assert "somebodys_module" not in sys.modules
    load_run(folder, "cpu", env="CartPole-v1").evaluate(2)
    # A module that the user has imported is no new one.
    (folder / "config.json").write_text(json.dumps(config | {"env": "gymnasium:CartPole-v1"}))
    load_run(folder, "cpu").evaluate(2)


def test_another_file_in_its_place(exported: tuple[TrainedAgent, Path]) -> None:
    _, folder = exported
    (folder / "agent.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"agent\.safetensors: neither an \.npz nor a \.safetensors file"):
        load_run(folder, "cpu")
