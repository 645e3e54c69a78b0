"""The loop of a run, with a session that does nothing but count."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from disco_torch.runs import ConfiguredFolder, Metrics, RunLoop, World
from disco_torch.runs.checkpoint import list_checkpoints


@dataclass(frozen=True)
class Config:
    name: str = "mine"
    runs: Path = Path("runs")
    log_every: int = 2
    checkpoint_every: int = 3
    keep_checkpoints: int = 9
    tensorboard: bool = False
    steps: int = 70


class Folder(ConfiguredFolder[Config]):
    kind = Config
    length = "steps"
    counter = "rounds"
    run = "test"


@dataclass
class Counters:
    rounds: int = 0
    steps: int = 0


@dataclass
class Session:
    """Rounds of 10 steps; each takes as many seconds as its number."""

    clock: list[float]
    counters: Counters = field(default_factory=Counters)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def advance(self) -> None:
        self.counters.rounds += 1
        self.counters.steps += 10
        self.clock[0] += self.counters.rounds

    def read_metrics(self) -> Metrics:
        return {"measured": float(self.counters.rounds)}

    def not_finite(self) -> str | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"counters": dataclasses.asdict(self.counters)}


class Loop(RunLoop[Folder, Session]):
    counter = "rounds"
    throughputs: ClassVar = {"steps": "steps_per_second"}
    shown: ClassVar = {"steps": "steps"}
    resume_command = "resume"

    def title(self) -> str:
        return "a test"

    def summarize(self, lines: list[Metrics]) -> dict[str, Any]:
        return {"lines": len(lines)}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("disco_torch.runs.loop.time.monotonic", lambda: now[0])
    return now


def lines_of(folder: Folder) -> list[Metrics]:
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


def never() -> bool:
    return False


def make(tmp_path: Path, clock: list[float], asked: Callable[[], bool] = never, **more: Any) -> Loop:
    return Loop(Folder.create(Config(runs=tmp_path)), Session(clock), asked, started=clock[0], **more)


def test_speeds_and_the_time_left_are_those_of_the_last_interval(tmp_path: Path, clock: list[float]) -> None:
    loop = make(tmp_path, clock)
    assert loop.run(view=False) is False
    lines = lines_of(loop.folder)
    assert [line["steps"] for line in lines] == [20, 40, 60, 70] and [line["measured"] for line in lines] == [2, 4, 6, 7]
    assert [line["seconds"] for line in lines] == [3, 10, 21, 28]
    throughputs = [20 / 3, 20 / 7, 20 / 11, 10 / 7]
    assert [line["steps_per_second"] for line in lines] == pytest.approx(throughputs)
    left = [left / rate / 60 for left, rate in zip((50, 30, 10, 0), throughputs, strict=True)]
    assert [line["minutes_left"] for line in lines] == pytest.approx(left)


def test_what_is_written_when(tmp_path: Path, clock: list[float]) -> None:
    loop = make(tmp_path, clock)
    loop.run(view=False)
    saved = [int(path.stem.removeprefix("checkpoint-")) for path in list_checkpoints(loop.folder.checkpoints)]
    assert saved == [0, 3, 6, 7]
    summary = json.loads((loop.folder.path / "summary.json").read_text())
    system = summary.pop("system")
    assert system["torch"] == torch.__version__ and system["threads"] == torch.get_num_threads() and system["device"]
    assert summary == {"rounds": 7, "steps": 70, "seconds": 28.0, "lines": 4, "finished": True}
    # The last line, of a round that is not due, is behind what the checkpoint keeps.
    assert loop.folder.load_checkpoint()["metrics_bytes"] < loop.folder.metrics.stat().st_size


def test_a_stop_is_noticed_between_two_rounds(tmp_path: Path, clock: list[float]) -> None:
    loop = make(tmp_path, clock, asked=lambda: clock[0] > 105)
    assert loop.run(view=False) is True
    assert loop.session.counters.rounds == 3 and loop.folder.load_checkpoint()["session"]["counters"]["rounds"] == 3
    assert json.loads((loop.folder.path / "summary.json").read_text())["finished"] is False


def test_a_resumed_run_counts_on(tmp_path: Path, clock: list[float]) -> None:
    loop = make(tmp_path, clock, asked=lambda: clock[0] > 105)
    loop.run(view=False)
    content = loop.folder.content_to_resume()
    again = Loop(loop.folder, Session(clock, Counters(**content.pop("session")["counters"])), never, content)
    clock[0] += 1000  # between the two processes
    again.started = clock[0]
    assert again.run(view=False) is False
    assert [line["steps"] for line in lines_of(loop.folder)] == [20, 40, 60, 70]
    assert lines_of(loop.folder)[-1]["seconds"] == 28


def test_only_the_first_process_writes(tmp_path: Path, clock: list[float]) -> None:
    class Second(World):
        def any(self, flag: bool) -> bool:
            return flag

        def share(self, make: Any) -> Any:
            return None

    loop = make(tmp_path, clock, world=Second(rank=1, size=2))
    loop.write_others = lambda is_last: loop.writing("more").__enter__()  # type: ignore[method-assign]
    shutil.rmtree(loop.folder.path)  # as on a machine that does not have the folder
    loop.session.state_dict = lambda: None  # type: ignore[method-assign,assignment,return-value]
    assert loop.run(view=False) is False
    assert list(tmp_path.iterdir()) == []
