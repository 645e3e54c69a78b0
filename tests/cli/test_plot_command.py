"""`disco-torch plot`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disco_torch import TrainConfig
from disco_torch.cli import main, plot
from disco_torch.training.folder import RunFolder


def make_run(runs: Path, ends: int = 5, **settings: Any) -> Path:
    """The folder of a run that was never played, with returns that rise from step to step."""
    folder = RunFolder.create(TrainConfig(runs=runs, rule=settings.pop("rule", "actor-critic"), **settings))
    lines = [{"steps": 0, "total_loss": 1.0}] + [{"steps": 10 * i, "return": i / 10} for i in range(1, ends)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder.path


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The groups that the last picture was drawn of."""
    groups: dict[str, list[Any]] = {}
    monkeypatch.setattr(plot, "plot_curves", lambda given, path: groups.update(given))
    return groups


def test_runs_in_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make_run(tmp_path, seed=1), make_run(tmp_path, ends=9, seed=2)
    out = tmp_path / "pictures" / "x.png"
    assert main(["plot", str(first), str(second), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "2 runs in" in capsys.readouterr().out.replace("\n", " ")
    assert main(["plot", str(first), "--out", str(out)]) == 0
    assert "1 run in" in capsys.readouterr().out.replace("\n", " ")


def test_runs_that_differ_in_the_seed_are_one_group(tmp_path: Path, drawn: dict[str, list[Any]]) -> None:
    runs = [make_run(tmp_path, seed=seed, log_every=seed + 1) for seed in range(3)]
    runs += [make_run(tmp_path, rule="policy-gradient"), make_run(tmp_path, rule="somewhere/mine.safetensors")]
    assert main(["plot", *map(str, runs)]) == 0
    assert {label: len(curves) for label, curves in drawn.items()} == {
        "catch, actor-critic": 3,
        "catch, policy-gradient": 1,
        "catch, mine": 1,
    }
    assert drawn["catch, actor-critic"][0] == ([10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4])


def test_runs_that_differ_in_more_are_told_apart(tmp_path: Path, drawn: dict[str, list[Any]]) -> None:
    runs = [make_run(tmp_path, batch_size=size, seed=seed) for size in (32, 64) for seed in (0, 1)]
    assert main(["plot", *map(str, runs)]) == 0
    assert {label: len(curves) for label, curves in drawn.items()} == {
        "catch, actor-critic, batch_size 32": 2,
        "catch, actor-critic, batch_size 64": 2,
    }


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.png"
    assert main(["plot", str(tmp_path / "nowhere"), "--out", str(out)]) == 2
    assert "`run` must be the folder of a run" in capsys.readouterr().err
    assert main(["plot", "--out", str(out)]) == 2
    assert "`runs` must name at least one run, got none" in capsys.readouterr().err
    assert not out.exists()
