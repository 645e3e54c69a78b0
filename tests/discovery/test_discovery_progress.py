"""A discovery tells how far it is, and how long it will take."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from small_discoveries import small_config

from disco_torch.discovery import discover
from disco_torch.discovery.run import DiscoveryLoop
from disco_torch.runs.progress import Progress


def test_lines_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    doing = Progress.doing
    monkeypatch.setattr(Progress, "doing", lambda self, activity: said.append(activity) or doing(self, activity))
    monkeypatch.setattr("disco_torch.runs.progress.LINE_SECONDS", 0.0)
    discover(small_config(tmp_path, meta_updates=4, log_every=2))
    lines = capsys.readouterr().out.splitlines()
    pattern = r"(\d) of 4 meta-updates \(\d+%\), (\S+ meta-updates/s|\S+ s per meta-update), \d+ s left(, \S.*)?"
    shown = [match[1] for line in lines if (match := re.fullmatch(pattern, line))]
    assert shown == ["2", "3", "4"]  # the interval of the first begins after the first meta-update
    assert re.match(r"4 meta-updates in \d+ s, return on \w+ ", lines[-1])
    assert said[0].endswith("making the first meta-update") and set(said[1:]) == {""}


def test_the_limit_in_minutes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lefts: list[float] = []
    monkeypatch.setattr(Progress, "tick", lambda self, done, seconds_to_limit: lefts.append(seconds_to_limit))
    discover(small_config(tmp_path, meta_updates=2, minutes=5.0))
    assert 0 < lefts[1] < lefts[0] < 300
    discover(small_config(tmp_path, meta_updates=1))
    assert lefts[2] == math.inf


def test_a_discovery_whose_time_is_up_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiscoveryLoop, "seconds_to_limit", lambda loop: 1.0 if loop.count < 2 else -1.0)
    assert discover(small_config(tmp_path, meta_updates=4), view=False).stopped
