"""Progress without a terminal: a line now and then, and what is happening before there are any metrics."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from disco_torch.runs import progress as module
from disco_torch.runs.progress import Progress, duration, pace
from disco_torch.runs.view import LiveView

SHOWN = {"return": "return", "return/": "return on "}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("disco_torch.runs.progress.time.monotonic", lambda: now[0])
    return now


def make(terminal: bool = False) -> tuple[Progress, Callable[[], list[str]]]:
    screen = io.StringIO()
    live = LiveView("a run", {}, Console(file=screen, force_terminal=terminal, width=200))
    return Progress(live, "steps", 1000, SHOWN), lambda: screen.getvalue().splitlines()


def test_a_line_every_ten_seconds_at_most_of_the_last_interval(clock: list[float]) -> None:
    reports, lines = make()
    reports.metrics |= {"return": 0.51234, "return/catch": 3.0, "loss": 7.0}
    for done in range(10, 410, 10):  # 10 steps a second at first, then 5
        clock[0] += 1 if done <= 200 else 2
        reports.tick(done)
    assert lines()[:3] == [
        "100 of 1,000 steps (10%), 10 steps/s, 2 min left, return 0.5123, return on catch 3",
        "200 of 1,000 steps (20%), 10 steps/s, 80 s left, return 0.5123, return on catch 3",
        "250 of 1,000 steps (25%), 5 steps/s, 2 min left, return 0.5123, return on catch 3",
    ]
    assert len(lines()) == 6
    reports.finish(400, 75.4)
    assert lines()[-1] == "400 steps in 75 s, return 0.5123, return on catch 3"


def test_the_time_left_is_not_longer_than_the_limit(clock: list[float]) -> None:
    reports, lines = make()
    reports.tick(0)
    clock[0] += 20
    reports.tick(1, seconds_to_limit=33.0)
    assert lines() == ["1 of 1,000 steps (0%), 20 s per step, 33 s left"]


def test_the_first_interval_begins_when_the_run_has_warmed_up(clock: list[float]) -> None:
    reports, lines = make()
    reports.doing("compiling")
    clock[0] += 500
    reports.tick(10)
    reports.doing("")
    reports.tick(10)
    clock[0] += 10
    reports.tick(30)
    assert lines() == ["30 of 1,000 steps (3%), 2 steps/s, 8 min left"]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.time() + 10
    while not condition():
        assert time.time() < deadline, "nothing came"
        time.sleep(0.01)


def test_what_takes_long_is_said_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    reports, lines = make()
    with reports:
        reports.doing("compiling the update")
        assert lines() == []  # what is over at once is not spoken of
        wait_for(lines)
        time.sleep(0.6)
        assert len(lines()) == 1  # and not again within ten seconds
    assert re.fullmatch(r"compiling the update \(\d s since the start\)", lines()[0])
    assert reports._thread is not None and not reports._thread.is_alive()


def test_nothing_is_said_while_nothing_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    reports, lines = make()
    with reports:
        time.sleep(0.6)
    assert lines() == []


def test_in_a_terminal_the_table_shows_it() -> None:
    reports, lines = make(terminal=True)
    with reports.live, reports:
        reports.doing("compiling the update")
        wait_for(lambda: "compiling the update, " in "".join(lines()))
        reports.tick(0)
        reports.finish(10, 1.0)
    assert not any("steps in" in line for line in lines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5340, "89 min"), (5400, "1 h 30 min"), (1e5, "27 h 47 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("speed", "text"), [(5120.4, "5,120 steps/s"), (1.0, "1 steps/s"), (0.08, "12.5 s per step"), (0.0, "0 steps/s")]
)
def test_paces(speed: float, text: str) -> None:
    assert pace(speed, "steps") == text
