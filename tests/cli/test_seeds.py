"""`disco-torch train --seeds`: several runs side by side, one summary; one that fails, and all that are stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disco_torch.analysis import mean_interval
from disco_torch.cli import main
from disco_torch.cli.seeds import SeedResult, parse_seeds, run_seeds, summarize
from disco_torch.cli.train import Train

SMALL = ["--rule", "actor-critic", "--device", "cpu", "--agent.dense", "8", "--env-args", "rows", "4", "columns", "3"]
SMALL += ["--rollout-length", "6", "--batch-size", "4", "--num-envs", "2", "--no-tensorboard"]


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-4", [0, 1, 2, 3, 4]), ("0,3,5", [0, 3, 5]), ("7", [7]), ("9, 1-2", [9, 1, 2]), ("3-3", [3])]
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["x", "4-1", "1,,2", "-1", "1-", "0-1000", "1.5", "1" * 30])
def test_what_is_not_a_list_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"`--seeds` must be numbers and ranges such as 0-4 or 0,3,5, at most 1000, got"):
        parse_seeds(text)


def test_a_seed_is_named_once() -> None:
    with pytest.raises(ValueError, match="`--seeds` must name each seed once"):
        parse_seeds("0-2,1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "0-x"], "`--seeds` must be numbers and ranges"),
        (["--seeds", "0-1", "--jobs", "-1"], "`--jobs` must be at least 0, got -1"),
    ],
)
def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["train", *SMALL, "--runs", str(tmp_path / "runs"), *options]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_no_seeds_in_each_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"`--seeds` must have one process, got 2; .* leave out torchrun"):
        run_seeds(Train(seeds="0-1"), [])


def test_a_run_is_not_resumed_with_several_seeds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`--seeds` starts new runs and cannot be given with `--resume`"):
        run_seeds(Train(seeds="0-1", resume=tmp_path), [])


def start(runs: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "disco_torch", "train", *SMALL, "--runs", str(runs), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        start_new_session=True,
    )


def test_runs_side_by_side_and_one_that_fails(tmp_path: Path) -> None:
    (tmp_path / "mine-seed1" / "taken").mkdir(parents=True)
    process = start(tmp_path, "--steps", "120", "--seeds", "0-2", "--name", "mine", "--jobs", "2")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "Traceback" not in output, output
    returns = []
    for seed in (0, 2):
        folder = tmp_path / f"mine-seed{seed}"
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["finished"] and json.loads((folder / "config.json").read_text())["seed"] == seed
        returns.append(summary["final_return"])
        assert f"seed {seed}: catch with actor-critic, seed {seed}, on cpu: {folder}" in output
    mean, low, high = mean_interval(returns)
    assert f"mean return over 2 seeds: {mean:.4g}, 95% interval {low:.4g} to {high:.4g}" in output
    assert re.search(r"^seed 1 failed: `name` must be new, got 'mine-seed1'", output, flags=re.M)
    assert output.startswith("3 seeds, 2 at a time")
    assert f"plot them with `disco-torch plot {tmp_path / 'mine-seed0'} {tmp_path / 'mine-seed2'}`" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_they_are_stopped_together(tmp_path: Path, number: signal.Signals) -> None:
    """By Ctrl-C, with a summary; and where the process that started them is killed they stop as well."""
    process = start(tmp_path, "--steps", "1000000000", "--checkpoint-every", "3", "--seeds", "0,4", "--jobs", "2")
    folders = [tmp_path / f"catch-actor-critic-seed{seed}" for seed in (0, 4)]
    deadline = time.monotonic() + 90
    while not all(len(list(folder.glob("checkpoints/*.pt"))) > 1 for folder in folders):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=90)
    while not all((folder / "summary.json").is_file() for folder in folders):  # written when a run has stopped
        assert time.monotonic() < deadline + 90
        time.sleep(0.05)
    assert all(json.loads((folder / "summary.json").read_text())["finished"] is False for folder in folders)
    if number == signal.SIGINT:
        assert process.returncode == 0 and "Traceback" not in output, output
        for folder, seed in zip(folders, (0, 4), strict=True):
            assert f"seed {seed} was stopped; resume with `disco-torch train --resume {folder}`" in output
        assert "mean return over" not in output  # of runs that are not complete it would say nothing


def test_the_summary_leaves_out_what_is_not_complete(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    results = [
        SeedResult(0, 0, "runs/a", 0.5),
        SeedResult(1, 0, "runs/b", 0.7, 0.9, stopped=True, stopped_because="reached the target"),
        SeedResult(2, 0, "runs/c", -9.0, stopped=True),
        SeedResult(3, 2, error="no such environment"),
        SeedResult(4, 0, stopped=True),
    ]
    summarize(results, Console(width=200))
    output = capsys.readouterr().out
    assert "mean return over 2 seeds: 0.6, 95% interval 0.5 to 0.7" in output
    assert "seed 2 was stopped; resume with `disco-torch train --resume runs/c`" in output
    assert "seed 3 failed: no such environment" in output and "seed 4 was stopped before" in output
    assert "disco-torch plot runs/a runs/b`" in output
    summarize(results[:1], Console(width=200))
    assert "mean return of the one complete run: 0.5" in capsys.readouterr().out
