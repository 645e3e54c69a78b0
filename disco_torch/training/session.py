"""A training run in memory: everything that a configuration builds, and everything that changes while it runs."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from disco_torch.agents import choose_torso
from disco_torch.data import (
    ActorState,
    Collector,
    InputSnapshot,
    InputStats,
    NormalizedAgent,
    Replay,
    init_actor,
    make_normalizer,
)
from disco_torch.data.acting import ActingAgent
from disco_torch.envs import Environment, PureEnvironment
from disco_torch.kernels import Recorded, Speed
from disco_torch.rules import (
    PPO,
    ActorCritic,
    DiscoUpdateRule,
    DoublyRobust,
    PolicyGradient,
    UpdateRule,
    discount_of,
    resolve_hyper_params,
)
from disco_torch.runs import Metrics, World, first_not_finite, pack, resolve_speed, unpack
from disco_torch.runs.checkpoint import (
    FIX,
    CheckpointMismatch,
    check_leaves,
    check_names,
    check_range,
    typed,
    unpack_counters,
)
from disco_torch.training import ranks
from disco_torch.training.ahead import Collected, CollectedAhead
from disco_torch.training.bring_your_own import RunObjects
from disco_torch.training.config import TrainConfig
from disco_torch.training.episodes import FinishedEpisodes
from disco_torch.training.learning_rate import learning_rate
from disco_torch.training.recorded_update import Learning, RecordedUpdate
from disco_torch.training.update import Learner, LearnerState
from disco_torch.training.value_function import ValueFunction, ValueFunctionConfig, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, tree_map

TRACED_FROM = 10_000
"""Number of gradient steps of a run from which tracing them on a CPU saves more time than it takes."""
AHEAD_SEED_STEP = 1_000_000_007
"""Between the seed of a process and those of its rollouts that are collected ahead."""
STATE_NAMES = (
    *("learning", "inputs", "counters", "recent", "interval", "first_returns", "generator", "device", "outputs"),
    *("actor", "replay"),
)


@dataclass
class Counters:
    rollouts: int = 0
    steps: int = 0
    updates: int = 0
    episodes: int = 0


class TrainingSession:
    """Acts, stores and learns, one rollout at a time. Same configuration, device and number of processes: same run.

    Args:
      config: settings of the whole run.
      objects: what it was given as objects.
      world: processes that it is split over; defaults to a single one. What is learned is the same in all of them, and each
        has a share of the environments and the replay, and random numbers of its own.
    """

    def __init__(self, config: TrainConfig, objects: RunObjects | None = None, world: World | None = None) -> None:
        self.config = config = config.with_sizes()
        self.world = world = world or World()
        self.share = share = ranks.share_of(config, world.size)
        """The settings with this process's share of environments, batch and replay."""
        self.objects = objects = objects or RunObjects()
        self.device = world.device(config.device)
        self.speed = resolve_speed(config.speed, self.device)
        self.rule: UpdateRule = objects.make_rule(config).to(self.device)
        self.env: Environment = objects.make_env(config, share.num_envs, self.device)
        if self.env.num_envs != share.num_envs:
            of_it = "of the run" if world.size == 1 else f"of each of the {world.size} processes"
            raise ValueError(f"`env` must have the {share.num_envs} parallel environments {of_it}, got {self.env.num_envs}.")
        hyper_params: Any = resolve_hyper_params(self.rule.hyper_params_type, config.hyper_params)
        num_actions, example = self.env.num_actions, self.env.observation_example
        if objects.agent is None:
            chosen = choose_torso(config.agent, example, self.env.observation_kinds)
            self.config = config = dataclasses.replace(config, agent=chosen)
        self.agent = objects.make_agent(config, example, num_actions, self.rule.outputs(num_actions)).to(self.device)
        memory = tree_map(lambda x: x[0], self.agent.initial_state(1))
        config.check_memory(memory, self.env)
        gradient_steps = config.epochs, config.minibatches, config.max_gradient_norm, config.burn_in
        self.learner = Learner(self.agent, self.rule, config.optimizer, hyper_params, *gradient_steps)
        self.value_function = self._value_function(example)
        self.replay = Replay(
            share.replay_capacity,
            config.rollout_length,
            example,
            num_actions,
            self.device if config.replay_device == "auto" else world.device(config.replay_device),
            memory,
            first_steps=config.first_steps,
            frame_stacks=self.env.frame_stacks,
            sample_device=self.device,
        )
        self.normalizer = make_normalizer(config.inputs, self.env, discount_of(self.rule, hyper_params))
        self.input_stats: InputStats | None = None
        """What is known of the scale of the inputs, from all rows so far; None where nothing is normalised."""
        if self.normalizer is not None:
            self.input_stats = self.normalizer.init(example, share.num_envs)
            over_all = None if world.size == 1 else world.sum
            count = partial(self.normalizer.update, sum_across_processes=over_all)
            self._count = Recorded(count, self.speed, "the statistics of inputs", carry=True)
        self.snapshot = self._snapshot()
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.learner_state: LearnerState = self.learner.init(self.generator)
        self.value_state: ValueFunctionState | None = None
        if self.value_function is not None:
            self.value_state = self.value_function.init(self.generator)
        learning = ranks.begin_alike(world, (self.rule, self.agent), Learning(self.learner_state, self.value_state))
        self.learner_state, self.value_state = learning.learner, learning.value
        if not world.is_first:
            self.generator.manual_seed(ranks.seed_of(config, world.rank))
        self.actor: ActorState = init_actor(self.agent, self.env, self.generator)
        executed = config.first_steps or config.inputs.rewards == "normalized"
        self._overlaps = config.overlap and not isinstance(self.env, PureEnvironment)
        # Two threads must not call one module, whose parameters `functional_call` swaps.
        acting = copy.deepcopy(self.agent) if self._overlaps else self.agent
        self._collect = Collector(acting, self.env, self.speed, self.normalizer, executed)
        parts = self.learner, self.value_function, self.normalizer
        self._ahead = CollectedAhead(self.device)
        self._recorded_update = RecordedUpdate(
            *parts, self._update_speed(), world.mean_across_processes, before_recording=self._ahead.wait
        )
        self.counters = Counters()
        self.logs: Logs = {}
        self.episodes = FinishedEpisodes(world)

    def _update_speed(self) -> Speed:
        """The speed of updates: on a CPU `auto` traces them where there are many, with networks and rules of the package."""
        config, objects = self.config, self.objects
        is_own = objects.agent is None and type(self.rule) in (PPO, ActorCritic, DiscoUpdateRule, DoublyRobust)
        pays = is_own and config.num_gradient_steps >= TRACED_FROM
        return resolve_speed(config.speed, self.device, on_cpu="traced" if pays else "plain")

    def _value_function(self, example: Any) -> ValueFunction | None:
        """A value function beside the agent, for the one rule that needs it."""
        if not isinstance(self.rule, PolicyGradient):
            return None
        value_function = ValueFunction(example, ValueFunctionConfig(aligned=True))
        value_function.net.to(self.device)
        return value_function

    def _snapshot(self) -> InputSnapshot | None:
        """The statistics of inputs as they are now, frozen for the updates that follow and the rollout after them."""
        if self.normalizer is None or self.input_stats is None:
            return None
        return self.normalizer.snapshot(self.input_stats)

    def acting_agent(self) -> ActingAgent:
        """The agent as it acts now: on observations as the environment gives them, with the present statistics frozen."""
        if self.normalizer is None or self.snapshot is None:
            return self.agent
        return NormalizedAgent(self.agent, self.normalizer, self.snapshot)

    def advance(self) -> None:
        """One rollout and its updates."""
        config, share, counters = self.config, self.share, self.counters
        with ranks.failing_together(self.world):
            collected = self._ahead.take() or self._rollout(self.learner_state.params, self.snapshot, self.generator)
        rollout, self.actor, episodes = collected
        if self.normalizer is not None and self.normalizer.has_statistics:
            self.input_stats = self._count(self.input_stats, rollout)
            self.snapshot = self._snapshot()
        counters.rollouts += 1
        counters.steps += config.steps_per_rollout
        if self._overlaps and counters.steps < config.steps:
            self._collect_ahead()
        self.replay.add(rollout)
        self.episodes.add(episodes)
        if len(self.replay) < min(share.batch_size, share.replay_capacity):
            return
        for i in range(config.updates_per_rollout):
            last = i == config.updates_per_rollout - 1
            newer = i * share.num_fresh % share.num_envs  # each update has new trajectories of its own, as far as they go
            batch = self.replay.sample(share.batch_size, self.generator, share.num_fresh, newer)
            self._update(batch, last and self._logs_are_due())

    def _rollout(self, params: Params, snapshot: InputSnapshot | None, generator: torch.Generator) -> Collected:
        return self._collect(params, self.actor, self.config.rollout_length, generator, snapshot)

    def _collect_ahead(self) -> None:
        """Begins to collect the next rollout with the parameters of now, which updates may overwrite meanwhile."""
        params, snapshot = tree_map(torch.clone, (self.learner_state.params, self.snapshot))
        seed = ranks.seed_of(self.config, self.world.rank, self.counters.rollouts) + AHEAD_SEED_STEP
        generator = torch.Generator(self.device).manual_seed(seed)
        self._ahead.start(lambda: self._rollout(params, snapshot, generator))

    def close(self) -> None:
        """Waits for the rollout that is being collected, and closes the environments that were made here."""
        self._ahead.close()
        self.objects.close(self.env)

    def _logs_are_due(self) -> bool:
        """Whether metrics are written after this rollout. When compiling, to compute all
        logs every time is cheaper than to compile a second variant of the update.
        """
        counters, config = self.counters, self.config
        return self.speed.compile or counters.rollouts % config.log_every == 0 or counters.steps >= config.steps

    def _update(self, batch: Rollout, all_logs: bool) -> None:
        """One update of this session's state: `RecordedUpdate` at the learning rate of now."""
        like = next(iter(self.learner_state.params.values()))
        # A tensor: a recording takes any other number to be a constant.
        rate = torch.full((), learning_rate(self.config, self.counters.steps), dtype=like.dtype, device=self.device)
        learning = Learning(self.learner_state, self.value_state)
        after, self.logs = self._recorded_update(learning, batch, rate, all_logs, self.snapshot, self.generator)
        self.learner_state, self.value_state = after.learner, after.value
        self.counters.updates += 1

    def read_episodes(self) -> list[tuple[float, float]]:
        """Returns and lengths of the episodes that ended since the last call."""
        self._fetch_episodes()
        return self.episodes.read()

    def _fetch_episodes(self) -> None:
        self.counters.episodes += self.episodes.fetch()

    def read_metrics(self) -> Metrics:
        """Episodes since the last call, and the logs of the last update, means over the processes. Collective."""
        finished = self.read_episodes()
        metrics: Metrics = {
            "learning_rate": learning_rate(self.config, self.counters.steps),
            "interval_episodes": len(finished),
        }
        if recent := self.episodes.recent:
            metrics["return"] = sum(numbers[0] for numbers in recent) / len(recent)
            metrics["length"] = sum(numbers[1] for numbers in recent) / len(recent)
        if finished:
            metrics["interval_return"] = sum(numbers[0] for numbers in finished) / len(finished)
        if not self.logs:
            return metrics
        logs = self.world.sum(torch.stack(list(self.logs.values()))) / self.world.size
        return metrics | dict(zip(self.logs, logs.tolist(), strict=True))  # one transfer from the device

    def not_finite(self) -> str | None:
        """The loss, and the first parameter, moment or state of the rule, that is not finite, in words.

        A gradient that is not finite leaves its moments so for good: to look at the state now and then misses none.
        """
        state = first_not_finite(Learning(self.learner_state, self.value_state))
        problems = [] if state is None else [state]
        loss = self.logs.get("total_loss")
        if loss is not None and not loss.isfinite():
            rate = self.config.optimizer.learning_rate
            problems.insert(0, f"the loss must be finite, got {float(loss)} with learning rate {rate}")
        if self.world.any(bool(problems)):
            return ", ".join(problems) or "the state must be finite, which it is not in another process"
        return None

    def state_dict(self) -> dict[str, Any] | None:
        """Everything that changes, as tensors by name and plain values, in the first process; None in the others.

        Collective. The parts of several processes are put together as those of one, see `ranks`.
        """
        self._fetch_episodes()
        state: dict[str, Any] = {
            "learning": pack(Learning(self.learner_state, self.value_state)),
            "counters": dataclasses.asdict(self.counters),
            "device": self.device.type,
            "outputs": self._outputs(),
        }
        own: dict[str, Any] = {
            "generator": self.generator.get_state(),
            "inputs": None if self.input_stats is None else pack(self.input_stats),
            "actor": pack(self.actor) if ranks.saves_actor(self.env, self.actor, self.world) else None,
        }
        parts, stored = self.world.gather(own), None
        if self.config.checkpoint_replay:
            stored = ranks.join_replay(self.world, self.replay.state_dict(), self.share.num_envs)
        return None if parts is None else state | self.episodes.state_dict() | ranks.joined(parts) | {"replay": stored}

    def _outputs(self) -> dict[str, dict[str, int]]:
        return {"flat": dict(self.agent.outputs.flat), "per_action": dict(self.agent.outputs.per_action)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint. An environment whose state cannot be saved starts new episodes.

        The checkpoint may be of another number of processes.
        """
        check_names(state, STATE_NAMES)
        learning = unpack(state["learning"], Learning(self.learner_state, self.value_state), "learning")
        self.learner_state, self.value_state = learning.learner, learning.value
        check_leaves(pack(state["outputs"]), pack(self._outputs()), "outputs")
        if state["outputs"] != self._outputs():
            raise CheckpointMismatch(f"the checkpoint's `outputs` must be {self._outputs()}, got {state['outputs']}; {FIX}.")
        self.counters = unpack_counters(state, self.counters)
        steps = self.counters.rollouts * self.config.steps_per_rollout
        check_range("counters/steps", [self.counters.steps], steps, steps)
        self.episodes.load_state_dict(state)
        if state["replay"] is not None:
            self.replay.load_state_dict(ranks.share_of_replay(state["replay"], self.config, self.world))
        seed = ranks.seed_of(self.config, self.world.rank, self.counters.rollouts)
        if (was := torch.device(typed(state, "device", str)).type) == self.device.type:
            ranks.restore_stream(self.generator, state["generator"], self.world, seed)
        else:  # states of generators do not carry over between kinds of devices
            now = self.device.type
            warnings.warn(
                f"the checkpoint is of a run on {was}; the run continues on {now} with other random numbers.", stacklevel=2
            )
            self.generator.manual_seed(seed)
        if self.normalizer is not None and self.input_stats is not None:
            self.input_stats = ranks.share_of_inputs(state["inputs"], self.input_stats, self.config, self.world)
        saves = ranks.saves_actor(self.env, self.actor, self.world)
        if saves and (state["actor"] is not None or not ranks.was_split(state)):
            self.actor = ranks.share_of_actor(state["actor"], self.actor, self.config, self.world)
        else:
            self.actor = init_actor(self.agent, self.env, self.generator)
            if self.normalizer is not None and self.input_stats is not None:
                self.input_stats = self.normalizer.restart(self.input_stats)
        self.snapshot = self._snapshot()
