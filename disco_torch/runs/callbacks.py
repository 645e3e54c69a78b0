"""Callbacks: a user's own code in the loop of a run, given as `train(config, callbacks=[...])` or to `discover`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunStatus:
    """What a callback sees of a run.

    Attributes:
      folder: folder of the run.
      counters: how far the run is, such as `steps`, `rollouts`, `updates`, and in a discovery `meta_updates`.
      metrics: the last line of metrics; in `after_evaluation` that of the evaluation, with `eval_return`,
        `eval_return_low` and `eval_return_high`. Empty before the first.
      session: the run in memory, to read from: agent, learner state, replay; in a discovery rule parameters and groups of
        agents. What changes it changes the run.
      stop_reason: why the run stops before its last step; empty while it goes on and where it reaches its end.
    """

    folder: Path
    counters: Mapping[str, int]
    metrics: Mapping[str, float] = field(default_factory=dict)
    session: Any = None
    stop_reason: str = ""


class Callback:
    """Does nothing; override the methods of interest.

    The first two may stop the run: they return why, in a few words, or None to go on.

        class StopEarly(Callback):
            def after_evaluation(self, status):
                return "good enough" if status.metrics["eval_return"] > 0.9 else None

    A callback must not draw from the session's generator, or the run is another one. It has no state in checkpoints: when a
    run is resumed, pass it again. Where a discovery runs in several processes, all of them pass the same callbacks, and the
    first process calls them; a callback must not wait for the others, as `session.state_dict()` does.
    """

    def after_rollout(self, status: RunStatus) -> str | None:
        """Called after each rollout and its updates, in a discovery after each meta-update; metrics come first where due."""
        return None

    def after_evaluation(self, status: RunStatus) -> str | None:
        """Called after each evaluation during training (`eval_every`); a discovery has none."""
        return None

    def at_end(self, status: RunStatus) -> None:
        """Called once when the run ends or is stopped, after its last checkpoint and its summary."""


class CallbackFailed(RuntimeError):
    """A callback raised an error; the state of the run is in a checkpoint."""


def call(callbacks: Sequence[Callback], event: str, status: RunStatus) -> str:
    """Calls one method of all callbacks, and returns the first reason to stop, empty for none.

    Raises `CallbackFailed`, which names the callback, where one raises an exception.
    """
    reason = ""
    for callback in callbacks:
        name = type(callback).__qualname__
        try:
            answer = getattr(callback, event)(status)
        except Exception as error:  # whatever a user's code raises
            step = status.counters.get("steps", 0)
            raise CallbackFailed(f"the callback {name} failed in {event} at step {step} ({_described(error)})") from error
        if answer and not reason:
            reason = f"{name}: {answer}" if isinstance(answer, str) else f"{name} asked for it"
    return reason


def try_call(callbacks: Sequence[Callback], event: str, status: RunStatus) -> tuple[str, CallbackFailed | None]:
    """`call`, with the error returned: the other processes of a run must hear of it before it is raised."""
    try:
        return call(callbacks, event, status), None
    except CallbackFailed as error:
        return "", error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
