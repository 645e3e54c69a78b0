"""The live view of a run in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table


def number(value: float) -> str:
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4g}"


class LiveView:
    """A table of metrics that is redrawn in place. Without a terminal no table is shown, see `progress.py`.

    Args:
      title: the line above the table.
      shown: metrics to show and their labels; a name that ends in / stands for all names that begin with it.
      console: where to show it; defaults to stdout.
    """

    def __init__(self, title: str, shown: Mapping[str, str], console: Console | None = None) -> None:
        self.title, self.shown = title, shown
        self.console = console or Console()
        self._live = Live(console=self.console, refresh_per_second=4, transient=True) if self.console.is_terminal else None

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal that shows the table."""
        return self._live is not None and self._live.is_started

    def print(self, line: str) -> None:
        """A line of its own, above the table where that is shown."""
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def show(self, metrics: Mapping[str, float], activity: str = "") -> None:
        """Redraws the table; `activity` is what the run is doing before it has metrics."""
        if self._live is None:
            return
        table = Table(title=self.title, show_header=False)
        if activity:
            table.add_row("now", activity)
        for key, label in self.shown.items():
            for name, value in metrics.items():
                if name == key or (key.endswith("/") and name.startswith(key)):
                    table.add_row(label + name.removeprefix(key), number(value))
        self._live.update(table)

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
