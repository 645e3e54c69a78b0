"""`train`: a run from its configuration to its folder of results."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from torch import nn

from disco_torch.agents import AgentConfig, describe_torso
from disco_torch.analysis import plot_curves
from disco_torch.envs import EnvironmentFailure, EnvSource, Wrapper
from disco_torch.rules import UpdateRule
from disco_torch.runs import (
    Callback,
    Metrics,
    ServiceSink,
    Sink,
    World,
    checked_config,
    close_in_time,
    configure_process,
    import_service,
    one_cpu_thread,
    restoring,
    run_lock,
    stop_signals,
)
from disco_torch.training import ranks
from disco_torch.training.bring_your_own import (
    bring,
    bring_again,
    check_num_envs,
    describe_env,
    fields_of_object,
    warn_about_images,
)
from disco_torch.training.config import TrainConfig
from disco_torch.training.defaults import chosen_settings, default_config, resolve_rule
from disco_torch.training.folder import RULE_COPY, RunFolder
from disco_torch.training.session import TrainingSession
from disco_torch.training.settings import resumed_fields, with_fields
from disco_torch.training.watching import WatchedLoop
from disco_torch.weights import default_hyper_params
from disco_torch.weights.files import format_of_content
from disco_torch.weights.hub import refuse_hub_name
from disco_torch.weights.registry import rule_path

SHOWN = {
    "steps": "environment steps",
    "steps_per_second": "steps/s",
    "updates_per_second": "updates/s",
    "episodes": "episodes",
    "return": "mean return of recent episodes",
    "length": "mean length of recent episodes",
    "eval_return": "mean return of the last evaluation",
    "total_loss": "loss",
    "entropy": "policy entropy",
    "learning_rate": "learning rate",
    "minutes_left": "minutes left",
}
"""Metrics that the live view shows, and their labels."""


@dataclass(frozen=True)
class TrainResult:
    """What a run ended with.

    Attributes:
      folder: folder of the run.
      metrics: its lines of metrics; those of evaluations have `eval_return`, the others `return`.
      stopped: whether it was stopped before its last step.
      stopped_because: why, where it was not a signal: the target return, or a callback.
      warnings: what speaks against the agent having learned.
      best_return: mean return of the best evaluation, NaN if there was none; its agent is in checkpoints/best.pt.
    """

    folder: Path
    metrics: list[Metrics]
    stopped: bool
    stopped_because: str = ""
    warnings: list[str] = field(default_factory=list)
    best_return: float = math.nan

    @property
    def final_return(self) -> float:
        """Mean return of the last episodes, NaN if none has ended."""
        return final_return(self.metrics)


def final_return(lines: list[Metrics]) -> float:
    return next((line["return"] for line in reversed(lines) if "return" in line), math.nan)


def train(
    config: TrainConfig | None = None,
    *,
    env: EnvSource | None = None,
    agent: AgentConfig | nn.Module | None = None,
    rule: str | UpdateRule | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    resume: Path | str | None = None,
    view: bool = True,
    callbacks: Sequence[Callback] = (),
    **fields: Any,
) -> TrainResult:
    """Trains an agent and writes a folder with everything about it.

    All processes that `torchrun` started call it with the same arguments; each has a share of the environments, and the
    first one writes.

    Args:
      config: settings of a new run; defaults to those of its rule, see `default_config`. When resuming, its `steps` may
        lengthen the run, its `device`, `replay_device` and `speed` move it, and its `target_return` replaces that of the
        run.
      env: environment: a name or an id; a function that returns a Gymnasium environment, or "module:function"; a vector
        environment of Gymnasium; or an `Environment`.
      agent: network: an `AgentConfig`; a torso, any module `f(observations) -> [T, B, F]`; or a whole `Agent`.
      rule: update rule: a name or a file, or an `UpdateRule`.
      wrappers: put around each Gymnasium environment, the first innermost: functions and classes, or "module:Name".
      resume: folder of a run to continue, with its own configuration, on any number of processes. What it was given as
        objects is passed again.
      view: show how far the run is: live in a terminal, else in a line every ten seconds or less often.
      callbacks: code of your own that is called during the run and may stop it, see `disco_torch.runs.Callback`.
      fields: other fields of `TrainConfig`, laid over `config`.
    """
    with ExitStack() as stack:
        world = stack.enter_context(World.from_environment(ranks.PATIENCE))
        content: dict[str, Any] = {}
        chosen: list[str] = []
        asked_to_stop: Callable[[], bool] = bool  # nobody, until the loop begins
        if resume is not None:
            folder, content = world.share(lambda: _resumed(Path(resume), config, fields, stack))
            stack.enter_context(ranks.saying_how_to_resume(folder.checkpoints))
            settings = folder.config
            objects = bring_again(settings, env=env, agent=agent, rule=rule, wrappers=wrappers)
            objects = dataclasses.replace(objects, rule_file=world.share(lambda: folder.rule_file))
        else:
            if config is None and not isinstance(rule, UpdateRule):
                config = default_config(rule if isinstance(rule, str) else "auto")
            settings = with_fields(config, fields_of_object(env, world.size) | fields)
            settings, objects = bring(settings, env=env, agent=agent, rule=rule, wrappers=wrappers, processes=world.size)
            settings = checked_config(settings)
            check_num_envs(settings, fields)
            chosen, settings = [chosen_settings(settings)], world.share(lambda: _resolved(settings))
        objects.check_evaluation(settings)
        configure_process(world.device(settings.device))
        session = TrainingSession(settings, objects, world)  # before the folder: what cannot be built leaves none behind
        stack.callback(lambda: close_in_time(session.close, asked_to_stop))
        if settings.minibatches > 1 and session.agent.config.torso in ("mlp", "board"):
            stack.enter_context(one_cpu_thread())
        if resume is None:
            if settings.agent.torso == "auto":
                chosen.append(describe_torso(session.agent.config, session.agent.torso))
            session.config = settings = describe_env(session.config, session.env)
            if world.is_first:
                warn_about_images(settings, objects, session.env.observation_example, session.replay.num_bytes)
            folder = world.share(lambda: _created(settings, stack))
            stack.enter_context(ranks.saying_how_to_resume(folder.checkpoints))
        elif content:
            with restoring(folder.checkpoints):
                session.load_state_dict(content.pop("session"))
        asked_to_stop = stack.enter_context(stop_signals())
        loop = TrainingLoop(folder, session, asked_to_stop, content, world, callbacks=callbacks)
        for line in filter(None, chosen if view and world.is_first else []):
            Console().print(line, highlight=False, soft_wrap=True, markup=False)
        stack.callback(close_in_time, loop.evaluation.close, asked_to_stop)
        stopped = loop.run(view)
        return world.share(lambda: _result(loop, stopped))


def _result(loop: TrainingLoop, stopped: bool) -> TrainResult:
    best = loop.best["eval_return"] if loop.best is not None else math.nan
    reason = loop.stop_reason if stopped else ""
    return TrainResult(loop.folder.path, loop.folder.read_metrics(), stopped, reason, loop.warnings, best)


def _created(config: TrainConfig, stack: ExitStack) -> RunFolder:
    """A new folder with a copy of the rule's file, locked until the stack is closed. The first process makes it."""
    source = None if config.objects.rule else rule_path(config.rule)

    def copy_rule(folder: Path) -> None:
        if source is not None:
            shutil.copyfile(source, folder / f"{RULE_COPY}.{format_of_content(source)}")

    folder = RunFolder.create(config, copy_rule)
    stack.enter_context(run_lock(folder.path))
    return folder


