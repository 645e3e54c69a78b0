"""`disco-torch compare`: tasks and rules as texts, tables, the figure, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from disco_torch.analysis import RunRecord, append_record, read_records
from disco_torch.cli import main
from disco_torch.cli.compare import parse_contender, parse_task
from disco_torch.training import Contender, Task

SMALL = "--agent.dense 8 --num-envs 2 --rollout-length 6 --batch-size 4 --replay-capacity 8"
RULES = ["--rules", f"policy-gradient {SMALL}"]
TASKS = ["--tasks", "small=catch --env-args rows 4 columns 3 --steps 240", "CartPole-v1"]


def test_a_task_is_an_environment_with_options() -> None:
    assert parse_task("CartPole-v1", 600) == Task("CartPole-v1", "CartPole-v1", 600)
    assert parse_task("lake=FrozenLake-v1 --steps 200 --env-args is_slippery False", 600) == Task(
        "lake", "FrozenLake-v1", 200, {"env_args.is_slippery": False}
    )
    assert parse_task("catch --steps 256000", 600).steps == 256_000  # also where that is the default of `train`


def test_a_rule_is_a_name_with_options() -> None:
    assert parse_contender("birch") == Contender("birch")
    got = parse_contender("ppo --optimizer.learning-rate 1e-3 --agent.dense 8 8")
    assert got == Contender("ppo", {"optimizer.learning_rate": 1e-3, "agent.dense": [8, 8]})


def test_runs_tables_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "runs.jsonl", tmp_path / "figure.png"
    common = [*TASKS, *RULES, "--steps", "480", "--episodes", "4", "--out", str(out)]
    assert main(["compare", *common, "--seeds", "0,2", "--processes", "2", "--figure", str(figure)]) == 0
    records = read_records(out)
    assert len(records) == 2 * 2 * 2 and {record.seed for record in records} == {0, 2}
    assert {(x.task, x.steps) for x in records if x.rule != "random"} == {("small", 240), ("CartPole-v1", 480)}
    text = capsys.readouterr().out
    assert "8/8 " in text and "| Final score: task, steps | random | policy-gradient (" in text
    assert "| small, 240 |" in text and "| Seconds per 100k steps |" in text
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["compare", *common, "--seeds", "0", "--table-only"]) == 0
    again = capsys.readouterr().out
    assert " (1) |" in again and "/8 " not in again


def test_other_files_are_shown_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, also = tmp_path / "runs.jsonl", tmp_path / "also.jsonl"
    for path, rule, score in ((out, "birch", 3.0), (out, "random", 0.0), (also, "sb3-ppo", 2.0), (also, "other", 9.0)):
        append_record(path, RunRecord("catch", rule, 0, 0 if rule == "random" else 600, score, score, {}, {"env": "catch"}))
    command = ["compare", "--tasks", "catch", "--rules", "birch", "--steps", "600", "--out", str(out), "--table-only"]
    assert main([*command, "--also", str(also), "--peers", "sb3-ppo"]) == 0
    text = capsys.readouterr().out
    assert "| catch, 600 | 0 (1) | 3 (1) | 2 (1) |" in text and "other" not in text
    assert "| birch | 1.5 [1.5, 1.5] |" in text and "| peer | 1 [1, 1] |" in text
    assert main([*command[:3], "--rules", "nothing", *command[5:]]) == 0
    assert "| catch, 600 |" not in capsys.readouterr().out


def test_a_run_of_another_file_is_neither_repeated_nor_counted_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, also = tmp_path / "runs.jsonl", tmp_path / "also.jsonl"
    for rule, path in (("random", also), ("birch", also), ("birch", out)):
        append_record(path, RunRecord("catch", rule, 0, 0 if rule == "random" else 2048, 1.0, 1.0, {}, {"env": "catch"}))
    command = ["compare", "--tasks", "catch", "--rules", "birch", "--steps", "2048", "--seeds", "0", "--out", str(out)]
    assert main([*command, "--also", str(also)]) == 0
    text = capsys.readouterr().out
    assert "| catch, 2048 | 1 (1) | 1 (1) |" in text and len(read_records(out)) == 1


def test_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--tasks", "catch", "--rules", "birch", "--out", str(tmp_path / "none.jsonl"), "--table-only"]
    assert main(command) == 0
    assert "no finished run of these tasks in " in capsys.readouterr().out


def test_a_failed_run_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", "--tasks", "NoSuch-v0", *RULES, "--seeds", "0", "--steps", "240"]
    assert main([*command, "--processes", "2", "--out", str(tmp_path / "runs.jsonl")]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "2 runs failed, 0 were stopped; the same command runs those alone" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "catch", "--rules", "birch", "birch"], "`--rules` must differ, got ['birch'] twice"),
        (["--tasks", "catch", "catch --steps 9", "--rules", "birch"], "`--tasks` must differ, got ['catch'] twice"),
        (["--tasks", "--rules", "birch"], "`--tasks` must name at least one, got none"),
        (["--tasks", "catch", "--rules", "  "], "`--rules` must begin with a name, got '  '"),
        (["--tasks", "catch 'x", "--rules", "birch"], "`--tasks` must be a name with options behind it, got"),
        (["--tasks", "catch", "--rules", "birch --seed 1"], "`settings` must leave 'seed' to the comparison"),
        (["--tasks", "catch", "--rules", "birch", "--seeds", "x"], "`--seeds` must be numbers and ranges"),
        (["--tasks", "catch", "--rules", "birch", "--processes", "-1"], "`--processes` must be at least 0, got -1"),
        (["--tasks", "catch", "--rules", "birch", "--also", "none.json"], "`--also` must be files of finished runs, got"),
    ],
)
def test_mistakes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *options]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_an_option_that_train_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["compare", "--tasks", "catch", "--rules", "birch --no-such-option 1"])
    assert ending.value.code == 2 and "--no-such-option" in capsys.readouterr().err
