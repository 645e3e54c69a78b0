"""Agents of one shape, batched: they act, learn and are judged together, each with its own parameters and data."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from disco_torch.agents import Agent
from disco_torch.data import memory_resets
from disco_torch.discovery.config import DiscoverConfig, GroupConfig
from disco_torch.discovery.habitats import ActingState, EpisodeSums, Habitats
from disco_torch.discovery.mixed_mode import Cotangent, MixedModeMetaGradient, Passage
from disco_torch.discovery.rings import Rings
from disco_torch.kernels import Recorded, Speed
from disco_torch.rules import DiscoUpdateRule
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, ValueOuts, tree_dataclass, tree_map, tree_stack


@tree_dataclass
class Record:
    """One update of all agents, as the way back needs it; all leaves but `eta` are [P, ...].

    `goes_on` is 0 where the agent that was updated has been replaced since: nothing of it counts any more.
    """

    eta: Params
    passage: Passage
    rollout: Rollout
    goes_on: Tensor


@tree_dataclass
class GroupGradient:
    """What the agents of a group contribute to an update of the rule, [P, ...] each, and logs by name."""

    grads: Params
    logs: Logs
    episodes: EpisodeSums


class Group:
    """The agents of one group that this process has.

    Args:
      config: of the discovery.
      index: which of its groups.
      rule: the architecture of the rule; its parameters are passed in.
      speed: how to run.
      rank, size: this process among all.
    """

    def __init__(
        self,
        config: DiscoverConfig,
        index: int,
        rule: DiscoUpdateRule,
        device: torch.device,
        speed: Speed,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self.config, self.index, self.device = config, index, device
        self.own: GroupConfig = config.groups[index]
        dtype = getattr(torch, config.dtype)
        self.habitats = Habitats(self.own, config.num_copies, device, dtype, rank, size)
        example = torch.zeros(self.habitats.observation_size)
        A = self.habitats.num_actions
        self.agent = Agent(example, A, rule.outputs(A), self.own.agent).to(device, dtype)
        self.value_function = ValueFunction(example, config.value_function)
        self.value_function.net.to(device, dtype)
        learner = Learner(self.agent, rule, config.agent_optimizer, config.hyper_params or None)
        self.meta_gradient = MixedModeMetaGradient(learner, self.value_function, config.weights)
        self._check_shared_values(size)
        rates = [self.own.learning_rates[i % len(self.own.learning_rates)] for i in self.habitats.ids]
        self.rates = torch.tensor(rates, dtype=dtype, device=device)
        self.generator = torch.Generator(device).manual_seed(seed_of(config.seed, index))
        self.lives = [0] * self.num_agents
        self.ages = [0] * self.num_agents
        self.lifetimes = [0] * self.num_agents
        self.window: deque[Record] = deque(maxlen=config.window)
        if self.num_agents:
            self._build_population()
        # Environments are many small operations: to fuse them is quick to do and soon pays.
        self._act = Recorded(self.habitats_act, Speed(speed.trace, speed.compile or speed.capture), "acting")
        # A loop over recorded steps: compiled as one it would be too long.
        self._collect = Recorded(self._act_rows, Speed(capture=speed.capture), "collection")
        self._update = Recorded(self.update_agents, speed, "the agents' update")
        self._judge = Recorded(self.judge, speed, "the meta-loss")
        self._through = Recorded(self.through_update, speed, "the way back")

    def _check_shared_values(self, size: int) -> None:
        self.lanes = 0
        if self.config.share_values:
            numbers = {habitat.agents for habitat in self.own.habitats}
            if len(numbers) > 1 or size > 1:
                raise ValueError(
                    "`share_values` needs one process and as many agents in each habitat of a group, got "
                    f"{size} processes and {sorted(numbers)} agents."
                )
            self.lanes = len(self.own.habitats)

    @property
    def num_agents(self) -> int:
        return self.habitats.num_agents

    def _build_population(self) -> None:
        """The first lives. They are cut short at random where lives end at all, so that deaths do not fall together."""
        births = [self._birth(agent) for agent in range(self.num_agents)]
        self.learners: LearnerState = tree_stack([birth[0] for birth in births])
        values = tree_stack([birth[1] for birth in births])
        self.values: ValueFunctionState = tree_map(lambda x: x[: self.lanes], values) if self.lanes else values
        worlds: list[list[Any]] = [[] for _ in self.habitats.habitats]
        for _, _, habitat, world in births:
            worlds[habitat].append(world)
        joined = [pytree.tree_map(lambda *xs: torch.cat(xs), *parts) for parts in worlds]
        returns = torch.zeros(self.num_agents, self.config.num_copies, dtype=self.rates.dtype, device=self.device)
        self.acting = ActingState([world for world, _ in joined], [step for _, step in joined], returns)
        self.rings: Rings | None = None
        if self.config.replay_capacity:
            self.rings = Rings(self.config.replay_capacity, self.blank_rollout(self.config.num_envs))

    def blank_rollout(self, batch: int) -> Rollout:
        """Zeros in the shapes of a rollout to learn from, [P, rows, batch, ...]."""
        rows = (self.num_agents, self.config.rollout_length, batch)
        numbers = torch.zeros(rows, dtype=self.rates.dtype, device=self.device)
        observations = torch.zeros(*rows, self.habitats.observation_size, device=self.device)
        logits = torch.zeros(*rows, self.habitats.num_actions, dtype=self.rates.dtype, device=self.device)
        return Rollout(observations, numbers.long(), numbers, numbers, logits)

    def blank_record(self, eta: Params) -> Record:
        """A record in its shapes, of an update that is made for this alone."""
        rollout = self.blank_rollout(self.config.batch_size)
        with torch.no_grad():
            _, _, gains, _ = self.update_agents(eta, self.learners, self.values, rollout, self.rates)
        passage = Passage(self.learners.params, self.learners.meta_state, gains)
        return Record(eta, passage, rollout, torch.ones_like(self.rates))

    def habitat_of(self, agent: int) -> str:
        """The name of the environment that an agent of this process lives in."""
        names = [h.config.env for h in self.habitats.habitats for _ in h.mine]
        return names[agent]

    def sums(self, gradient: GroupGradient | None, ok: Tensor | None) -> Logs:
        """What a meta-update adds to the logs of a discovery: sums over agents, and over episodes by environment."""
        zero = torch.zeros((), dtype=self.rates.dtype, device=self.device)
        sums: Logs = {}
        for name in {habitat.env for habitat in self.own.habitats}:
            sums |= {f"episodes/{name}": zero, f"returns/{name}": zero}
        if gradient is None or ok is None:
            return sums
        episodes, first = gradient.episodes, 0
        for habitat in self.habitats.habitats:
            mine, name = slice(first, first + habitat.num_agents), habitat.config.env
            sums[f"episodes/{name}"] = sums[f"episodes/{name}"] + episodes.count[mine].sum()
            sums[f"returns/{name}"] = sums[f"returns/{name}"] + episodes.returns[mine].sum()
            first += habitat.num_agents
        kept = {name: torch.where(ok, value, torch.zeros_like(value)).sum() for name, value in gradient.logs.items()}
        number = ok.sum().to(zero.dtype)
        rows = self.config.updates_per_meta_update * self.config.rollout_length + self.config.valid_length
        counts = {"agents": number, "nonfinite": ok.numel() - number}
        counts["taken_steps"] = zero + float(rows * self.config.num_copies * ok.numel())
        counts |= {"rewards": episodes.rewards.sum(), "pos_rewards": episodes.positive.sum().to(zero.dtype)}
        return sums | kept | counts | {"neg_rewards": episodes.negative.sum().to(zero.dtype)}

    def _birth(self, agent: int) -> tuple[LearnerState, ValueFunctionState, int, Any]:
        """A new life, from numbers that depend on the agent and on which of its lives it is, not on the process."""
        seed = seed_of(self.config.seed, self.index, self.habitats.ids[agent], self.lives[agent])
        generator = torch.Generator().manual_seed(seed)
        lifetimes = torch.tensor(self.config.lifetimes or [0], dtype=torch.float64)
        odds = 1.0 / lifetimes if self.config.lifetimes else torch.ones(1, dtype=torch.float64)
        chosen = int(torch.multinomial(odds, 1, generator=generator))
        share = float(torch.rand((), generator=generator)) if self.lives[agent] == 0 else 1.0
        self.lifetimes[agent] = max(1, round(float(lifetimes[chosen]) * share)) if self.config.lifetimes else 0
        self.ages[agent] = 0
        learner = self.meta_gradient.learner.init(generator)
        value = self.value_function.init(generator)
        habitat, *world = self.habitats.begin(agent, generator)
        return learner, value, habitat, tuple(world)

    def renew(self, failed: list[int]) -> int:
        """Replaces the agents whose lives are over, and those that failed; returns how many."""
        over = [i for i in range(self.num_agents) if 0 < self.lifetimes[i] <= self.ages[i]]
        due = sorted({*over, *failed})
        for agent in due:
            self.lives[agent] += 1
            learner, value, habitat, (world, step) = self._birth(agent)
            self.learners = put(self.learners, agent, learner)
            if not self.lanes:
                self.values = put(self.values, agent, value)
            elif agent in failed:  # what it learned from this agent may not be finite, and it would never recover
                self.values = put(self.values, agent * self.lanes // self.num_agents, value)
            first = agent - sum(h.num_agents for h in self.habitats.habitats[:habitat])
            rows = slice(first * self.config.num_copies, (first + 1) * self.config.num_copies)
            self.acting.worlds[habitat] = put(self.acting.worlds[habitat], rows, world)
            self.acting.steps[habitat] = put(self.acting.steps[habitat], rows, step)
            self.acting.returns = put(self.acting.returns, agent, torch.zeros_like(self.acting.returns[0]))
        if due:
            which = torch.tensor(due, device=self.device)
            if self.rings is not None:
                self.rings.forget(which)
            for record in self.window:
                record.goes_on = record.goes_on.index_fill(0, which, 0.0)
        return len(due)

    # What is recorded: pure functions of trees whose leaves are [P, ...].

    def habitats_act(self, params: Params, acting: ActingState, uniforms: Tensor, worlds: list[Tensor]) -> Any:
        return self.habitats.act(self.agent, params, acting, uniforms, worlds)

    def _act_rows(
        self, params: Params, acting: ActingState, uniforms: Tensor, worlds: list[Tensor]
    ) -> tuple[ActingState, Rollout, EpisodeSums]:
        rows, sums = [], []
        for t in range(uniforms.shape[0]):
            acting, row, ended = self._act(params, acting, uniforms[t], [world[t] for world in worlds])
            rows.append(row)
            sums.append(ended)
        rollout = pytree.tree_map(lambda *xs: torch.stack(xs, dim=1), *rows)  # [P, rows, copies, ...]
        return acting, rollout, pytree.tree_map(lambda *xs: torch.stack(xs).sum(0), *sums)

    def update_agents(
        self, eta: Params, learners: LearnerState, values: ValueFunctionState, rollout: Rollout, rates: Tensor
    ) -> tuple[LearnerState, ValueFunctionState, Tensor, Tensor]:
        """One update of all agents and of their value functions.

        Returns the states after it, Adam's gains [P, parameters], and logs [number, P], named by `_log_names`.
        """
        step = vmap(self.meta_gradient.inner_update, in_dims=(None, 0, 0, 0))
        learners, passage, logits, logs = step(eta, learners, rollout, rates)
        update = vmap(self.value_function.update)
        values, _, value_logs = update(values, self._lanes(rollout), self._lanes(logits))
        if not self.lanes:
            logs |= value_logs
        self._log_names = list(logs)
        return learners, values, passage.gains, torch.stack(list(logs.values()))

    def judge(self, learners: LearnerState, values: ValueFunctionState, valid: Rollout) -> tuple[Cotangent, Tensor, Logs]:
        """The meta-loss of each agent and its cotangent."""

        def logits_of(state: LearnerState, valid: Rollout) -> Tensor:
            return self.agent.unroll(state.params, valid.observations, memory_resets(valid))[0]["logits"]

        def estimate(state: ValueFunctionState, valid: Rollout, logits: Tensor) -> ValueOuts:
            return self.value_function.estimate(state, valid, logits)[0]

        logits = vmap(logits_of)(learners, valid)
        value_out = vmap(estimate)(values, self._lanes(valid), self._lanes(logits))
        return vmap(self.meta_gradient.judge)(learners, valid, self._agents(value_out))

    def through_update(
        self, record: Record, cotangent: Cotangent, grads: Params, rates: Tensor
    ) -> tuple[Params, Cotangent, Tensor, Logs]:
        """The way back through one update of all agents; adds to the gradients of the rule."""
        share = 1.0 / self.config.window

        def one(eta: Params, passage: Passage, rollout: Rollout, cotangent: Cotangent, on: Tensor, rate: Tensor) -> Any:
            def kept(tree: Any) -> Any:
                # Chosen and not multiplied: a life may have ended because its numbers were not finite.
                return tree_map(lambda x: torch.where(on > 0, x, torch.zeros_like(x)), tree)

            back = self.meta_gradient.through_inner_update
            return kept(back(eta, passage, rollout, kept(cotangent), share, rate))

        args = (record.eta, record.passage, record.rollout, cotangent, record.goes_on, rates)
        eta_bar, cotangent, regularizer, logs = vmap(one, in_dims=(None, *[0] * 5))(*args)
        return {name: grad + eta_bar[name] for name, grad in grads.items()}, cotangent, regularizer, logs

    def _lanes(self, tree: Any) -> Any:
        """From [P, rows, B, ...] to one lane for each value function: [lanes, rows, agents * B, ...]."""
        if not self.lanes:
            return tree
        return tree_map(lambda x: x.unflatten(0, (self.lanes, -1)).transpose(1, 2).flatten(2, 3), tree)

    def _agents(self, tree: Any) -> Any:
        """The inverse of `_lanes`."""
        if not self.lanes:
            return tree
        each = self.num_agents // self.lanes
        return tree_map(lambda x: x.unflatten(2, (each, -1)).transpose(1, 2).flatten(0, 1), tree)

    # The loop.

    def collect(self, rows: int) -> tuple[Rollout, EpisodeSums]:
        """Acts for `rows` steps with the agents as they are, [P, rows, copies]."""
        draws = self.habitats.draws(rows, self.generator)
        self.acting, rollout, sums = self._collect(self.learners.params, self.acting, *draws)
        return rollout, sums

    def draw_batch(self, rollout: Rollout) -> Rollout:
        """What an update learns from: what was just collected, mixed with what the rings hold."""
        config = self.config
        stored = tree_map(lambda x: x[:, :, : config.num_envs].contiguous(), rollout)
        if not config.replay_capacity:
            return stored
        assert self.rings is not None
        self.rings.add(stored)
        drawn = config.batch_size - config.num_fresh
        uniforms = torch.rand(self.habitats.total, drawn, generator=self.generator, device=self.device)
        return self.rings.sample(uniforms[self.habitats.ids], config.num_fresh)

    def advance(self, eta: Params) -> GroupGradient:
        """As many updates as one of the rule has, and the gradient of the meta-loss through the window."""
        config, updates = self.config, self.config.updates_per_meta_update
        ahead: list[Rollout] = []
        sums: list[EpisodeSums] = []

        def collect(rows: int) -> Rollout:
            rollout, ended = self.collect(rows)
            sums.append(ended)
            return rollout

        if not config.fresh_validation:
            ahead = [collect(config.rollout_length) for _ in range(updates)]
            valid = collect(config.valid_length)
        for n in range(updates):
            batch = self.draw_batch(ahead[n] if ahead else collect(config.rollout_length))
            before = self.learners
            after = self._update(eta, before, self.values, batch, self.rates)
            # In one order of memory, as a checkpoint gives it back: the order decides how sums are rounded.
            self.learners, self.values, gains, agent_logs = tree_map(Tensor.contiguous, after)
            passage = Passage(before.params, before.meta_state, gains)
            self.window.append(Record(eta, passage, batch, torch.ones_like(self.rates)))
        if config.fresh_validation:
            valid = collect(config.valid_length)
        cotangent, loss, logs = self._judge(self.learners, self.values, valid)
        grads = {name: param.new_zeros(self.num_agents, *param.shape) for name, param in eta.items()}
        regularizers, parts = [], []
        for record in reversed(self.window):
            grads, cotangent, regularizer, part = self._through(record, cotangent, grads, self.rates)
            regularizers.append(regularizer)
            parts.append(part)
        counted = torch.stack([record.goes_on for record in self.window]).sum(0)
        if config.updates_per_meta_update == config.window:
            self.window.clear()  # windows do not overlap
        logs = dict(logs) | {name: torch.stack([part[name] for part in parts]).sum(0) / counted for name in parts[0]}
        logs["meta_loss"] = loss + torch.stack(regularizers).sum(0) / config.window  # whose gradient this is
        logs["reg_loss"] = logs["meta_loss"] - logs["pg_loss"]
        logs |= {f"agent/{name}": value for name, value in zip(self._log_names, agent_logs, strict=True)}
        self.ages = [age + updates for age in self.ages]
        return GroupGradient(grads, logs, pytree.tree_map(lambda *xs: torch.stack(xs).sum(0), *sums))


def seed_of(*parts: int) -> int:
    """A seed from several numbers; other numbers give an unrelated one."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def put(tree: Any, where: int | slice, new: Any) -> Any:
    """A copy of a tree of [P, ...] with the leaves of `new` at some rows; the old tree may be part of a window."""

    def one(old: Tensor, fresh: Tensor) -> Tensor:
        changed = old.clone()
        changed[where] = fresh.to(old.device, old.dtype)
        return changed

    return pytree.tree_map(one, tree, new)
