"""All that a discovery writes and shows."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from disco_torch.analysis import Panel, plot_panels
from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.session import DiscoverySession
from disco_torch.training.checkpoint import save_checkpoint
from disco_torch.training.folder import ConfiguredFolder
from disco_torch.training.sinks import JsonlSink, Metrics, Sink, TensorBoardSink
from disco_torch.training.view import LiveView

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
"""The metrics that the live view shows, and as what."""
NORMS = ("meta_grad_norm", "meta_up_norm")
LOSSES = ("meta_loss", "pg_loss", "reg_loss", "entropy", "target_mean", "target_kl")


class DiscoveryFolder(ConfiguredFolder[DiscoverConfig]):
    """The folder of a discovery."""

    kind = DiscoverConfig
    length = "meta_updates"
    run = "discovery"

    @classmethod
    def made_up_name(cls, config: DiscoverConfig) -> str:
        return f"discovery-seed{config.seed}"

    def snapshot(self, meta_updates: int) -> Path:
        """The file of the rule after so many meta-updates."""
        return self.path / "rules" / f"rule-{meta_updates:06d}.safetensors"


class DiscoveryRecord:
    """What the first process writes into the folder and shows, open as long as the discovery runs."""

    def __init__(self, folder: DiscoveryFolder, session: DiscoverySession, content: Mapping[str, Any], view: bool) -> None:
        """`content` is what the checkpoint says that a run goes on from, empty for a new one."""
        self.folder, self.config, self.session, self.view = folder, folder.config, session, view
        self.seconds_before: float = content.get("seconds", 0.0)
        self.started = time.monotonic()
        self.last_line = self.started, dataclasses.replace(session.counters)
        self.jsonl = JsonlSink(folder.metrics, content.get("metrics_bytes"))
        self.sinks: list[Sink] = [self.jsonl]
        if self.config.tensorboard:
            self.sinks.append(TensorBoardSink(folder.path, session.counters.steps or None))
        agents, processes = self.config.num_agents, session.world.size
        shares = f" in {processes} processes" if processes > 1 else ""
        title = f"discovery with {agents} agents{shares}, seed {self.config.seed}, on {session.device}: {folder.path}"
        self.live = LiveView(title, shown=SHOWN)
        self.live.console.print(title, highlight=False, soft_wrap=True)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for sink in self.sinks:
            self._open.callback(sink.close)
        if self.view:
            self._open.enter_context(self.live)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    @property
    def seconds(self) -> float:
        """That the discovery has taken, over all processes that went on with it."""
        return self.seconds_before + time.monotonic() - self.started

    def write(self, measured: Mapping[str, float]) -> None:
        """A line of metrics. Speeds are since the last line: what the first meta-update takes to compile is soon past."""
        now, counters, (before, start) = time.monotonic(), self.session.counters, self.last_line
        self.last_line = now, dataclasses.replace(counters)
        seconds = max(now - before, 1e-9)
        per_second = (counters.meta_updates - start.meta_updates) / seconds
        metrics: Metrics = {
            **dataclasses.asdict(counters),
            "seconds": self.seconds,
            "steps_per_second": (counters.steps - start.steps) / seconds,
            "meta_updates_per_second": per_second,
            "minutes_left": (self.config.meta_updates - counters.meta_updates) / max(per_second, 1e-9) / 60,
            **measured,
        }
        for sink in self.sinks:
            sink.write(metrics)
        self.live.show(metrics)

    def save(self, state: dict[str, Any]) -> None:
        """A checkpoint."""
        content = {
            "session": state,
            "config": json.dumps(self.folder.plain_config()),
            "metrics_bytes": self.jsonl.position(),
            "seconds": self.seconds,
        }
        count = self.session.counters.meta_updates
        save_checkpoint(self.folder.checkpoints, count, content, self.config.keep_checkpoints)

    def summarize(self, stopped: bool) -> None:
        """The picture and the summary of the run so far."""
        lines = self.folder.read_metrics()
        plot_panels(discovery_panels(lines), self.folder.curve, xlabel="meta-updates", title=self.folder.path.name)
        returns = {name: value for name, value in final_returns(lines).items() if math.isfinite(value)}
        counters = dataclasses.asdict(self.session.counters)
        rule = str(self.folder.snapshot(self.session.counters.meta_updates).relative_to(self.folder.path))
        summary = {"seconds": self.seconds, "rule": rule, "final_returns": returns, "finished": not stopped}
        self.folder.write_summary(counters | summary)


def final_returns(lines: Sequence[Metrics]) -> dict[str, float]:
    """Mean return by environment, as the last line of metrics has it."""
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
