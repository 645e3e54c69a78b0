"""`disco-torch evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

from disco_torch import AgentConfig, TrainConfig, train
from disco_torch.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = TrainConfig(
        env_args={"rows": 5, "columns": 3},
        rule="actor-critic",
        device="cpu",
        steps=96,
        num_envs=4,
        batch_size=4,
        replay_capacity=8,
        rollout_length=8,
        agent=AgentConfig(dense=(8,)),
        tensorboard=False,
        runs=tmp_path_factory.mktemp("runs"),
    )
    return train(config, view=False).folder


def rows(output: str) -> dict[str, list[str]]:
    """The cells behind the first of each line of the table."""
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in cells}


def test_both_policies_and_a_picture(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["evaluate", str(run), "--episodes", "4", "--device", "cpu"]
    assert main([*args, "--record", str(tmp_path / "x.gif")]) == 0
    output = capsys.readouterr().out
    table = rows(output)
    for policy in ("sampled", "greedy"):
        episodes, mean, interval, length = table[policy]
        assert episodes == "4" and length == "4"
        low, high = (float(number) for number in interval.split(" to "))
        assert -1 <= low <= float(mean) <= high <= 1
    assert "5 frames in" in output.replace("\n", " ")
    with Image.open(tmp_path / "x.gif") as image:
        assert image.format == "GIF" and getattr(image, "n_frames", 1) == 5
    assert main(args) == 0
    assert rows(capsys.readouterr().out) == table  # the seed is fixed


@pytest.mark.parametrize("policy", ["sampled", "greedy"])
def test_one_policy_which_is_recorded_too(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    kinds: list[str] = []
    module = sys.modules["disco_torch.cli.evaluate"]
    write = module.record
    monkeypatch.setattr(module, "record", lambda *args, **more: kinds.append(more["policy"]) or write(*args, **more))
    args = ["evaluate", str(run), "--episodes", "4", "--device", "cpu", "--policy", policy]
    assert main([*args, "--record", str(tmp_path / "x.gif")]) == 0
    assert kinds == [policy] and {"sampled", "greedy"} & rows(capsys.readouterr().out).keys() == {policy}


@pytest.mark.parametrize(
    ("options", "message"),
    [(["nowhere"], "`run` must be the folder of a run"), (["RUN", "--episodes", "0"], "must be")],
)
def test_mistakes(run: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert main(["evaluate", *(str(run) if option == "RUN" else option for option in options), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1
