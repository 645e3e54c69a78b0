"""`disco-torch train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disco_torch import PRESETS
from disco_torch.cli import main
from disco_torch.cli.presets import take_preset
from disco_torch.runs.checkpoint import load_checkpoint

SMALL = ["--device", "cpu", "--agent.dense", "8", "--rollout-length", "7", "--batch-size", "4", "--log-every", "2"]


def run(runs: Path, *options: str) -> int:
    return main(["train", *options, *SMALL, "--no-tensorboard", "--runs", str(runs)])


def steps_of(folder: Path) -> int:
    return load_checkpoint(folder / "checkpoints")["session"]["counters"]["steps"]


def test_a_preset_with_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--preset", "catch-actor-critic", "--steps", "672", "--env-args", "rows", "4", "columns", "3") == 0
    folder = tmp_path / "catch-actor-critic-seed0"
    config = json.loads((folder / "config.json").read_text())
    assert (config["steps"], config["num_envs"], config["agent"]["dense"]) == (672, 16, [8])
    assert config["hyper_params"] == {"entropy_cost": 0.01} and config["env_args"] == {"rows": 4, "columns": 3}
    assert steps_of(folder) == 672  # 6 rollouts of 16 x 7
    output = capsys.readouterr().out.replace("\n", "")
    assert "mean return of the last episodes: " in output
    assert f"done; evaluate it with `disco-torch evaluate {folder}`" in output


def test_a_run_in_which_no_episode_ends_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--rule", "actor-critic", "--num-envs", "2", "--steps", "28", "--env-args", "rows", "30") == 0
    assert "no episode has ended in training" in capsys.readouterr().out


def test_resuming_takes_the_settings_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--rule", "actor-critic", "--num-envs", "2", "--steps", "28") == 0
    folder = tmp_path / "catch-actor-critic-seed0"
    assert steps_of(folder) == 28
    # A finished run is not lengthened by the default number of steps, which nobody asked for.
    assert main(["train", "--resume", str(folder)]) == 0
    assert steps_of(folder) == 28
    assert main(["train", "--resume", str(folder), "--steps", "56"]) == 0
    assert steps_of(folder) == 56 and json.loads((folder / "config.json").read_text())["steps"] == 56
    assert main(["train", f"--resume={folder}", "--steps=70", "--seed", "9"]) == 2
    assert main(["train", f"--resume={folder}", "--steps=20"]) == 2
    errors = capsys.readouterr().err
    assert "`--seed` must be the run's own when it is resumed, 0, got 9" in errors
    assert "`--steps` can only lengthen a run that is resumed, beyond 56, got 20" in errors
    assert main(["train", f"--resume={folder}", "--steps=70", "--device", "cpu"]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert steps_of(folder) == 70 and (config["seed"], config["num_envs"]) == (0, 2)
    lines = [json.loads(line)["steps"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == [28, 56, 70] and [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert "done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--preset", "katch"],
            f"`--preset` must be one of {sorted(PRESETS)}, got 'katch'",
        ),
        (
            ["--env", "katch"],
            "`name` must be 'catch', a family of levels or an environment that Gymnasium knows, got 'katch'",
        ),
        (["--env", "CartPole-v99"], "got 'CartPole-v99'"),
        (["--env", "no_such_module:Name-v0"], "No module named 'no_such_module'"),
        (["--rule", "actor-kritik"], "got 'actor-kritik', which is neither"),
        (["--rule", "actor-critic", "--hyper-params", "value_kost", "1"], "`hyper_params` has no 'value_kost'"),
        (["--steps", "0"], "`steps` must be at least 1, got 0"),
        (
            ["--rule", "actor-critic", "--num-envs", "3", "--steps", "41"],
            "`steps` must be at least 42 for a first update, 2 rollouts of 21 steps that fill a batch of 4 trajectories",
        ),
        (["--resume", "nowhere"], "`run` must be the folder of a run, with a config.json in it, got nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(tmp_path / "runs", *options) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("disco-torch: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "runs").exists()


def test_a_name_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rule", "actor-critic", "--steps", "28", "--num-envs", "2", "--name", "mine"]
    assert run(tmp_path, *options) == 0
    before = (tmp_path / "mine" / "metrics.jsonl").read_bytes()
    assert run(tmp_path, *options) == 2
    assert "`name` must be new, got 'mine'" in capsys.readouterr().err
    assert (tmp_path / "mine" / "metrics.jsonl").read_bytes() == before


def test_presets_are_taken_from_anywhere() -> None:
    assert take_preset(["train"]) == (PRESETS["default"][1], ["train"])
    for args in (["--preset", "catch", "train", "--seed", "1"], ["train", "--preset=catch", "--seed", "1"]):
        assert take_preset(args) == (PRESETS["catch"][1], ["train", "--seed", "1"])
    with pytest.raises(ValueError, match="got nothing"):
        take_preset(["train", "--preset"])
