"""Where metrics go."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from disco_torch.runs.sinks import JsonlSink, TensorBoardSink, read_metrics


def test_a_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write({"steps": 1, "return": 0.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"steps": 1, "return": 0.5}]
    sink.write({"steps": 2})
    assert read_metrics(tmp_path / "metrics.jsonl")[1:] == [{"steps": 2}]
    sink.close()


def test_a_last_line_that_is_not_finished_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"steps": 1}\n{"steps": 2}\n{"steps": 3, "ret')
    assert read_metrics(path) == [{"steps": 1}, {"steps": 2}]
    path.write_text('{"steps": 1}\n{"steps": 2}')  # whole, but whether more was to come nobody knows
    assert read_metrics(path) == [{"steps": 1}]
    path.write_text("")
    assert read_metrics(path) == []


def test_a_resumed_run_drops_what_it_will_write_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write({"steps": 1})
    position = sink.position()
    sink.write({"steps": 2})
    sink.close()
    with path.open("a") as file:
        file.write('{"steps": 3, "ret')
    again = JsonlSink(path, keep_bytes=position)
    assert again.position() == position
    again.write({"steps": 20})
    again.close()
    assert read_metrics(path) == [{"steps": 1}, {"steps": 20}]


def test_without_a_position_everything_stays(tmp_path: Path) -> None:
    for step in (1, 2):
        sink = JsonlSink(tmp_path / "metrics.jsonl")
        sink.write({"steps": step})
        sink.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"steps": 1}, {"steps": 2}]


@pytest.mark.parametrize("left", ['{"steps": 1}\n', '{"steps": 1}\n{"steps": 2, "ret', '{"steps": 1}\n{"steps": 2}'])
def test_a_file_that_lost_its_end_continues_behind_its_last_whole_line(tmp_path: Path, left: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(left)
    with pytest.warns(UserWarning, match=r"metrics.jsonl must hold whole lines up to byte 1000, but they end at byte 13;"):
        sink = JsonlSink(path, keep_bytes=1000)
    sink.write({"steps": 3})
    sink.close()
    assert path.read_text() == '{"steps": 1}\n{"steps": 3}\n'


def test_a_file_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="up to byte 13, but they end at byte 0; lines are missing"):
        JsonlSink(tmp_path / "metrics.jsonl", keep_bytes=13).close()


def test_a_damaged_line_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"steps": 1}\n{"steps": 2, "ret{"steps": 3}\n\xff\n7\n{"steps": 4}\n')
    with pytest.warns(UserWarning, match=r"is not an object of JSON; it is left out") as caught:
        assert read_metrics(path) == [{"steps": 1}, {"steps": 4}]
    assert [str(warning.message).split()[1] for warning in caught] == ["2", "3", "4"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_an_error_once(tmp_path: Path) -> None:
    """A buffer would try again when it is closed, and hide the first error."""
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink._file.close()
    sink._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        sink.write({"steps": 1})
    sink.close()


def test_tensorboard_has_every_number_at_its_step(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write({"steps": 10, "return": 0.5, "entropy": 1.0})
    sink.write({"steps": 30, "return": 0.75})
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["entropy", "return"]
    assert [(event.step, event.value) for event in events.Scalars("return")] == [(10, 0.5), (30, 0.75)]
