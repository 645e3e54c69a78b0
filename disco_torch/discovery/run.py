"""`discover`: a discovery from its configuration to its folder of results, in one process or several."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from disco_torch.analysis import Panel, plot_panels
from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.discovery.host_environments import modules_of
from disco_torch.discovery.provenance import rule_provenance
from disco_torch.discovery.session import DiscoverySession
from disco_torch.envs import EnvironmentFailure
from disco_torch.runs import (
    Callback,
    Metrics,
    ProcessLost,
    RunLoop,
    World,
    checked_config,
    configure_process,
    restoring,
    run_lock,
    stop_signals,
)
from disco_torch.runs.checkpoint import list_checkpoints
from disco_torch.training.defaults import resolve_rule
from disco_torch.weights.hub import refuse_hub_name

SHOWN = {
    "meta_updates": "meta-updates",
    "steps": "environment steps",
    "steps_per_second": "steps/s",
    "meta_updates_per_second": "meta-updates/s",
    "lives": "lives of agents",
    "return/": "mean return, ",
    "meta_loss": "meta-loss",
    "meta_grad_norm": "norm of the meta-gradient",
    "meta_up_norm": "norm of the rule's update",
    "entropy": "policy entropy",
    "target_kl": "KL to the policy targets",
    "nonfinite": "meta-gradients that were not finite",
    "minutes_left": "minutes left",
}
"""Metrics that the live view shows, and their labels."""
NORMS = ("meta_grad_norm", "meta_up_norm")
LOSSES = ("meta_loss", "pg_loss", "reg_loss", "entropy", "target_mean", "target_kl")


@dataclass(frozen=True)
class DiscoverResult:
    """What a discovery ended with. `stopped` says that it was stopped before its last meta-update."""

    folder: Path
    rule: Path
    """The last snapshot of the rule."""
    metrics: list[Metrics]
    stopped: bool
    stopped_because: str = ""
    """Why it was stopped, where a callback asked for it."""

    @property
    def final_returns(self) -> dict[str, float]:
        """Mean return by environment, as in the last metrics."""
        return final_returns(self.metrics)


def discover(
    config: DiscoverConfig | None = None,
    *,
    resume: Path | str | None = None,
    view: bool = True,
    callbacks: Sequence[Callback] = (),
) -> DiscoverResult:
    """Discovers a rule and writes a folder with everything about it.

    All processes that `torchrun` started call it with the same arguments; each has
    a share of the agents, and the first one writes.

    Args:
      config: settings of a new discovery; when resuming, its `meta_updates` may lengthen the discovery, its `device` and
        `speed` move it, and its `minutes` replace those of the discovery.
      resume: folder of a discovery to continue, with its own configuration, on any number of processes.
      view: show how far the discovery is: live in a terminal, else in a line every ten seconds or less often.
      callbacks: code of your own that is called after each meta-update and may stop the discovery, see
        `disco_torch.runs.Callback`.
    """
    started, folder = time.monotonic(), None
    with ExitStack() as stack:
        asked_to_stop = stack.enter_context(stop_signals())
        world = stack.enter_context(World.from_environment())
        content: dict[str, Any] = {}
        try:
            if resume is not None:
                folder, content = world.share(lambda: _resumed(Path(resume), config, stack))
                # All of the rule is in the checkpoint: the file that it was fine-tuned from may be gone.
                settings = dataclasses.replace(folder.config, start="") if content else folder.config
            else:
                settings = checked_config(config or DiscoverConfig())
                settings = dataclasses.replace(settings, start=resolve_rule(settings.start) if settings.start else "")
            configure_process(world.device(settings.device))
            # Before the folder: what cannot be built leaves none behind.
            session = DiscoverySession(settings, world, imports_names=resume is None)
            stack.callback(session.close)
            if folder is None:
                folder = world.share(lambda: _created(settings, stack))
            elif content:
                with restoring(folder.checkpoints):
                    session.load_state_dict(content.pop("session"))
            loop = DiscoveryLoop(folder, session, asked_to_stop, content, world, started, callbacks)
            stopped = loop.run(view)
            rule = folder.snapshot(session.counters.meta_updates)
            reason = loop.stop_reason if stopped else ""
            return DiscoverResult(folder.path, rule, world.share(folder.read_metrics), stopped, reason)
        except ProcessLost as error:
            raise ProcessLost(f"{error}; {_how_to_resume(folder)}") from error


def _created(config: DiscoverConfig, stack: ExitStack) -> DiscoveryFolder:
    """A new folder, locked until the stack is closed. The first process makes it."""
    folder = DiscoveryFolder.create(config)
    stack.enter_context(run_lock(folder.path))
    return folder


def _resumed(path: Path, config: DiscoverConfig | None, stack: ExitStack) -> tuple[DiscoveryFolder, dict[str, Any]]:
    """The folder of a discovery to continue, locked until the stack is closed, and its newest checkpoint."""
    refuse_hub_name(path, "resume")
    folder = DiscoveryFolder.open(path)
    stack.enter_context(run_lock(path))
    if config is not None:
        config = checked_config(config)
        moved = {name: getattr(config, name) for name in ("device", "speed") if getattr(config, name) != "auto"}
        folder = DiscoveryFolder.open(path, extend_to=config.meta_updates)
        folder = folder.with_settings(minutes=config.minutes, **moved)
    return folder, folder.content_to_resume()


def _how_to_resume(folder: DiscoveryFolder | None) -> str:
    if folder is None or not list_checkpoints(folder.checkpoints):
        return "it had not written a checkpoint yet, start it again."
    return f"resume with `torchrun ... -m disco_torch discover --resume {folder.path}`."


class DiscoveryLoop(RunLoop[DiscoveryFolder, DiscoverySession]):
    """The loop of a discovery."""

    counter = "meta_updates"
    throughputs: ClassVar = {"steps": "steps_per_second", "meta_updates": "meta_updates_per_second"}
    shown = SHOWN
    in_lines: ClassVar = {"return/": "return on ", "meta_loss": "meta-loss"}
    resume_command = "disco-torch discover --resume"

    def title(self) -> str:
        config, processes = self.folder.config, self.world.size
        shares = f" in {processes} processes" if processes > 1 else ""
        what = f"discovery with {config.num_agents} agents{shares}, seed {config.seed}, on {self.session.device}"
        return f"{what}: {self.folder.path}"

    def seconds_to_limit(self) -> float:
        minutes = self.folder.config.minutes
        return 60 * minutes - (time.monotonic() - self.started) if minutes > 0 else math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        self._first_count = self.count

    def activity(self) -> str:
        """Recordings are made in the first meta-update of a process."""
        if self.count > self._first_count:
            return ""
        speed = self.session.speed
        made = "compiling" if speed.compile else "recording" if speed.trace else ""
        return f"{made} and making the first meta-update" if made else "making the first meta-update"

    def advance(self) -> None:
        """One meta-update; if an environment fails in it, the meta-update is lost and the state is saved."""
        try:
            self.session.advance()
        except EnvironmentFailure as error:
            if self.world.any(self.asked_to_stop()):  # Ctrl-C in a terminal ends the environments' processes, too
                return
            self.save()
            imports = "".join(f" --import {module}" for module in modules_of(self.folder.config))
            how = f"`{self.resume_command} {self.folder.path}{imports}`"
            raise EnvironmentFailure(f"{error} The state is saved; continue with {how}.") from error.__cause__

    def write_others(self, is_last: bool) -> None:
        """A snapshot of the rule as it is now, in a rule file."""
        every = self.folder.config.snapshot_every
        if is_last or (every and self.count % every == 0):
            with self.writing("a snapshot"):
                provenance = rule_provenance(self.folder.config, self.session.counters)
                self.session.save_snapshot(self.folder.snapshot(self.count), provenance)

    def summarize(self, lines: list[Metrics]) -> dict[str, Any]:
        plot_panels(discovery_panels(lines), self.folder.curve, xlabel="meta-updates", title=self.folder.path.name)
        returns = {name: value for name, value in final_returns(lines).items() if math.isfinite(value)}
        rule = self.folder.snapshot(self.count).relative_to(self.folder.path)
        return {"rule": str(rule), "final_returns": returns}


def final_returns(lines: Sequence[Metrics]) -> dict[str, float]:
    """Mean return by environment, as in the last line of metrics."""
    last = lines[-1] if lines else {}
    return {name.removeprefix("return/"): value for name, value in last.items() if name.startswith("return/")}


def discovery_panels(lines: Sequence[Metrics]) -> list[Panel]:
    """What to watch: do agents learn, does the rule move, do its targets stay in bounds."""
    names = list(dict.fromkeys(name for line in lines for name in line))

    def curve(name: str) -> tuple[list[float], list[float]]:
        points = [(line["meta_updates"], line[name]) for line in lines if name in line]
        return [point[0] for point in points], [point[1] for point in points]

    returns = {name.removeprefix("return/"): curve(name) for name in names if name.startswith("return/")}
    return [
        Panel("episode return", returns),
        Panel("norms", {name: curve(name) for name in NORMS if name in names}, log_scale=True),
        Panel("meta-loss and its parts", {name: curve(name) for name in LOSSES if name in names}),
    ]
