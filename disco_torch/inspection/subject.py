"""The agent that a rule is looked at with: one that has learned with it for a while, here or in a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from disco_torch.data import act_rows, agent_step, collect, init_actor, memory_resets
from disco_torch.envs import EnvSource
from disco_torch.inspection.case import RuleCase, make_case
from disco_torch.inspection.lifetime import lifetime_memory
from disco_torch.rules import UpdateRule
from disco_torch.runs import restoring, unpack
from disco_torch.runs.checkpoint import list_checkpoints
from disco_torch.training.bring_your_own import bring, bring_again
from disco_torch.training.defaults import default_config, resolve_rule
from disco_torch.training.folder import RunFolder
from disco_torch.training.recorded_update import Learning
from disco_torch.training.session import TrainingSession
from disco_torch.training.settings import with_fields
from disco_torch.types import Rollout, tree_map
from disco_torch.weights import default_hyper_params
from disco_torch.weights.hub import refuse_hub_name
from disco_torch.weights.registry import check_name_or_file

TRAJECTORIES = 32
"""Number of trajectories that targets are computed for."""
MAX_ROWS = 64
"""Largest number of rows of a trajectory; those of longer rollouts are cut."""
AGES = 24
"""Number of ages at which the lifetime memory is kept."""
SEED_OF_DATA = 1_000_003
"""Added to the seed: what is looked at is not what was learned from."""


@dataclass(frozen=True)
class Subject:
    """An agent that has learned with a rule.

    Attributes:
      rule: name of the rule.
      session: the run in memory, with agent, rule and their states.
      memories: number of updates -> the rule's lifetime memory then; empty for a rule without one.
    """

    rule: str
    session: TrainingSession
    memories: dict[int, Any]

    def case(self, rollout: Rollout) -> RuleCase:
        """The case of the agent as it is now on a raw rollout, [T+1, B] rows."""
        session = self.session
        if session.normalizer is not None and session.snapshot is not None:
            rollout = session.normalizer.normalize_rollout(session.snapshot, rollout)
        state, value_out = session.learner_state, None
        if session.value_function is not None and session.value_state is not None:
            out, _ = session.agent.unroll(state.params, rollout.observations, memory_resets(rollout), rollout.first_state)
            value_out = session.value_function.estimate(session.value_state, rollout, out["logits"])[0]
        return make_case(session.learner, state.params, state.meta_state, rollout, value_out)

    def learned_rollout(self, seed: int) -> Rollout | None:
        """Trajectories as an update gets them, new and replayed ones, [T+1, B] rows; None where the replay has too few."""
        session = self.session
        if len(session.replay) < TRAJECTORIES:
            return None
        generator = torch.Generator(session.device).manual_seed(seed + SEED_OF_DATA)
        fresh = min(session.config.num_envs, TRAJECTORIES // 2)
        return first_rows(session.replay.sample(TRAJECTORIES, generator, fresh), MAX_ROWS)

    def new_rollout(self, rows: int, num_envs: int, seed: int) -> Rollout:
        """A rollout in new environments, [rows, B]; in those of a run's own object as many as it has."""
        session = self.session
        env = session.objects.make_env(session.config, num_envs, session.device)
        try:
            generator = torch.Generator(session.device).manual_seed(seed + SEED_OF_DATA)
            agent, params = session.acting_agent(), session.learner_state.params
            actor = init_actor(agent, env, generator)
            return collect(agent, params, env, actor, rows, generator, session.config.first_steps)[0]
        finally:
            session.objects.close(env)

    def recorded_rollout(self, rows: int, seed: int) -> tuple[Rollout, list[np.ndarray]]:
        """A rollout of one environment, [rows, 1], and the picture of each row; no pictures where it draws none."""
        session = self.session
        env = session.objects.recording_env(session.config, session.device)
        try:
            generator = torch.Generator(session.device).manual_seed(seed + SEED_OF_DATA)
            agent, params = session.acting_agent(), session.learner_state.params
            plain = agent_step(agent, params, env, generator, executed=session.config.first_steps)
            frames: list[np.ndarray | None] = []

            def step(actor: Any, x: Any) -> Any:
                frames.append(env.render(actor.env_state))
                return plain(actor, x)

            actor = init_actor(agent, env, generator)
            _, (rollout, _) = act_rows(step, actor, range(rows))
            first = tree_map(lambda x: x[:, :1], dataclasses.replace(rollout, first_state=None))
            memory = tree_map(lambda x: x[:1], actor.memory)
        finally:
            session.objects.close(env)
        pictures = [frame for frame in frames if frame is not None]
        return dataclasses.replace(first, first_state=memory), pictures if len(pictures) == rows else []

    @property
    def mean_return(self) -> float:
        """Mean return of the last episodes of training; NaN if none has ended."""
        self.session.read_episodes()
        returns = [numbers[0] for numbers in self.session.episodes.recent]
        return sum(returns) / len(returns) if returns else math.nan

    def close(self) -> None:
        self.session.objects.close(self.session.env)


