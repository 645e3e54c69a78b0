"""`train`: a run from its configuration to its folder of results."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from disco_torch.analysis import plot_curves
from disco_torch.envs import EnvironmentFailure
from disco_torch.training.checkpoint import load_checkpoint, save_checkpoint
from disco_torch.training.config import TrainConfig
from disco_torch.training.folder import RunFolder
from disco_torch.training.schedule import learning_rate
from disco_torch.training.session import TrainingSession, resolve_rule
from disco_torch.training.sinks import JsonlSink, Metrics, ServiceSink, Sink, TensorBoardSink, import_service
from disco_torch.training.stopping import stop_signals
from disco_torch.training.view import LiveView
from disco_torch.weights import default_hyper_params


class TrainingDiverged(RuntimeError):
    """The loss is not a number any more."""


@dataclass(frozen=True)
class TrainResult:
    """What a run ended with. `stopped` says that it was asked to end before its last step."""

    folder: Path
    metrics: list[Metrics]
    stopped: bool

    @property
    def final_return(self) -> float:
        """Mean return of the last episodes, NaN if none has ended."""
        return self.metrics[-1].get("return", float("nan")) if self.metrics else float("nan")


def train(config: TrainConfig | None = None, *, resume: Path | str | None = None, view: bool = True) -> TrainResult:
    """Trains an agent and writes a folder with everything about it.

    Args:
      config: of a new run; when resuming, its `steps` may lengthen the run, its `device` and `speed` move it.
      resume: the folder of a run to go on with, with its own configuration.
      view: show the live view, where there is a terminal.
    """
    if resume is not None:
        folder = RunFolder.open(Path(resume), extend_to=None if config is None else config.steps)
        if config is not None:
            moved = {name: getattr(config, name) for name in ("device", "speed") if getattr(config, name) != "auto"}
            folder = folder.with_settings(**moved)
        content = load_checkpoint(folder.checkpoints)
        session = TrainingSession(folder.config)
        session.load_state_dict(content["session"])
        return _Loop(folder, session, content["seconds"], content["metrics_bytes"]).run(view)
    config = config or TrainConfig()
    rule = resolve_rule(config.rule)
    hyper_params = default_hyper_params(rule) | config.hyper_params
    config = dataclasses.replace(config, rule=rule, hyper_params=hyper_params)
    for module in config.services:
        import_service(module)
    session = TrainingSession(config)  # before the folder: what cannot be built leaves none behind
    return _Loop(RunFolder.create(config), session).run(view)


class _Loop:
    """The loop of one run."""

    def __init__(
        self, folder: RunFolder, session: TrainingSession, seconds_before: float = 0.0, metrics_bytes: int | None = None
    ) -> None:
        self.folder, self.config, self.session = folder, folder.config, session
        self.seconds_before = seconds_before
        self.jsonl = JsonlSink(folder.metrics, metrics_bytes)
        self.started = time.monotonic()
        self.start_counters = dataclasses.replace(session.counters)

    def run(self, view: bool) -> TrainResult:
        session, config = self.session, self.config
        title = f"{config.env} with {config.rule}, seed {config.seed}, on {session.device}: {self.folder.path}"
        size = session.replay.num_bytes / 2**20
        live = LiveView(title)
        live.console.print(f"{title} (replay {size:.1f} MiB)", highlight=False, soft_wrap=True)
        with ExitStack() as stack:
            stack.callback(session.env.close)
            sinks = self._sinks()
            for sink in sinks:
                stack.callback(sink.close)
            asked_to_stop = stack.enter_context(stop_signals())
            if view:
                stack.enter_context(live)
            while session.counters.steps < config.steps and not asked_to_stop():
                try:
                    self._advance()
                except EnvironmentFailure:
                    if asked_to_stop():  # Ctrl-C in a terminal ends the environment's processes too
                        break
                    raise
                if session.counters.rollouts % config.log_every == 0:
                    metrics = self._metrics()
                    for sink in sinks:
                        sink.write(metrics)
                    live.show(metrics)
                if config.checkpoint_every and session.counters.rollouts % config.checkpoint_every == 0:
                    self._save()
            self._save()
            finished = session.counters.steps >= config.steps
            # A last line, behind what a checkpoint keeps: a run that is lengthened goes on as if it had not ended here.
            if finished and session.counters.rollouts % config.log_every != 0:
                self.jsonl.write(self._metrics())
        return self._finish(stopped=not finished)

    def _sinks(self) -> list[Sink]:
        config = self.config
        sinks: list[Sink] = [self.jsonl]
        if config.tensorboard:
            sinks.append(TensorBoardSink(self.folder.path, self.start_counters.steps or None))
        for module, project in config.services.items():
            sinks.append(ServiceSink(module, project, self.folder.path.name, self.folder.plain_config()))
        return sinks

    def _advance(self) -> None:
        """One rollout; if the environment fails in it, the state from before it is saved first."""
        generator = self.session.generator.get_state()
        try:
            self.session.advance()
        except EnvironmentFailure:
            self.session.generator.set_state(generator)
            self._save()
            raise

    def _metrics(self) -> Metrics:
        session, counters = self.session, self.session.counters
        finished = session.read_episodes()
        seconds = time.monotonic() - self.started
        per_second = (counters.steps - self.start_counters.steps) / seconds
        metrics: Metrics = {
            "steps": counters.steps,
            "updates": counters.updates,
            "episodes": counters.episodes,
            "seconds": self.seconds_before + seconds,
            "steps_per_second": per_second,
            "updates_per_second": (counters.updates - self.start_counters.updates) / seconds,
            "minutes_left": (self.config.steps - counters.steps) / max(per_second, 1e-9) / 60,
            "learning_rate": learning_rate(self.config, counters.steps),
            "interval_episodes": len(finished),
        }
        if session.recent:
            metrics["return"] = sum(numbers[0] for numbers in session.recent) / len(session.recent)
            metrics["length"] = sum(numbers[1] for numbers in session.recent) / len(session.recent)
        if finished:
            metrics["interval_return"] = sum(numbers[0] for numbers in finished) / len(finished)
        self._check_finite()
        logs = session.logs
        numbers = torch.stack(list(logs.values())).tolist() if logs else []  # one transfer from the device
        return metrics | dict(zip(logs, numbers, strict=True))

    def _check_finite(self) -> None:
        """Raises where learning has diverged, before a checkpoint or a line of metrics would hold it."""
        loss = self.session.logs.get("total_loss")
        if loss is not None and not math.isfinite(float(loss)):
            steps, rate = self.session.counters.steps, self.config.optimizer.learning_rate
            raise TrainingDiverged(
                f"the loss must be finite, got {float(loss)} at step {steps} with learning rate {rate}; lower the learning "
                f"rate. The checkpoints in {self.folder.checkpoints} are from before."
            )

    def _save(self) -> None:
        self._check_finite()
        content = {
            "session": self.session.state_dict(),
            "config": json.dumps(self.folder.plain_config()),
            "metrics_bytes": self.jsonl.position(),
            "seconds": self.seconds_before + time.monotonic() - self.started,
        }
        save_checkpoint(self.folder.checkpoints, self.session.counters.rollouts, content, self.config.keep_checkpoints)

    def _finish(self, stopped: bool) -> TrainResult:
        metrics = self.folder.read_metrics()
        result = TrainResult(self.folder.path, metrics, stopped)
        with_return = [line for line in metrics if "return" in line]
        if with_return:
            curve = ([line["steps"] for line in with_return], [line["return"] for line in with_return])
            plot_curves({self.config.rule: [curve]}, self.folder.curve, title=self.config.env)
        self.folder.write_summary(
            {
                **dataclasses.asdict(self.session.counters),
                "seconds": self.seconds_before + time.monotonic() - self.started,
                "final_return": None if math.isnan(result.final_return) else result.final_return,
                "finished": not stopped,
            }
        )
        return result
