"""`discover`: a discovery from its configuration to its folder of results, in one process or several."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.processes import ProcessLost, World
from disco_torch.discovery.provenance import rule_provenance
from disco_torch.discovery.record import DiscoveryFolder, DiscoveryRecord, final_returns
from disco_torch.discovery.session import DiscoverySession
from disco_torch.training.checkpoint import list_checkpoints, load_checkpoint
from disco_torch.training.session import resolve_rule
from disco_torch.training.sinks import Metrics
from disco_torch.training.stopping import stop_signals


@dataclass(frozen=True)
class DiscoverResult:
    """What a discovery ended with. `stopped` says that it was asked to end before its last meta-update."""

    folder: Path
    rule: Path
    """The last snapshot of the rule."""
    metrics: list[Metrics]
    stopped: bool

    @property
    def final_returns(self) -> dict[str, float]:
        """Mean return by environment, as the last metrics have it."""
        return final_returns(self.metrics)


def discover(config: DiscoverConfig | None = None, *, resume: Path | str | None = None, view: bool = True) -> DiscoverResult:
    """Discovers a rule and writes a folder with everything about it.

    Processes that `torchrun` started all call it alike; each has a share of the agents, and the first one writes.

    Args:
      config: of a new discovery; when resuming, its `meta_updates` may lengthen it, its `device` and `speed` move it, and
        its `minutes` are those that it goes on for.
      resume: the folder of a discovery to go on with, with its own configuration, on any number of processes.
      view: show the live view, where there is a terminal.
    """
    started, folder = time.monotonic(), None
    with stop_signals() as asked_to_stop, World.from_environment() as world:
        try:
            if resume is not None:
                folder, content = world.share(lambda: _open(Path(resume), config))
                # All of the rule is in the checkpoint: the file that it began with may be gone.
                session = DiscoverySession(dataclasses.replace(folder.config, start=""), world)
                session.load_state_dict(content.pop("session"))
            else:
                config = config or DiscoverConfig()
                config = dataclasses.replace(config, start=resolve_rule(config.start) if config.start else "")
                session, content = DiscoverySession(config, world), {}  # before the folder: no run, no folder
                folder = world.share(lambda: DiscoveryFolder.create(session.config))
            return _Loop(folder, session, asked_to_stop, started, content).run(view)
        except ProcessLost as error:
            raise ProcessLost(f"{error}; {_how_to_go_on(folder)}") from error


def _open(path: Path, config: DiscoverConfig | None) -> tuple[DiscoveryFolder, dict[str, Any]]:
    """The folder of a discovery to go on with, and its newest checkpoint."""
    folder = DiscoveryFolder.open(path, extend_to=None if config is None else config.meta_updates)
    if config is not None:
        moved = {name: getattr(config, name) for name in ("device", "speed") if getattr(config, name) != "auto"}
        folder = folder.with_settings(minutes=config.minutes, **moved)
    return folder, load_checkpoint(folder.checkpoints)


def _how_to_go_on(folder: DiscoveryFolder | None) -> str:
    if folder is None or not list_checkpoints(folder.checkpoints):
        return "it had not written a checkpoint yet, begin it anew."
    return f"resume with `torchrun ... -m disco_torch discover --resume {folder.path}`."


@dataclass
class _Loop:
    """The loop of one discovery. Everything happens in all processes together; `record` is the first one's alone."""

    folder: DiscoveryFolder
    session: DiscoverySession
    asked_to_stop: Callable[[], bool]
    started: float
    content: dict[str, Any]
    """Of the checkpoint that it goes on from, but for the session's part; empty for a new run."""
    saved_at: int = -1
    """The meta-update of the last checkpoint."""

    def run(self, view: bool) -> DiscoverResult:
        config, session = self.folder.config, self.session
        with ExitStack() as stack:
            record = None
            if session.world.is_first:
                record = stack.enter_context(DiscoveryRecord(self.folder, session, self.content, view))
            while session.counters.meta_updates < config.meta_updates and not session.world.any(self._is_over()):
                session.advance()
                count = session.counters.meta_updates
                if count % config.log_every == 0:
                    metrics = session.read_metrics()
                    if record is not None:
                        record.write(metrics)
                if config.snapshot_every and count % config.snapshot_every == 0:
                    self._snapshot()
                if config.checkpoint_every and count % config.checkpoint_every == 0:
                    self._save(record)
            return self._finish(record)

    def _is_over(self) -> bool:
        """Whether this process has been told to stop, or the time is up."""
        minutes = self.folder.config.minutes
        return self.asked_to_stop() or (minutes > 0 and time.monotonic() - self.started > 60 * minutes)

    def _snapshot(self) -> Path:
        """The rule as it is now, in a rule file."""
        path = self.folder.snapshot(self.session.counters.meta_updates)
        self.session.save_snapshot(path, rule_provenance(self.folder.config, self.session.counters))
        return path

    def _save(self, record: DiscoveryRecord | None) -> None:
        if self.saved_at == self.session.counters.meta_updates:
            return
        state = self.session.state_dict()
        if record is not None:
            assert state is not None
            record.save(state)
        self.saved_at = self.session.counters.meta_updates

    def _finish(self, record: DiscoveryRecord | None) -> DiscoverResult:
        config, session = self.folder.config, self.session
        self._save(record)
        rule = self._snapshot()
        stopped = session.counters.meta_updates < config.meta_updates
        # A last line, behind what a checkpoint keeps: a run that is lengthened goes on as if it had not ended here.
        last = session.read_metrics() if not stopped and session.counters.meta_updates % config.log_every != 0 else None

        def summarize() -> DiscoverResult:
            assert record is not None
            if last is not None:
                record.write(last)
            record.summarize(stopped)
            return DiscoverResult(self.folder.path, rule, self.folder.read_metrics(), stopped)

        return session.world.share(summarize)
