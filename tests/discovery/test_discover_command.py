"""`disco-torch discover`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_discoveries import last_state, run, small_config

from disco_torch.cli import main
from disco_torch.cli.discover import DiscoverOptions
from disco_torch.cli.presets import take_preset
from disco_torch.discovery.config import HabitatConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.discovery.presets import PRESETS
from disco_torch.envs import registered
from disco_torch.runs.checkpoint import list_checkpoints
from disco_torch.training import PRESETS as TRAIN_PRESETS


@pytest.fixture(autouse=True)
def tiny_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PRESETS, "tiny", ("for tests", small_config(tmp_path, window=1)))


def test_a_preset_with_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seed", "1", "--meta-updates", "2", "--weights.target-kl", "0.5", "--optimizer.learning-rate", "0.1"]
    assert main(["discover", "--preset", "tiny", *options]) == 0
    folder = tmp_path / "discovery-seed1"
    config = DiscoveryFolder.open(folder).config
    assert (config.seed, config.meta_updates, config.window) == (1, 2, 1)
    assert (config.weights.target_kl, config.optimizer.learning_rate) == (0.5, 0.1)
    preset = PRESETS["tiny"][1]
    assert (config.groups, config.rule) == (preset.groups, preset.rule)
    output = capsys.readouterr().out.replace("\n", "")
    assert "discovery with 3 agents, seed 1, on cpu" in output and "mean return on catch" in output
    assert f"done; train an agent with `disco-torch train --rule {folder}/rules/rule-000002.safetensors`" in output
    train = [
        "--rule",
        f"{folder}/rules/rule-000002.safetensors",
        "--steps",
        "320",
        "--rollout-length",
        "5",
        "--device",
        "cpu",
    ]
    assert main(["train", *train, "--agent.dense", "4", "--no-tensorboard", "--runs", str(tmp_path)]) == 0


def test_environments_of_your_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrapped = "own_habitats:Counting --agents 1 --env-args limit 2 --wrappers own_habitats:Doubled"
    options = ["--envs", wrapped, "CartPole-v1", "catch --env-args rows 4 --agents 2", "--minutes", "1e-9"]
    assert main(["discover", "--preset", "tiny", *options]) == 0
    folder = tmp_path / "discovery-seed0"
    config = DiscoveryFolder.open(folder).config
    assert tuple(config.groups[0].habitats) == (
        HabitatConfig("own_habitats:Counting", {"limit": 2}, 1, ("own_habitats:Doubled",)),
        HabitatConfig("CartPole-v1", agents=4),
        HabitatConfig("catch", {"rows": 4}, agents=2),
    )
    assert config.groups[0].agent == PRESETS["tiny"][1].groups[0].agent and len(config.groups) == 1
    resume = ["discover", "--resume", str(folder), "--meta-updates", "5", "--minutes", "0"]
    output = capsys.readouterr().out.replace("\n", "")
    assert f"stopped; resume with `disco-torch discover --resume {folder} --import own_habitats`" in output
    assert main(resume) == 2
    assert "of a module that is not imported; if you trust it, resume with --import own_habitats" in capsys.readouterr().err
    assert main([*resume, "--envs", "catch"]) == 2
    assert "`--envs` must be left out when a discovery is resumed, which has its own; use" in capsys.readouterr().err
    try:
        assert main([*resume, "--import", "own_habitats"]) == 0
    finally:
        registered.IMPORTED.discard("own_habitats")


def test_resuming_takes_the_settings_of_the_discovery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--preset", "tiny", "--minutes", "1e-9"]) == 0
    folder = tmp_path / "discovery-seed0"
    assert f"stopped; resume with `disco-torch discover --resume {folder}`" in capsys.readouterr().out.replace("\n", "")
    assert main(["discover", f"--resume={folder}", "--minutes", "0", "--meta-updates", "5", "--speed", "plain"]) == 0
    assert last_state(folder)["counters"]["meta_updates"] == 5
    assert DiscoveryFolder.open(folder).config.meta_updates == 5
    assert main(["discover", "--resume", str(folder), "--seed", "9"]) == 2
    assert main(["discover", "--resume", str(folder), "--meta-updates", "3"]) == 2
    assert main(["train", "--resume", str(folder)]) == 2
    errors = capsys.readouterr().err
    assert "`--seed` must be the run's own when it is resumed, 0, got 9" in errors
    assert "`--meta-updates` can only lengthen a run that is resumed, beyond 5, got 3" in errors
    assert "`run` must be the folder of a training run" in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "cartpole"], "`--preset` must be one of ["),
        (["--meta-updates", "0"], "`meta_updates` must be at least 1, got 0"),
        (["--start", "disco-kritik"], "got 'disco-kritik', which is neither"),
        (["--envs", "CartPole-v9"], "got 'CartPole-v9'; did you mean"),
        (
            ["--envs", "Pendulum-v1"],
            "continuous actions are not supported; wrap the environment with disco_torch.Bin",
        ),
        (["--envs", ""], "`--envs` must begin with a name each, got ''"),
        (["--resume", "nowhere"], "`run` must be the folder of a run, with a config.json in it, got nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["discover", "--device", "cpu", "--runs", str(tmp_path / "runs"), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("disco-torch: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "runs").exists()


def test_each_command_has_its_own_presets() -> None:
    assert take_preset(["discover", "--preset", "notebook", "--seed", "1"]) == (
        PRESETS["notebook"][1],
        ["discover", "--seed", "1"],
    )
    assert take_preset(["--preset=tiny", "discover"]) == (PRESETS["tiny"][1], ["discover"])
    assert take_preset(["discover"])[0] == next(iter(PRESETS.values()))[1]
    assert take_preset(["train", "--name", "discover"])[0] == TRAIN_PRESETS["default"][1]
    with pytest.raises(ValueError, match="got 'notebook'"):
        take_preset(["train", "--preset", "notebook"])


def test_options_are_the_settings() -> None:
    for _, config in PRESETS.values():
        assert DiscoverOptions.of(config).config == config


def test_help_shows_the_presets_and_hides_the_population(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["discover", "--help"])
    output = capsys.readouterr().out
    assert ending.value.code == 0 and "notebook" in output and "--meta-updates" in output and "torchrun" in output
    assert "--groups" not in output and "--rule." not in output


def test_processes_of_torchrun_stop_together(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, meta_updates=1, window=1, checkpoint_every=3))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "disco_torch"]
    process = subprocess.Popen(
        [*command, "discover", "--resume", str(folder), "--meta-updates", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 90
    while not (paths := list_checkpoints(folder / "checkpoints")) or paths[-1].name < "checkpoint-000000003.pt":
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    # The launcher says in its own words that it was told to stop; the discovery has ended well and once.
    assert out.count("stopped; resume with `disco-torch discover --resume") == 1 and "in 2 processes" in out
    meta_updates = last_state(folder)["counters"]["meta_updates"]
    summary = json.loads((folder / "summary.json").read_text())
    assert meta_updates >= 3 and (summary["meta_updates"], summary["finished"]) == (meta_updates, False)