def _resumed(
    path: Path, config: TrainConfig | None, fields: Mapping[str, Any], stack: ExitStack
) -> tuple[RunFolder, dict[str, Any]]:
    """The folder of a run to continue, with the settings that may change, and its newest checkpoint.

    It is locked until the stack is closed.
    """
    refuse_hub_name(path, "resume")
    folder = RunFolder.open(path)
    stack.enter_context(run_lock(path))
    if fields:
        config = with_fields(folder.config if config is None else config, resumed_fields(fields))
    if config is not None:
        config = checked_config(config)
        places = {name: getattr(config, name) for name in ("device", "speed", "replay_device")}
        moved: dict[str, Any] = {name: place for name, place in places.items() if place != "auto"}
        if config.target_return is not None:
            moved["target_return"] = config.target_return
        folder = RunFolder.open(path, extend_to=config.steps).with_settings(**moved)
    return folder, folder.content_to_resume()


def _resolved(config: TrainConfig) -> TrainConfig:
    """A configuration with the rule by its name or whole path, and its recommended hyper-parameters."""
    config = config.with_sizes()
    config.check_that_it_learns()
    for module in config.services:
        import_service(module)
    if config.objects.rule:
        return config
    rule = resolve_rule(config.rule)
    return dataclasses.replace(config, rule=rule, hyper_params=default_hyper_params(rule) | config.hyper_params)


class TrainingLoop(WatchedLoop):
    """The loop of a training run; `WatchedLoop` has what it looks at."""

    counter = "rollouts"
    throughputs: ClassVar = {"steps": "steps_per_second", "updates": "updates_per_second"}
    shown = SHOWN
    in_lines: ClassVar = {"return": "return", "eval_return": "evaluation"}
    resume_command = "disco-torch train --resume"

    def title(self) -> str:
        config, replay, processes = self.folder.config, self.session.replay, self.world.size
        size = processes * replay.num_bytes / 2**20
        place = "" if replay.device == self.session.device else f" on {replay.device}"
        shares = f" in {processes} processes" if processes > 1 else ""
        what = f"{config.env} with {config.rule}{shares}, seed {config.seed}, on {self.session.device}"
        return f"{what}: {self.folder.path} (replay {size:.1f} MiB{place})"

    def services(self) -> list[Sink]:
        name, plain = self.folder.path.name, self.folder.plain_config()
        return [ServiceSink(module, project, name, plain) for module, project in self.folder.config.services.items()]

    def advance(self) -> None:
        """One rollout; if the environment fails in it, the state from before it is saved."""
        generator = self.session.generator.get_state()
        try:
            self.session.advance()
        except EnvironmentFailure:
            self.session.generator.set_state(generator)
            if self.world.any(self.asked_to_stop()):  # Ctrl-C in a terminal ends the environment's processes, too
                return
            self.save()
            raise

    def summarize(self, lines: list[Metrics]) -> dict[str, Any]:
        config, points = self.folder.config, [line for line in lines if "return" in line]
        if points:
            curve = ([line["steps"] for line in points], [line["return"] for line in points])
            plot_curves({config.rule: [curve]}, self.folder.curve, title=config.env)
        last = final_return(lines)
        return {"final_return": None if math.isnan(last) else last, **self.findings()}
