"""Comparisons: tasks x rules x seeds, each run in a process of its own, and a line of a file for each finished one."""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from disco_torch.analysis.records import (
    CURVE_POINTS,
    RANDOM,
    RunRecord,
    append_record,
    area_under_curve,
    binned_curve,
    read_records,
)
from disco_torch.envs import import_modules
from disco_torch.runs import resolve_device
from disco_torch.runs.batch import Outcome, run_batch
from disco_torch.training.bring_your_own import bring
from disco_torch.training.config import TrainConfig
from disco_torch.training.defaults import default_config
from disco_torch.training.evaluation import evaluate
from disco_torch.training.loop import train
from disco_torch.training.trained import load_run
from disco_torch.types import Observations, Params
from disco_torch.weights.configuration import config_from_plain, config_to_plain, flat_config
from disco_torch.weights.registry import check_name_or_file

EVAL_EPISODES = 100
"""Number of evaluation episodes after a run."""
EVAL_SEED = 1_000_003
"""Seed of the evaluation after the run of seed 0; each run has its own, and none is that of a run."""
OWN_SETTINGS = ("seed", "name", "runs", "device", "log_every", "checkpoint_every", "tensorboard", "objects", "rule")
"""Settings that a comparison sets itself."""


@dataclass(frozen=True)
class Task:
    """What to learn.

    Attributes:
      name: for the table.
      env: environment, as `TrainConfig.env`.
      steps: environment steps of training.
      settings: other settings that belong to the task, by dotted name, such as {"env_args.rows": 5}.
    """

    name: str
    env: str
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_settings(self) -> dict[str, Any]:
        return {"env": self.env, **self.settings}


@dataclass(frozen=True)
class Contender:
    """A rule and settings that differ from its defaults, by dotted name, such as {"optimizer.learning_rate": 1e-3}.

    The rule "random" is no rule: actions are drawn uniformly, nothing is learned.
    """

    rule: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def label_of(contender: Contender) -> str:
    """How a rule and its settings are called in tables."""
    settings = {name: config_to_plain(value) for name, value in contender.settings.items()}
    return RunRecord("", contender.rule, 0, 0, 0.0, 0.0, settings).label


def config_with(settings: Mapping[str, Any], rule: str = TrainConfig.rule) -> TrainConfig:
    """The settings of a rule with changes by dotted name; raises where a name or a value does not fit."""
    plain = config_to_plain(default_config(rule))
    for name, value in settings.items():
        *path, last = name.split(".")
        place: Any = plain
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        is_open = path in (["env_args"], ["hyper_params"])  # whose names are the environment's and the rule's
        if not isinstance(place, dict) or (last not in place and not is_open):
            raise ValueError(
                f"`settings` must name settings of `TrainConfig`, such as optimizer.learning_rate, got {name!r}."
            )
        place[last] = config_to_plain(value, name)
    return config_from_plain(TrainConfig, plain, "settings")


def changed_settings(config: TrainConfig, default: TrainConfig | None = None) -> dict[str, Any]:
    """The settings in which a configuration differs from `default`, by dotted name; inverse of `config_with`.

    Without a default, those of the rule.
    """
    before = flat_config(config_to_plain(default or default_config(config.rule)))
    own = flat_config(config_to_plain(config))
    return {name.removeprefix("config."): value for name, value in own.items() if before.get(name, flat_config) != value}


