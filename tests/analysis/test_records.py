"""Finished runs in a file: what is read again, what a kill leaves behind, and the area under a curve."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from disco_torch.analysis import RunRecord, append_record, area_under_curve, binned_curve, read_records

RECORD = RunRecord("catch", "birch", 0, 600, 0.5, 0.25, {"num_envs": 4}, {"env": "catch"}, ([300, 600], [0.0, 0.5]))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "runs.jsonl"
    assert read_records(path) == []
    second = dataclasses.replace(RECORD, seed=1, greedy_score=1.0)
    append_record(path, RECORD)
    append_record(path, second)
    assert [json.dumps(dataclasses.asdict(x)) for x in read_records(path)] == [
        json.dumps(dataclasses.asdict(x)) for x in (RECORD, second)
    ]
    assert len(path.read_text().splitlines()) == 2


def test_every_place_that_a_kill_can_cut_the_last_line_at(tmp_path: Path) -> None:
    """The runs before it are read, and the next one is whole."""
    path, later = tmp_path / "runs.jsonl", dataclasses.replace(RECORD, seed=2)
    append_record(path, RECORD)
    first = len(path.read_bytes())
    append_record(path, dataclasses.replace(RECORD, seed=1))
    whole = path.read_bytes()
    for length in range(first, len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = [0, 1] if length >= len(whole) - 1 else [0]
        assert [record.seed for record in read_records(path)] == kept
        append_record(path, later)
        assert [record.seed for record in read_records(path)] == [*kept, 2]


def test_of_two_lines_for_one_run_the_later_counts(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_record(path, RECORD)
    append_record(path, dataclasses.replace(RECORD, score=0.75))
    assert [record.score for record in read_records(path)] == [0.75]


@pytest.mark.parametrize(
    "changes", [{"task": "x"}, {"rule": "x"}, {"seed": 1}, {"steps": 1}, {"settings": {}}, {"task_settings": {}}]
)
def test_what_makes_another_run(changes: dict[str, object]) -> None:
    assert dataclasses.replace(RECORD, **changes).key != RECORD.key  # type: ignore[arg-type]
    assert dataclasses.replace(RECORD, score=9.0, area=9.0, seconds=9.0, version="x").key == RECORD.key


def test_labels() -> None:
    assert RECORD.label == "birch (num_envs 4)"
    assert dataclasses.replace(RECORD, settings={}).label == "birch"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 of .*runs.jsonl must be a run of a comparison, as JSON: .*; remove the line, or name another file"),
        ("[]", "expected an object, got list"),
        ('{"task": "a"}', "missing 5 required positional arguments"),
        (json.dumps(dataclasses.asdict(RECORD) | {"colour": 1}), "unknown colour"),
        (json.dumps(dataclasses.asdict(RECORD) | {"score": None}), "`score` of a run must be a finite number, got None"),
        (
            json.dumps(dataclasses.asdict(RECORD) | {"area": float("nan")}),
            "`area` of a run must be a finite number, got nan",
        ),
        (json.dumps(dataclasses.asdict(RECORD) | {"seed": "0"}), "`seed` of a run must be int, got '0'"),
    ],
)
def test_a_broken_line_before_the_last_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(line + "\n")
    append_record(path, RECORD)
    with pytest.raises(ValueError, match=message):
        read_records(path)


def test_the_area_is_the_mean_return_over_all_steps() -> None:
    assert area_under_curve([100], [7.0], 100) == 7.0
    assert area_under_curve([25, 100], [0.0, 4.0], 100) == pytest.approx(3.0)
    assert area_under_curve([50, 80], [0.0, 1.0], 100) == pytest.approx(0.5)  # the last is held to the end
    assert area_under_curve([50, 110], [0.0, 1.0], 100) == pytest.approx(0.5)  # nothing behind the end counts
    with pytest.raises(ValueError, match="no episode ended within 100 steps; take more steps"):
        area_under_curve([], [], 100)


def test_a_curve_in_equal_intervals() -> None:
    steps, returns = binned_curve([1, 10, 11, 39, 40, 41], [0.0, 2.0, 3.0, 5.0, 7.0, 9.0], total=40, points=4)
    assert steps == [10, 20, 40] and returns == [1.0, 3.0, 7.0]  # none ended in the third; what ends late is in the last
    assert binned_curve([], [], 10) == ([], [])
