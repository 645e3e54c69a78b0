"""Agents of one shape, batched: they act, learn and are judged together, each with its own parameters and data."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from disco_torch.agents import Agent
from disco_torch.data import add_rollout, empty_replay, forget_agents, memory_resets, sample_rollout
from disco_torch.discovery.config import DiscoverConfig, GroupConfig
from disco_torch.discovery.habitats import ActingState, EpisodeSums, Habitats, collect_population
from disco_torch.discovery.mixed_mode import Cotangent, MixedModeMetaGradient, Passage
from disco_torch.discovery.records import Draws, GroupGradient, GroupState, Record
from disco_torch.kernels import Recorded, SideStream, Speed, prefetched
from disco_torch.rules import DiscoUpdateRule
from disco_torch.training import Learner, LearnerState, ValueFunction, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, ValueOuts, map_trees, tree_map, tree_stack

FEW_UPDATES = 4
"""For so many updates in a meta-update it does not pay to record, and compile, one that computes no logs."""


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
        if self.num_agents:
            self.state = self._first_state()
        # Environments are many small operations: to fuse them is quick to do and soon pays.
        self._act = Recorded(self.habitats_act, Speed(speed.trace, speed.compile or speed.capture), "acting")
        # Parts of a meta-update, which is captured as a whole: compiled as one it would be too long.
        part = Speed(speed.trace, speed.compile)
        self._update = Recorded(self.update_agents, part, "the agents' update")
        # Logs are wanted of the last update alone; they are a sixth of what an update of many agents reads and writes.
        self._update_silently = Recorded(lambda *args: self.update_agents(*args)[:-1], part, "the agents' inner update")
        self._learn_values = Recorded(self.update_values, part, "the value functions' update")
        self._judge = Recorded(self.judge, part, "the meta-loss")
        self._through = Recorded(self.through_update, part, "the backward pass")
        self._advance = Recorded(self.meta_update, Speed(capture=speed.capture), "the meta-update", carry=True)

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

    def _first_state(self) -> GroupState:
        """The first lives. They are cut short at random where lives end at all, so that deaths do not fall together."""
        births = [self._birth(agent) for agent in range(self.num_agents)]
        learners: LearnerState = tree_stack([birth[0] for birth in births])
        values: ValueFunctionState = tree_stack([birth[1] for birth in births])
        values = tree_map(lambda x: x[: self.lanes], values) if self.lanes else values
        worlds: list[list[Any]] = [[] for _ in self.habitats.habitats]
        for _, _, habitat, world in births:
            worlds[habitat].append(world)
        joined = [map_trees(lambda *xs: torch.cat(xs), *parts) for parts in worlds]
        returns = torch.zeros(self.num_agents, self.config.num_copies, dtype=torch.float64, device=self.device)
        acting = ActingState([world for world, _ in joined], [step for _, step in joined], returns)
        capacity = self.config.replay_capacity
        rings = empty_replay(capacity, self.blank_rollout(self.config.num_envs)) if capacity else None
        return GroupState(learners, values, acting, rings, [])

    def blank_rollout(self, batch: int) -> Rollout:
        """Zeros in the shapes of a rollout to learn from, [P, rows, batch, ...]."""
        rows = (self.num_agents, self.config.rollout_length, batch)
        numbers = torch.zeros(rows, dtype=self.rates.dtype, device=self.device)
        observations = torch.zeros(*rows, self.habitats.observation_size, device=self.device)
        logits = torch.zeros(*rows, self.habitats.num_actions, dtype=self.rates.dtype, device=self.device)
        truncations = numbers.bool() if self.habitats.truncates else None
        return Rollout(observations, numbers.long(), numbers, numbers, logits, truncations)

    def blank_record(self, eta: Params) -> Record:
        """A record in its shapes, of an update that is made for this alone."""
        rollout, learners = self.blank_rollout(self.config.batch_size), self.state.learners
        with torch.no_grad():
            _, gains, _, _ = self.update_agents(eta, learners, rollout, self.rates)
        passage = Passage(learners.params, learners.meta_state, gains)
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
        state = self.state
        for agent in due:
            self.lives[agent] += 1
            learner, value, habitat, (world, step) = self._birth(agent)
            state.learners = put(state.learners, agent, learner)
            if not self.lanes:
                state.values = put(state.values, agent, value)
            elif agent in failed:  # what it learned from this agent may not be finite, and it would never recover
                state.values = put(state.values, agent * self.lanes // self.num_agents, value)
            first = agent - sum(h.num_agents for h in self.habitats.habitats[:habitat])
            rows = slice(first * self.config.num_copies, (first + 1) * self.config.num_copies)
            acting = state.acting
            acting.worlds[habitat] = put(acting.worlds[habitat], rows, world)
            acting.steps[habitat] = put(acting.steps[habitat], rows, step)
            acting.returns = put(acting.returns, agent, torch.zeros_like(acting.returns[0]))
        if due:
            which = torch.tensor(due, device=self.device)
            if state.rings is not None:
                state.rings = forget_agents(state.rings, which)
            for record in state.window:
                assert record.goes_on is not None
                record.goes_on = record.goes_on.index_fill(0, which, 0.0)
        return len(due)

    # What is recorded: pure functions of trees whose leaves are [P, ...].

    def habitats_act(self, params: Params, acting: ActingState, uniforms: Tensor, worlds: list[Tensor]) -> Any:
        return self.habitats.act(self.agent, params, acting, uniforms, worlds)

    def _act_rows(
        self, params: Params, acting: ActingState, uniforms: Tensor, worlds: list[Tensor]
    ) -> tuple[ActingState, Rollout, EpisodeSums]:
        return collect_population(lambda state, numbers: self._act(params, state, *numbers), acting, uniforms, worlds)

    def update_agents(
        self, eta: Params, learners: LearnerState, rollout: Rollout, rates: Tensor
    ) -> tuple[LearnerState, Tensor, Tensor, Tensor]:
        """One update of all agents.

        Returns the states after it, Adam's gains [P, parameters], the logits before it, and logs [number, P].
        """
        step = vmap(self.meta_gradient.inner_update, in_dims=(None, 0, 0, 0))
        learners, passage, logits, logs = step(eta, learners, rollout, rates)
        self._log_names = list(logs)
        return learners, passage.gains, logits, torch.stack(list(logs.values()))

    def update_values(
        self, values: ValueFunctionState, rollout: Rollout, logits: Tensor
    ) -> tuple[ValueFunctionState, Tensor]:
        """One update of all value functions on what their agents learn from; and logs [number, lanes]."""
        values, _, logs = vmap(self.value_function.update)(values, self._lanes(rollout), self._lanes(logits))
        self._value_log_names = list(logs)
        return values, torch.stack(list(logs.values()))

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
        self, update: tuple[Record, Tensor], later: tuple[Cotangent, Params]
    ) -> tuple[Params, Cotangent, Tensor, Logs]:
        """The way back through one update of all agents, at their rates; adds to the gradients of the rule."""
        (record, rates), (cotangent, grads) = update, later
        share, on = 1.0 / self.config.window, record.goes_on

        def kept(tree: Any) -> Any:
            # Chosen and not multiplied: a life may have ended because its numbers were not finite.
            if on is None:
                return tree
            return tree_map(lambda x: torch.where(along(on > 0, x), x, torch.zeros_like(x)), tree)

        def one(eta: Params, passage: Passage, rollout: Rollout, cotangent: Cotangent, rate: Tensor) -> Any:
            return self.meta_gradient.through_inner_update(eta, passage, rollout, cotangent, share, rate)

        args = (record.eta, record.passage, record.rollout, kept(cotangent), rates)
        eta_bar, cotangent, regularizer, logs = kept(vmap(one, in_dims=(None, *[0] * 4))(*args))
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

    def draws(self) -> Draws:
        """All random numbers of a meta-update, in the order of their use."""
        config, collections, batches = self.config, [], []
        for _ in range(config.updates_per_meta_update):
            collections.append(self.habitats.draws(config.rollout_length, self.generator))
            if config.replay_capacity:
                drawn = config.batch_size - config.num_fresh
                uniforms = torch.rand(self.habitats.total, drawn, generator=self.generator, device=self.device)
                batches.append(uniforms[self.habitats.ids])
        collections.append(self.habitats.draws(config.valid_length, self.generator))
        return Draws(collections, batches)

    def advance(self, eta: Params) -> GroupGradient:
        """As many updates as one of the rule has, and the gradient of the meta-loss through the window."""
        self.state, (gradient, agent_logs, value_logs) = self._advance(self.state, eta, self.draws(), self.rates)
        logs = dict(zip(self._log_names, agent_logs, strict=True))
        if not self.lanes:
            logs |= zip(self._value_log_names, value_logs, strict=True)
        gradient.logs |= {f"agent/{name}": value for name, value in logs.items()}
        self.ages = [age + self.config.updates_per_meta_update for age in self.ages]
        return gradient

    def meta_update(
        self, state: GroupState, eta: Params, draws: Draws, rates: Tensor
    ) -> tuple[GroupState, tuple[GroupGradient, Tensor, Tensor]]:
        """`advance` as a function of tensors, which writes into the rings alone; and logs of the last updates."""
        config, learners, values, acting, rings = self.config, state.learners, state.values, state.acting, state.rings
        sums: list[EpisodeSums] = []
        numbers = iter(draws.collections)

        def collect() -> Rollout:
            nonlocal acting
            acting, rollout, ended = self._act_rows(learners.params, acting, *next(numbers))
            sums.append(ended)
            return rollout

        # Before the updates, beside which they can run then, or each when it is asked for.
        rollouts = (
            iter(collect, None) if config.fresh_validation else prefetched(collect, config.updates_per_meta_update + 1)
        )
        window, overlap = list(state.window), config.window - config.updates_per_meta_update
        aside = SideStream()
        for n in range(config.updates_per_meta_update):
            batch = tree_map(lambda x: x[:, :, : config.num_envs].contiguous(), next(rollouts))
            if rings is not None:
                rings = add_rollout(rings, batch)
                batch = sample_rollout(rings, draws.batches[n], config.num_fresh)
            # In one order of memory, as a checkpoint gives it back: the order decides how sums are rounded.
            silently = config.updates_per_meta_update > max(FEW_UPDATES, n + 1)
            update = self._update_silently if silently else self._update
            after, gains, logits, *agent_logs = in_order(update(eta, learners, batch, rates))
            # No agent waits for values: they are wanted when it is judged.
            values, value_logs = aside(lambda *args: in_order(self._learn_values(*args)), values, batch, logits)
            passage = Passage(learners.params, learners.meta_state, gains)
            window.append(Record(eta, passage, batch, torch.ones_like(rates) if overlap else None))
            learners = after
        aside.wait()
        grads, logs = self._gradient(window, eta, learners, values, next(rollouts), rates)
        gradient = GroupGradient(grads, logs, map_trees(lambda *xs: torch.stack(xs).sum(0), *sums))
        # What the next window shares with this one.
        kept = window[-overlap:] if overlap else []
        return GroupState(learners, values, acting, rings, kept), (gradient, agent_logs[0], value_logs)

    def _gradient(
        self,
        window: list[Record],
        eta: Params,
        learners: LearnerState,
        values: ValueFunctionState,
        valid: Rollout,
        rates: Tensor,
    ) -> tuple[Params, Logs]:
        """The way back from the validation rollout through the window."""
        cotangent, loss, logs = self._judge(learners, values, valid)
        grads = {name: param.new_zeros(self.num_agents, *param.shape) for name, param in eta.items()}
        regularizers, parts = [], []
        for record in reversed(window):
            grads, cotangent, regularizer, part = self._through((record, rates), (cotangent, grads))
            regularizers.append(regularizer)
            parts.append(part)
        counted: Any = sum(1 if record.goes_on is None else record.goes_on for record in window)
        logs = dict(logs) | {name: torch.stack([part[name] for part in parts]).sum(0) / counted for name in parts[0]}
        logs["meta_loss"] = loss + torch.stack(regularizers).sum(0) / self.config.window  # whose gradient this is
        logs["reg_loss"] = logs["meta_loss"] - logs["pg_loss"]
        return grads, logs


def in_order(tree: Any) -> Any:
    return tree_map(Tensor.contiguous, tree)


def seed_of(*parts: int) -> int:
    """A seed from several numbers; other numbers give an unrelated one."""
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def along(which: Tensor, like: Tensor) -> Tensor:
    """[P] with dimensions added to broadcast along `like`, [P, ...]."""
    return which.reshape(-1, *[1] * (like.ndim - 1))


def put(tree: Any, where: int | slice, new: Any) -> Any:
    """A copy of a tree of [P, ...] with the leaves of `new` at some rows; the old tree may be part of a window."""

    def one(old: Tensor, fresh: Tensor) -> Tensor:
        changed = old.clone()
        changed[where] = fresh.to(old.device, old.dtype)
        return changed

    return map_trees(one, tree, new)