def compare(
    tasks: Sequence[Task],
    contenders: Sequence[Contender],
    seeds: Iterable[int],
    path: Path,
    *,
    processes: int = 1,
    episodes: int = EVAL_EPISODES,
    device: str = "cpu",
    imports: Sequence[str] = (),
    known: Sequence[RunRecord] = (),
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Trains every contender on every task with every seed, and adds a line to a file for each finished run.

    Runs that the file has are not repeated; those that failed are, when this is called again. Before the runs, every
    combination of settings is checked.

    Args:
      tasks, contenders, seeds: what to run.
      path: file of the finished runs, see `disco_torch.analysis.read_records`.
      processes: number of runs at a time, each in a process of one thread.
      episodes: number of evaluation episodes after each run.
      device: device to learn on.
      imports: modules that the processes import first, such as those that register environments.
      known: runs of other files, which are not repeated either.
      say: is told about each run that ends.

    Returns:
      How each run of this call ended.
    """
    for task in tasks:
        for contender in contenders:
            _check(task, contender)
    done = {record.key for record in (*read_records(path), *known)}
    requests = []
    for seed in seeds:  # the first seed of everything first, and long runs first, so that none is left running alone
        for task in sorted(tasks, key=lambda task: -task.steps):
            every = [_request(task, contender, seed, episodes, device, imports) for contender in contenders]
            requests += [request for request in every if _key(request) not in done]
    ended = 0

    def on_end(outcome: Outcome) -> None:
        nonlocal ended
        ended += 1
        asked = outcome.request
        what = f"{ended}/{len(requests)} {asked['task']}, {_blank_record(asked).label}, seed {asked['seed']}"
        if outcome.answer is not None:
            record = RunRecord(**outcome.answer)
            append_record(path, record)
            say(f"{what}: {record.score:.4g} after {record.seconds:.0f} s")
        elif not outcome.stopped:
            say(f"{what} failed: {outcome.error}")

    return run_batch("disco_torch.training.comparison:run_one", requests, processes=processes, on_end=on_end)


def _check(task: Task, contender: Contender) -> None:
    for name in (*task.settings, *contender.settings):
        if name.split(".")[0] in OWN_SETTINGS or (name in ("env", "steps") and name in task.settings):
            raise ValueError(
                f"`settings` must leave {name!r} to the comparison, got it for {task.name} and {contender.rule}."
            )
    if both := sorted({*task.all_settings, "steps"} & set(contender.settings)):
        raise ValueError(
            f"`settings` of the rule {contender.rule} must not be those of the task {task.name}, got {both} in both."
        )
    config = config_with({**task.all_settings, **contender.settings, "steps": task.steps}, contender.rule)
    if contender.rule != RANDOM:
        if contender.rule != TrainConfig.rule:
            check_name_or_file(contender.rule)
        config.with_sizes().check_that_it_learns()


def _request(
    task: Task, contender: Contender, seed: int, episodes: int, device: str, imports: Sequence[str]
) -> dict[str, Any]:
    settings = {name: config_to_plain(value) for name, value in contender.settings.items()}
    task_settings = {name: config_to_plain(value) for name, value in task.all_settings.items()}
    steps = 0 if contender.rule == RANDOM else task.steps
    run = {"task": task.name, "rule": contender.rule, "settings": settings, "task_settings": task_settings}
    return run | {"seed": seed, "steps": steps, "episodes": episodes, "device": device, "imports": list(imports)}


def select_records(records: Sequence[RunRecord], tasks: Sequence[Task], seeds: Iterable[int]) -> list[RunRecord]:
    """The runs of these tasks, as they are defined now, in their order: same settings, same number of steps, these seeds."""
    wanted = set(seeds)
    chosen = []
    for task in tasks:
        settings = {name: config_to_plain(value) for name, value in task.all_settings.items()}
        own = [x for x in records if x.task == task.name and x.task_settings == settings and x.seed in wanted]
        chosen += [x for x in own if x.steps == (0 if x.rule == RANDOM else task.steps)]
    return chosen


def _blank_record(request: Mapping[str, Any]) -> RunRecord:
    names = ("task", "rule", "settings", "task_settings", "seed", "steps")
    return RunRecord(**{name: request[name] for name in names}, score=0.0, area=0.0)


def _key(request: Mapping[str, Any]) -> str:
    return _blank_record(request).key


def run_one(request: Mapping[str, Any]) -> dict[str, Any]:
    """One run of a comparison, in its own process: trains, evaluates and returns the fields of its `RunRecord`."""
    named = [request["task_settings"]["env"], *request["task_settings"].get("wrappers", ())]  # also as "module:name"
    import_modules([*request["imports"], *(name.partition(":")[0] for name in named if ":" in name)])
    record = _blank_record(request)
    settings = {**request["task_settings"], **request["settings"], "seed": request["seed"], "device": request["device"]}
    config = config_with(settings, record.rule)
    if record.rule == RANDOM:
        measured = measure_random(config, request["episodes"])
    else:
        measured = _train_and_evaluate(dataclasses.replace(config, steps=record.steps), request["episodes"])
    return dataclasses.asdict(dataclasses.replace(record, **measured, version=f"disco-torch {_version()}"))


def _train_and_evaluate(config: TrainConfig, episodes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        rollouts = math.ceil(config.steps / config.steps_per_rollout)
        often = max(1, rollouts // CURVE_POINTS)
        config = dataclasses.replace(config, runs=Path(place), log_every=often, checkpoint_every=0, tensorboard=False)
        start = time.perf_counter()
        result = train(config, view=False)
        seconds = time.perf_counter() - start
        if result.stopped and not result.stopped_because:
            raise InterruptedError("the run was stopped before its end")
        lines = [line for line in result.metrics if "interval_return" in line]
        curve = binned_curve([x["steps"] for x in lines], [x["interval_return"] for x in lines], config.steps)
        area = area_under_curve(*curve, config.steps)
        played = load_run(result.folder, config.device).evaluate(episodes, seed=EVAL_SEED + config.seed)
    return {"score": played.interval.mean, "area": area, "curve": curve, "seconds": round(seconds, 1)}


@dataclass(frozen=True)
class UniformAgent:
    """Draws each of `num_actions` actions with the same probability."""

    num_actions: int

    def initial_state(self, batch_size: int) -> None:
        return None

    def act(
        self,
        params: Params,
        observations: Observations,
        generator: torch.Generator | None = None,
        should_reset: Tensor | None = None,
        state: Any = None,
    ) -> tuple[Tensor, Tensor, Any]:
        leaf = should_reset if should_reset is not None else next(iter(observations.values()))
        size = (leaf.shape[0],)
        actions = torch.randint(self.num_actions, size, generator=generator, device=leaf.device)
        return actions, torch.zeros(*size, self.num_actions, device=leaf.device), None


def measure_random(config: TrainConfig, episodes: int) -> dict[str, Any]:
    """The score of a policy that draws actions uniformly; its area under the training curve is the same number."""
    config, objects = bring(config, env=None, agent=None, rule=None, wrappers=None)
    device = resolve_device(config.device)
    env = objects.make_env(config, max(1, min(10, episodes)), device)
    try:
        played = evaluate(UniformAgent(env.num_actions), {}, env, episodes, seed=EVAL_SEED + config.seed)
    finally:
        objects.close(env)
    mean = played.interval.mean
    return {"score": mean, "area": mean}


def _version() -> str:
    return str(sys.modules["disco_torch"].__version__)
