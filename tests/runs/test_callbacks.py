"""Callbacks: when they are called, what they see, how they stop a run, and what happens where one fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from disco_torch.runs.callbacks import Callback, CallbackFailed, RunStatus, call

STATUS = RunStatus(Path("runs/x"), {"steps": 24})


class Silent(Callback):
    pass


class Stop(Callback):
    def __init__(self, answer: str | bool | None) -> None:
        self.answer = answer

    def after_rollout(self, status: RunStatus) -> str | None:
        return self.answer  # type: ignore[return-value]


class Broken(Callback):
    def after_evaluation(self, status: RunStatus) -> str | None:
        raise KeyError("lost")

    def at_end(self, status: RunStatus) -> None:
        raise ValueError


def test_the_first_reason_counts() -> None:
    assert call([], "after_rollout", STATUS) == call([Silent(), Stop(None)], "after_rollout", STATUS) == ""
    assert call([Silent(), Stop("enough"), Stop("more")], "after_rollout", STATUS) == "Stop: enough"
    assert call([Stop(True)], "after_rollout", STATUS) == "Stop asked for it"
    assert call([Stop("enough")], "after_evaluation", STATUS) == call([Stop("enough")], "at_end", STATUS) == ""


def test_one_that_fails_is_named() -> None:
    with pytest.raises(
        CallbackFailed, match=r"the callback Broken failed in after_evaluation at step 24 \(KeyError: 'lost'\)"
    ):
        call([Silent(), Broken()], "after_evaluation", STATUS)
    with pytest.raises(CallbackFailed, match=r"the callback Broken failed in at_end at step 24 \(ValueError\)"):
        call([Broken()], "at_end", STATUS)
