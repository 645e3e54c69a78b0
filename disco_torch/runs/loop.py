"""The loop of a run, which training and discovery share: advance, write metrics, save, stop, summarise."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch

from disco_torch.envs import EnvironmentFailure
from disco_torch.files import reason_of
from disco_torch.runs.callbacks import Callback, CallbackFailed, RunStatus, try_call
from disco_torch.runs.checkpoint import list_checkpoints, save_checkpoint
from disco_torch.runs.folder import ConfiguredFolder
from disco_torch.runs.progress import Progress
from disco_torch.runs.session import Session
from disco_torch.runs.sinks import JsonlSink, Metrics, Sink, TensorBoardSink
from disco_torch.runs.system import describe_system
from disco_torch.runs.view import LiveView
from disco_torch.runs.world import ProcessLost, World


class RunDiverged(RuntimeError):
    """The loss, a parameter or a moment of the optimiser is not finite any more."""


F = TypeVar("F", bound=ConfiguredFolder[Any])
S = TypeVar("S", bound=Session)


@dataclass
class RunLoop(Generic[F, S]):
    """One run. All processes go through its loop together, and only the first one writes.

    Subclasses say what is particular to a kind of run.

    Attributes:
      folder: where everything is written.
      session: the run in memory.
      asked_to_stop: whether a signal has asked this process to stop.
      content: the checkpoint that the run continues from, without the session's part; empty for a new run.
      world: the processes of the run.
      started: when this process started, on the monotonic clock.
      callbacks: a user's own code, called in the first process; all processes are given the same ones.
    """

    folder: F
    session: S
    asked_to_stop: Callable[[], bool]
    content: dict[str, Any] = field(default_factory=dict)
    world: World = field(default_factory=World)
    started: float = field(default_factory=time.monotonic)
    callbacks: Sequence[Callback] = ()

    counter: ClassVar[str]
    """Counter of what `advance` does, which intervals and checkpoints are counted in."""
    throughputs: ClassVar[Mapping[str, str]]
    """Counters whose increase per second is measured, and the name of that metric."""
    shown: ClassVar[Mapping[str, str]]
    """Metrics that the live view shows, and their labels."""
    in_lines: ClassVar[Mapping[str, str]] = {}
    """Metrics that a line of progress shows, and their labels."""
    resume_command: ClassVar[str]
    """Command line that resumes a run, without the folder."""

    def __post_init__(self) -> None:
        self.sinks: list[Sink] = []
        self.stop_reason = ""
        """Why the run stops before its end, in words; empty while it does not, and where a signal asked for it."""
        self.metrics: Metrics = {}
        """The last line of metrics."""
        self._saved_at: int | None = self.count if self.content else None
        self._last_line = time.monotonic(), dataclasses.replace(self.session.counters)

    # What a kind of run may add.

    def title(self) -> str:
        raise NotImplementedError

    def services(self) -> list[Sink]:
        """Further sinks."""
        return []

    def advance(self) -> None:
        self.session.advance()

    def seconds_to_limit(self) -> float:
        """Seconds until the run stops because its time is up."""
        return math.inf

    def activity(self) -> str:
        """What the next unit of work does that the later ones do not, such as compiling; empty for nothing."""
        return ""

    def after_advance(self, logged: bool) -> None:
        """Looks at the run after a unit of work; may set `stop_reason`.

        Args:
          logged: whether a line of metrics was written after it.
        """

    def more_content(self) -> dict[str, Any]:
        """What a checkpoint holds besides the session, as plain values."""
        return {}

    def write_others(self, is_last: bool) -> None:
        """Writes what the run has besides metrics and checkpoints, where it is due."""

    def summarize(self, lines: list[Metrics]) -> dict[str, Any]:
        """Draws the curve, and returns what the summary says besides counters and time."""
        raise NotImplementedError

    # The loop.

    @property
    def count(self) -> int:
        return getattr(self.session.counters, self.counter)

    @property
    def is_finished(self) -> bool:
        length = self.folder.length
        return getattr(self.session.counters, length) >= getattr(self.folder.config, length)

    @property
    def seconds(self) -> float:
        """How long the run has taken, in all processes that have continued it."""
        return self.content.get("seconds", 0.0) + time.monotonic() - self.started

    def run(self, view: bool) -> bool:
        """Runs to the end or until asked to stop; returns whether it was stopped."""
        config = self.folder.config
        with ExitStack() as stack:
            if self.world.is_first:
                self._open(stack, view)
            self.check_finite()
            if not self.content:
                self.save()  # killed from here on, the run can be resumed
            while not self.is_finished and not self.world.any(self._should_stop()):
                before = self.count
                self.doing(self.activity())
                with self._continuing():
                    self.advance()
                if self.count == before:  # stopped in the middle of it
                    continue
                logged = self.count % config.log_every == 0
                if logged:
                    self._log()
                self.after_advance(logged)
                self.call_back("after_rollout")
                self.write_others(is_last=False)
                if config.checkpoint_every and self.count % config.checkpoint_every == 0:
                    self.save()
                self._tick()
            self._finish()
        self.call_back("at_end")
        return not self.is_finished

    def _should_stop(self) -> bool:
        return self.asked_to_stop() or self.seconds_to_limit() < 0 or bool(self.stop_reason)

    def doing(self, activity: str) -> None:
        """Says what the run does, if it takes more than a few seconds."""
        if self.world.is_first:
            self.progress.doing(activity)

    def _tick(self) -> None:
        if self.world.is_first and self.shows:
            self.doing(self.activity())
            self.progress.tick(getattr(self.session.counters, self.folder.length), self.seconds_to_limit())

    def call_back(self, event: str, metrics: Mapping[str, float] | None = None) -> None:
        """Calls a method of all callbacks in the first process; where one fails, the state is saved first. Collective."""
        if not self.callbacks:
            return

        def outcome() -> tuple[str, CallbackFailed | None]:
            counters = dataclasses.asdict(self.session.counters)
            shown = self.metrics if metrics is None else metrics
            status = RunStatus(self.folder.path, counters, dict(shown), self.session, self.stop_reason)
            return try_call(self.callbacks, event, status)

        reason, error = self.world.share(outcome)
        self.stop_reason = self.stop_reason or reason
        if error is not None:
            if event != "at_end":  # then everything is written
                self.save()
            how = f"the state is saved, resume with `{self.resume_command} {self.folder.path}`"
            raise CallbackFailed(f"{error}; {how}.") from error.__cause__

    @contextmanager
    def _continuing(self) -> Iterator[None]:
        """Names the checkpoint where the first unit of work after it fails: its numbers may not be what they should be."""
        try:
            yield
        except (EnvironmentFailure, RunDiverged, ProcessLost, torch.OutOfMemoryError):
            raise
        except (IndexError, RuntimeError) as error:
            if not self.content or self.count != self._saved_at:
                raise
            raise ValueError(
                f"the run cannot continue from the checkpoint in {self.folder.checkpoints} ({type(error).__name__}: "
                f"{reason_of(error)}); look for one that was saved before, or start a new run."
            ) from error

    def _open(self, stack: ExitStack, view: bool) -> None:
        """Opens everything that the first process writes to and shows."""
        self.folder.remove_partial_files()
        self.jsonl = JsonlSink(self.folder.metrics, self.content.get("metrics_bytes", 0))
        self.sinks.append(self.jsonl)
        stack.callback(self.jsonl.close)
        others = self.services()
        if self.folder.config.tensorboard:
            others.append(TensorBoardSink(self.folder.path, self.session.counters.steps or None))
        for sink in others:
            self.sinks.append(sink)
            stack.callback(sink.close)
        self.live = LiveView(self.title(), self.shown)
        length = self.folder.length
        total = getattr(self.folder.config, length)
        self.progress, self.shows = Progress(self.live, length.replace("_", "-"), total, self.in_lines), view
        if view:
            self.live.print(self.title())
            stack.enter_context(self.live)
            stack.enter_context(self.progress)

    def _log(self) -> None:
        """Writes a line of metrics. Throughputs and the time left are those of the interval since the last line."""
        measured = self.session.read_metrics()
        self.check_finite()
        now, counters, (before, start) = time.monotonic(), self.session.counters, self._last_line
        self._last_line = now, dataclasses.replace(counters)
        seconds, length = max(now - before, 1e-9), self.folder.length
        per_second = {name: (getattr(counters, name) - getattr(start, name)) / seconds for name in self.throughputs}
        left = getattr(self.folder.config, length) - getattr(counters, length)
        metrics: Metrics = {
            **dataclasses.asdict(counters),
            "seconds": self.seconds,
            **{self.throughputs[name]: rate for name, rate in per_second.items()},
            "minutes_left": max(left, 0) / max(per_second[length], 1e-9) / 60,
            **measured,
        }
        self.write_metrics(metrics)
        self.metrics = metrics

    def write_metrics(self, metrics: Metrics) -> None:
        """Writes a line of metrics to all sinks, and shows it."""
        if not self.world.is_first:
            return
        with self.writing("metrics"):
            for sink in self.sinks:
                sink.write(metrics)
        self.progress.metrics |= metrics
        self.live.show(self.progress.metrics)

    def check_finite(self) -> None:
        """Raises where the run has diverged, before a checkpoint or a line of metrics would hold it."""
        problem = self.session.not_finite()
        if problem is None:
            return
        where, step = self.folder.checkpoints, self.session.counters.steps
        if self._saved_at == self.count:  # nothing was computed since
            raise RunDiverged(f"{problem} in the newest checkpoint in {where}; remove it to continue from the one before.")
        kept = f" The checkpoints in {where} are from before." if list_checkpoints(where) else ""
        raise RunDiverged(f"{problem} at step {step}; look at the inputs and rewards, or lower the learning rate.{kept}")

    def save(self) -> None:
        """Writes a checkpoint, unless this one is written."""
        if self._saved_at == self.count:
            return
        content = self.content_now()
        if content is not None:
            with self.writing("the checkpoint"):
                save_checkpoint(self.folder.checkpoints, self.count, content, self.folder.config.keep_checkpoints)
        self._saved_at = self.count

    def content_now(self) -> dict[str, Any] | None:
        """All that a checkpoint of the present state holds, in the first process; None in the others."""
        self.check_finite()
        state = self.session.state_dict()
        if state is None:
            return None
        return {
            "session": state,
            "config": json.dumps(self.folder.plain_config()),
            "metrics_bytes": self.jsonl.position(),
            "seconds": self.seconds,
            **self.more_content(),
        }

    def _finish(self) -> None:
        self.doing("")
        self.save()
        self.write_others(is_last=True)
        # A last line, behind what a checkpoint keeps: a run that is lengthened continues as if it had not ended here.
        if self.is_finished and self.count % self.folder.config.log_every != 0:
            self._log()
        self.world.share(self._summarize)
        if self.world.is_first and self.shows:
            self.progress.finish(getattr(self.session.counters, self.folder.length), self.seconds)

    def _summarize(self) -> None:
        with self.writing("the summary"):
            more = self.summarize(self.folder.read_metrics())
            counters = dataclasses.asdict(self.session.counters)
            summary = {**counters, "seconds": self.seconds, **more, "finished": self.is_finished}
            summary["system"] = describe_system(self.session.device)
            if self.stop_reason and not self.is_finished:
                summary["stopped_because"] = self.stop_reason
            self.folder.write_summary(summary)

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Says what was not lost where something cannot be written, on a full disk for example."""
        if self.world.is_first:  # others may be on machines that do not have the folder
            self.folder.check_exists()
        try:
            yield
        except ProcessLost:
            raise
        except (OSError, RuntimeError) as error:  # PyTorch's writer of archives raises RuntimeErrors
            if self.world.is_first:
                self.folder.check_exists()  # it may have been removed while this was written
            saved = list_checkpoints(self.folder.checkpoints)
            kept = f"{saved[-1]} is whole" if saved else "it has no checkpoint yet"
            raise OSError(
                f"{what} of {self.folder.path} cannot be written ({error}). What was written before is not lost, {kept}; "
                f"free some space, then `{self.resume_command} {self.folder.path}`."
            ) from error
