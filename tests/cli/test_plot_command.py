"""`disco-torch plot`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disco_torch import AgentConfig, TrainConfig
from disco_torch.cli import main, plot
from disco_torch.training.folder import RunFolder


def make_run(runs: Path, ends: int = 5, **settings: Any) -> Path:
    """The folder of a run that was never played, with returns that rise from step to step."""
    folder = RunFolder.create(TrainConfig(runs=runs, rule=settings.pop("rule", "actor-critic"), **settings))
    lines = [{"steps": 0, "total_loss": 1.0}] + [{"steps": 10 * i, "return": i / 10} for i in range(1, ends)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder.path


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, list[Any]]]:
    """The panels that the last picture was drawn of."""
    panels: dict[str, dict[str, list[Any]]] = {}
    monkeypatch.setattr(plot, "plot_curve_panels", lambda given, path: panels.update(given))
    return panels


def counts(panel: dict[str, list[Any]]) -> dict[str, int]:
    return {label: len(curves) for label, curves in panel.items()}


def test_runs_in_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make_run(tmp_path, seed=1), make_run(tmp_path, ends=9, seed=2)
    out = tmp_path / "pictures" / "x.png"
    assert main(["plot", str(first), str(second), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "2 runs in" in capsys.readouterr().out.replace("\n", " ")
    assert main(["plot", str(first), "--out", str(out)]) == 0
    assert "1 run in" in capsys.readouterr().out.replace("\n", " ")


def test_runs_that_differ_in_the_seed_are_one_curve(tmp_path: Path, drawn: dict[str, dict[str, list[Any]]]) -> None:
    runs = [make_run(tmp_path, seed=seed, log_every=seed + 1, speed="plain") for seed in range(3)]
    runs += [make_run(tmp_path, rule="policy-gradient"), make_run(tmp_path, rule="somewhere/mine.safetensors")]
    assert main(["plot", *map(str, runs)]) == 0
    assert list(drawn) == ["catch"] and counts(drawn["catch"]) == {"actor-critic": 3, "policy-gradient": 1, "mine": 1}
    assert drawn["catch"]["actor-critic"][0] == ([10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4])


def test_runs_that_differ_in_more_are_several_curves(tmp_path: Path, drawn: dict[str, dict[str, list[Any]]]) -> None:
    runs = [make_run(tmp_path, batch_size=size, seed=seed) for size in (32, 64) for seed in (0, 1)]
    assert main(["plot", *map(str, runs)]) == 0
    assert counts(drawn["catch"]) == {"actor-critic, batch_size 32": 2, "actor-critic, batch_size 64": 2}


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ([{"steps": 1000}, {"steps": 2000}], {"actor-critic, steps 1000", "actor-critic, steps 2000"}),
        (
            [{"agent": AgentConfig(dense=(8,))}, {"agent": AgentConfig(dense=(9,))}],
            {"actor-critic, agent.dense [8]", "actor-critic, agent.dense [9]"},
        ),
        (
            [{"hyper_params": {"value_cost": 1.0}}, {}],
            {"actor-critic, hyper_params.value_cost 1.0", "actor-critic, hyper_params.value_cost default"},
        ),
        ([{"rule": "a/mine.safetensors"}, {"rule": "b/mine.safetensors"}], {"a/mine.safetensors", "b/mine.safetensors"}),
    ],
)
def test_whatever_changes_the_run_tells_curves_apart(
    tmp_path: Path, drawn: dict[str, dict[str, list[Any]]], changes: list[dict[str, Any]], labels: set[str]
) -> None:
    assert main(["plot", *(str(make_run(tmp_path, **change)) for change in changes)]) == 0
    assert set(drawn["catch"]) == labels


def test_a_panel_for_each_environment(tmp_path: Path, drawn: dict[str, dict[str, list[Any]]]) -> None:
    runs = [make_run(tmp_path, env=env, seed=seed) for env in ("catch", "CartPole-v1") for seed in (0, 1)]
    runs.append(make_run(tmp_path, env_args={"rows": 4, "columns": 3}))
    assert main(["plot", *map(str, runs)]) == 0
    # The number of rows changes what a return means, so that it is another environment.
    assert {panel: counts(groups) for panel, groups in drawn.items()} == {
        "catch": {"actor-critic": 2},
        "CartPole-v1": {"actor-critic": 2},
        "catch rows 4 columns 3": {"actor-critic": 1},
    }


def test_runs_without_a_return_are_named_and_one_point_is_drawn(
    tmp_path: Path, drawn: dict[str, dict[str, list[Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    empty, short = make_run(tmp_path, ends=1, seed=1), make_run(tmp_path, ends=2, seed=2)
    assert main(["plot", str(empty), str(short)]) == 0
    output = capsys.readouterr().out
    assert f"{empty} is left out: no episode has ended" in output and "1 run in curves.png" in output
    assert drawn == {"catch": {"actor-critic": [([10], [0.1])]}}
    assert main(["plot", str(empty)]) == 2
    assert "`runs` must name at least one run with a return in its metrics, got none" in capsys.readouterr().err


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.png"
    assert main(["plot", str(tmp_path / "nowhere"), "--out", str(out)]) == 2
    assert "`run` must be the folder of a run" in capsys.readouterr().err
    assert main(["plot", "--out", str(out)]) == 2
    assert "`runs` must name at least one run, got none" in capsys.readouterr().err
    assert not out.exists()
