"""How far a run is: in the live view of a terminal, or else in a line now and then."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from disco_torch.runs.view import LiveView, number

LINE_SECONDS = 10.0
"""Least time between two lines."""
PATIENCE = 3.0
"""Seconds of silence after which a run says for the first time what it is doing; later ones are longer."""
LONGEST_SILENCE = 60.0


def duration(seconds: float) -> str:
    """A time in words: `45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def pace(per_second: float, unit: str) -> str:
    """A speed in words: `5,120 steps/s`, or `12 s per meta-update` where one takes longer than a second."""
    if per_second >= 1:
        return f"{number(round(per_second))} {unit}/s"
    return f"{1 / per_second:.3g} s per {unit.removesuffix('s')}" if per_second > 0 else f"0 {unit}/s"


class Progress:
    """Reports on a run. In a terminal the live view shows metrics, and here what is being done before there are any.

    Speed and time left are those of the interval since the last line; the first interval begins when the run has warmed up.

    Args:
      live: the live view, whose console the lines go to.
      unit: what the length of the run is counted in, in the plural.
      total: length of the run.
      shown: metrics to add to a line, and their labels.
    """

    def __init__(self, live: LiveView, unit: str, total: int, shown: Mapping[str, str]) -> None:
        self.live, self.unit, self.total, self.shown = live, unit, total, shown
        self.metrics: dict[str, float] = {}
        self._activity = ""
        self._said = time.monotonic()
        self._patience = PATIENCE
        self._mark: tuple[float, int] | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def doing(self, activity: str) -> None:
        """Says what the run does now, if it takes more than a few seconds; empty once all is as it will be."""
        self._activity = activity

    def tick(self, done: int, seconds_to_limit: float = math.inf) -> None:
        """After each unit of work: a line if one is due. Nothing where the live view shows the same."""
        now = time.monotonic()
        if self._mark is None:
            if not self._activity:
                self._mark = now, done
            return
        if self.live.is_shown or now - self._said < LINE_SECONDS or done == self._mark[1]:
            return
        speed = (done - self._mark[1]) / max(now - self._mark[0], 1e-9)
        left = min(max(self.total - done, 0) / speed, seconds_to_limit)
        self._mark = now, done
        share = f"{done:,} of {self.total:,} {self.unit} ({min(done / self.total, 1.0):.0%})"
        self._say(", ".join([share, pace(speed, self.unit), f"{duration(left)} left", *self._numbers()]))

    def finish(self, done: int, seconds: float) -> None:
        """The last line."""
        if not self.live.is_shown:
            unit = self.unit.removesuffix("s") if done == 1 else self.unit
            self._say(", ".join([f"{done:,} {unit} in {duration(seconds)}", *self._numbers()]))

    def _numbers(self) -> list[str]:
        """The metrics of a line; a name that ends in / stands for all names that begin with it."""
        return [
            f"{label}{name.removeprefix(key)} {number(value)}"
            for key, label in self.shown.items()
            for name, value in self.metrics.items()
            if name == key or (key.endswith("/") and name.startswith(key))
        ]

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self.live.print(line)

    def _watch(self) -> None:
        """Speaks for a loop that is in the middle of something, such as compiling."""
        started = time.monotonic()
        while not self._ended.wait(0.25):
            activity, now = self._activity, time.monotonic()
            if self.live.is_shown:
                self.live.show(self.metrics, f"{activity}, {duration(now - started)}" if activity else "")
            elif activity and now - self._said >= self._patience:
                self._say(f"{activity} ({duration(now - started)} since the start)")
                self._patience = min(max(2 * self._patience, LINE_SECONDS), LONGEST_SILENCE)

    def __enter__(self) -> Progress:
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
