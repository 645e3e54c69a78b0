"""The live view."""

from __future__ import annotations

import io
from collections.abc import Mapping

from rich.console import Console

from disco_torch.runs.view import LiveView
from disco_torch.training.loop import SHOWN


def shown(metrics: dict[str, float], labels: Mapping[str, str]) -> str:
    screen = io.StringIO()
    view = LiveView("a run", labels, Console(file=screen, force_terminal=True, width=100))
    with view:
        view.show(metrics)
    return screen.getvalue()


def test_the_metrics_of_training() -> None:
    text = shown({"steps": 12345.0, "return": 0.51234, "unheard_of": 1.0}, SHOWN)
    assert "a run" in text and "12,345" in text and "0.5123" in text and "unheard_of" not in text


def test_a_name_may_stand_for_all_that_begin_with_it() -> None:
    metrics = {"return/catch": 0.25, "return/chain": 3.0, "returned": 7.0}
    text = shown(metrics, {"return/": "mean return, "})
    assert (
        "mean return, catch" in text
        and "mean return, chain" in text
        and "0.25" in text
        and "7" not in text.split("chain")[1]
    )


def test_silence_without_a_terminal() -> None:
    screen = io.StringIO()
    with LiveView("a run", SHOWN, Console(file=screen)) as view:
        view.show({"steps": 1.0})
    assert screen.getvalue() == ""
