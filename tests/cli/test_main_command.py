"""The command line as a whole: help, mistakes in one line, and exit statuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from disco_torch import PRESETS, __version__
from disco_torch.cli import main


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What `--help` prints, on one line."""
    with pytest.raises(SystemExit) as ending:
        main([*args, "--help"])
    assert ending.value.code == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    assert all(command in text for command in ("train", "evaluate", "plot", "rules", "verify"))


def test_help_of_train_names_options_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train")
    options = (
        "--preset NAME ",
        "--seeds ",
        "--jobs ",
        "--eval-every ",
        "--env ",
        "--rule ",
        "--seed ",
        "--steps ",
        "--resume ",
        "--agent.dense ",
        "--optimizer.learning-rate ",
    )
    assert all(option in text for option in options)
    assert all(name in text for name in PRESETS)
    assert "Environment steps to take, over all parallel environments." in text


def test_help_of_train_shows_the_settings_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    steps = PRESETS["catch-actor-critic"][1].steps
    assert str(steps) in shown(capsys, "train", "--preset", "catch-actor-critic").replace("_", "")
    assert "464000" not in shown(capsys, "train").replace("_", "")


@pytest.mark.parametrize(("command", "option"), [("evaluate", "--episodes"), ("plot", "--out"), ("verify", "--weights")])
def test_help_of_the_others(capsys: pytest.CaptureFixture[str], command: str, option: str) -> None:
    assert option in shown(capsys, command)


def test_help_of_discover_names_the_presets_among_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "discover")
    assert "--preset NAME Named settings to start from" in text and "notebook-lives" in text


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"disco-torch {__version__}\n"
    assert "--version" in shown(capsys)


@pytest.mark.parametrize("args", [["tain"], ["train", "--no-such-option", "3"], ["train", "--steps", "many"], []])
def test_what_cannot_be_parsed_ends_with_2(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(args)
    assert ending.value.code == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "disco_torch", "train", "--preset", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("disco-torch: `--preset` must be one of ['atari-paper'")