def first_rows(rollout: Rollout, rows: int) -> Rollout:
    """The first rows of a rollout, or all where it has no more."""
    cut = tree_map(lambda x: x[:rows], dataclasses.replace(rollout, first_state=None))
    return dataclasses.replace(cut, first_state=rollout.first_state)


def train_subject(
    rule: str | UpdateRule, env: EnvSource = "catch", *, say: Callable[[str], None] = print, **fields: Any
) -> Subject:
    """Trains an agent in memory, with the settings of the rule.

    Args:
      rule: a name or a file, or an `UpdateRule`.
      env: as `train` takes it.
      say: is told now and then how far the training is.
      fields: fields of `TrainConfig`, such as `steps` and `seed`, laid over the settings of the rule.
    """
    named = resolve_rule(rule) if isinstance(rule, str) else type(rule).__name__
    settings = with_fields(default_config(named), {"speed": "plain"} | fields)
    config, objects = bring(settings, env=env, agent=None, rule=rule, wrappers=None)
    if isinstance(rule, str):
        config = dataclasses.replace(config, rule=named, hyper_params=default_hyper_params(named) | config.hyper_params)
    config = config.with_sizes()
    config.check_that_it_learns()
    session = TrainingSession(config, objects)
    rollouts = math.ceil(config.steps / config.steps_per_rollout)
    often = max(1, rollouts // AGES)
    subject = Subject(Path(named).stem, session, _memory_now(session))
    for i in range(1, rollouts + 1):
        session.advance()
        if i % often == 0 or i == rollouts:
            subject.memories.update(_memory_now(session))
            say(f"{session.counters.steps:,} of {config.steps:,} steps, mean return {subject.mean_return:.4g}")
    if (problem := session.not_finite()) is not None:
        raise ValueError(f"the agent that is looked at must have learned, but {problem}; lower the learning rate.")
    return subject


def _memory_now(session: TrainingSession) -> dict[int, Any]:
    memory = lifetime_memory(session.learner_state.meta_state)
    return {} if memory is None else {session.counters.updates: memory}


def load_subject(
    rule: str | UpdateRule,
    run: Path | str,
    *,
    checkpoint: str | int = "newest",
    env: EnvSource | None = None,
    device: str = "cpu",
) -> Subject:
    """The agent of a run; the ages of its rule's lifetime memory are those of the run's checkpoints up to this one.

    Args:
      rule: the rule of the run, which must be that of its configuration.
      run: folder of the run.
      checkpoint: as `load_run` takes it: "newest", "best" or a number of rollouts.
      env: the environment, where the run was given an object.
      device: device to compute on.
    """
    refuse_hub_name(run, "run")
    folder = RunFolder.open(Path(run)).with_settings(device=device, speed="plain")
    own = folder.config.rule
    if isinstance(rule, str) and resolve_rule(rule) != own:
        raise ValueError(f"`rule` must be that of the run {run}, {own}, got {rule!r}; an agent has the outputs of its rule.")
    objects = bring_again(folder.config, env=env, rule=rule if isinstance(rule, UpdateRule) else None)
    objects = dataclasses.replace(objects, rule_file=folder.rule_file)
    if isinstance(rule, str) and folder.rule_file is None:
        check_name_or_file(own)
    content = folder.load_checkpoint(checkpoint)["session"]
    session = TrainingSession(folder.config, objects)
    subject = Subject(Path(own).stem, session, _memory_now(session))
    with restoring(folder.checkpoints):
        if subject.memories:
            for path in list_checkpoints(folder.checkpoints):
                rollouts = int(path.stem.rpartition("-")[2])
                if rollouts > content["counters"]["rollouts"]:
                    break
                stored = folder.load_checkpoint(rollouts)["session"]
                like = Learning(session.learner_state, session.value_state)
                state = unpack(stored["learning"], like, "learning").learner.meta_state
                subject.memories[stored["counters"]["updates"]] = lifetime_memory(state)
        session.load_state_dict(content)
    return subject
