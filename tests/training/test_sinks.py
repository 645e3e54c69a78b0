"""Where metrics go."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from small_runs import small_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from disco_torch import train
from disco_torch.training.sinks import JsonlSink, ServiceSink, TensorBoardSink, read_metrics


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


def test_a_file_that_lost_its_end_gets_no_zeros(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"steps": 1}\n')
    sink = JsonlSink(path, keep_bytes=1000)
    sink.write({"steps": 2})
    sink.close()
    assert read_metrics(path) == [{"steps": 1}, {"steps": 2}]


def test_tensorboard_has_every_number_at_its_step(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write({"steps": 10, "return": 0.5, "entropy": 1.0})
    sink.write({"steps": 30, "return": 0.75})
    sink.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["entropy", "return"]
    assert [(event.step, event.value) for event in events.Scalars("return")] == [(10, 0.5), (30, 0.75)]


def service(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[str, Any]]:
    """A package of that name that writes down how it is called."""
    calls: list[tuple[str, Any]] = []
    module: Any = ModuleType(name)
    module.init = lambda **kwargs: calls.append(("init", kwargs))
    module.log = lambda metrics: calls.append(("log", metrics))
    module.finish = lambda: calls.append(("finish", None))
    monkeypatch.setitem(sys.modules, name, module)
    return calls


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_services(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls = service(monkeypatch, name)
    sink = ServiceSink(name, "project", "run", {"seed": 1})
    sink.write({"steps": 3})
    sink.close()
    assert calls == [
        ("init", {"project": "project", "name": "run", "config": {"seed": 1}}),
        ("log", {"steps": 3}),
        ("finish", None),
    ]


def test_a_run_logs_to_the_services_it_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = service(monkeypatch, "trackio")
    result = train(small_config(tmp_path, trackio_project="mine", steps=48), view=False)
    assert calls[0][1]["project"] == "mine" and calls[0][1]["config"]["steps"] == 48
    assert [metrics for kind, metrics in calls if kind == "log"] == result.metrics
    assert calls[-1] == ("finish", None)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_is_named_and_no_folder_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ValueError, match=f"`{name}_project` needs the package {name}; install it with pip install {name}"):
        train(small_config(tmp_path / "runs", **{f"{name}_project": "mine"}), view=False)
    assert not (tmp_path / "runs").exists()
