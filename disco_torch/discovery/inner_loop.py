"""The maths of a meta-update, batched over agents: pure functions of trees whose leaves are [P, ...].

    act -> update all agents, and their value functions -> ... -> meta-loss and its gradient -> backward through each update

`meta_update` puts the parts together. It takes them as `MetaUpdateParts`: each can be the plain function or a recorded one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from disco_torch.data import InputSnapshot, InputStats, add_rollout, memory_resets, sample_rollout
from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.group_state import Draws, GroupGradient, GroupState, WindowUpdate, along
from disco_torch.discovery.habitats import ActingState, Decisions, EpisodeSums, Habitats, collect_population
from disco_torch.discovery.mixed_mode import Cotangent, MixedModeMetaGradient, SavedUpdate
from disco_torch.discovery.pooled_values import PooledValues
from disco_torch.discovery.population_inputs import PopulationInputs
from disco_torch.kernels import SideStream, prefetched
from disco_torch.training import LearnerState, ValueFunctionState
from disco_torch.types import Logs, Params, Rollout, ValueOuts, tree_map


@dataclass(frozen=True)
class InnerLoop:
    """The parts of a meta-update of one group.

    Attributes:
      config: the discovery.
      meta_gradient: of one agent, with its learner and its value function.
      habitats: the agents' environments.
      shared_value_groups: value functions, each of which several agents share, in order; 0 for one for each agent.
      inputs: normalisation of what the agents see; None where there is none.
      pooled: shared value functions whose agents are in several processes or not equally many; None where those of each
        are one batch.
    """

    config: DiscoverConfig
    meta_gradient: MixedModeMetaGradient
    habitats: Habitats
    shared_value_groups: int
    inputs: PopulationInputs | None = None
    pooled: PooledValues | None = None

    def act(
        self,
        params: Params,
        acting: ActingState,
        uniforms: Tensor,
        env_uniforms: list[Tensor],
        snapshot: InputSnapshot | None = None,
    ) -> Any:
        """One step of all agents in all their environments; see `Habitats.act`."""
        agent: Any = self.meta_gradient.learner.agent
        return self.habitats.act(agent, params, acting, uniforms, env_uniforms, self._seeing(snapshot))

    def decide(
        self, params: Params, acting: ActingState, uniforms: Tensor, snapshot: InputSnapshot | None = None
    ) -> Decisions:
        """What all agents do next; see `Habitats.decide`."""
        agent: Any = self.meta_gradient.learner.agent
        return self.habitats.decide(agent, params, acting, uniforms, self._seeing(snapshot))

    def _seeing(self, snapshot: InputSnapshot | None) -> Callable[[Tensor], Tensor] | None:
        """What makes observations into what the agents see; None where they see them as they are."""
        inputs = self.inputs
        if inputs is None or snapshot is None:
            return None
        return lambda x: inputs.observations(snapshot, x)

    def count_inputs(self, stats: InputStats, rollout: Rollout) -> InputStats:
        """The statistics of what the agents see, with those of new raw rollouts, [P, rows, B, ...]."""
        assert self.inputs is not None
        return self.inputs.update(stats, rollout)

    def normalize(self, stats: InputStats, rollout: Rollout) -> Rollout:
        """Raw rollouts as the agents and their value functions learn from them."""
        assert self.inputs is not None
        return self.inputs.rollout(self.inputs.snapshot(stats), rollout)

    def update_agents(
        self, rule_params: Params, learners: LearnerState, rollout: Rollout, rates: Tensor
    ) -> tuple[LearnerState, tuple[list[Params], list[Tensor]], Tensor, Logs]:
        """One update of all agents, at their learning rates [P].

        Returns:
          The states after it; the parameters before its second and later gradient steps, and Adam's gains of all steps,
          [P, parameters]; the policies' logits before it; and logs, [P] each.
        """
        update = vmap(self.meta_gradient.inner_update, in_dims=(None, 0, 0, 0))
        learners, saved, logits, logs = update(rule_params, learners, rollout, rates)
        return learners, (saved.params[1:], saved.gains), logits, logs

    def update_values(self, values: ValueFunctionState, rollout: Rollout, logits: Tensor) -> tuple[ValueFunctionState, Logs]:
        """One update of all value functions on what their agents learn from; and logs, one number for each of them."""
        rollout = dataclasses.replace(rollout, first_state=None)  # of the agents; value functions have no memory
        update = vmap(self.meta_gradient.value_function.update)
        values, _, logs = update(values, self._to_value_functions(rollout), self._to_value_functions(logits))
        return values, logs

    def meta_loss_and_grad(
        self, learners: LearnerState, values: ValueFunctionState, valid: Rollout
    ) -> tuple[Cotangent, Tensor, Logs]:
        """The gradient of each agent's meta-loss with respect to its state, the loss [P], and logs."""

        def estimate(state: ValueFunctionState, valid: Rollout, logits: Tensor) -> ValueOuts:
            return self.meta_gradient.value_function.estimate(state, valid, logits)[0]

        logits, seen = self._valid_logits(learners, valid)
        value_out = vmap(estimate)(values, self._to_value_functions(seen), self._to_value_functions(logits))
        return vmap(self.meta_gradient.meta_loss_and_grad)(learners, valid, self._to_agents(value_out))

    def pooled_estimates(
        self, learners: LearnerState, values: ValueFunctionState, valid: Rollout
    ) -> tuple[ValueOuts, Tensor]:
        """The first half of `meta_loss_and_grad` with pooled value functions: see `PooledValues.estimates`."""
        assert self.pooled is not None
        logits, seen = self._valid_logits(learners, valid)
        return self.pooled.estimates(values, seen, logits)

    def pooled_meta_loss_and_grad(
        self, learners: LearnerState, values: ValueFunctionState, valid: Rollout, value_out: ValueOuts, totals: Tensor
    ) -> tuple[Cotangent, Tensor, Logs]:
        """The second half, from those estimates and the sums over all agents."""
        assert self.pooled is not None
        value_out = self.pooled.normalized(values, value_out, totals)
        return vmap(self.meta_gradient.meta_loss_and_grad)(learners, valid, value_out)

    def _valid_logits(self, learners: LearnerState, valid: Rollout) -> tuple[Tensor, Rollout]:
        """The final policies' logits on the validation rollouts, and these as value functions see them."""

        def logits_of(state: LearnerState, valid: Rollout) -> Tensor:
            agent = self.meta_gradient.learner.agent
            return agent.unroll(state.params, valid.observations, memory_resets(valid), valid.first_state)[0]["logits"]

        logits = vmap(logits_of)(learners, valid)
        return logits, dataclasses.replace(valid, first_state=None)  # value functions have no memory

    def backward_update(
        self, update: WindowUpdate, rates: Tensor, cotangent: Cotangent, grads: Params
    ) -> tuple[Params, Cotangent, Tensor, Logs]:
        """The backward pass through one update of all agents.

        Returns:
          The gradients of the rule with this update's added, the cotangent of the states before it, its regularisers [P],
          and logs. Nothing comes from agents that are not alive any more.
        """
        weight, alive = 1.0 / self.config.window, update.alive  # of this update's regulariser

        def of_living(tree: Any) -> Any:
            # Selected and not multiplied: an agent may have been replaced because its numbers were not finite.
            if alive is None:
                return tree
            return tree_map(lambda x: torch.where(along(alive > 0, x), x, torch.zeros_like(x)), tree)

        def one(rule_params: Params, saved: SavedUpdate, rollout: Rollout, cotangent: Cotangent, rate: Tensor) -> Any:
            return self.meta_gradient.backward_inner_update(rule_params, saved, rollout, cotangent, weight, rate)

        args = (update.rule_params, update.saved, update.rollout, of_living(cotangent), rates)
        rule_bar, cotangent, regularizer, logs = of_living(vmap(one, in_dims=(None, *[0] * 4))(*args))
        return {name: grad + rule_bar[name] for name, grad in grads.items()}, cotangent, regularizer, logs

    def _to_value_functions(self, tree: Any) -> Any:
        """From [P, rows, B, ...] to a batch for each value function, [shared_value_groups, rows, agents * B, ...]."""
        if not self.shared_value_groups:
            return tree
        return tree_map(lambda x: x.unflatten(0, (self.shared_value_groups, -1)).transpose(1, 2).flatten(2, 3), tree)

    def _to_agents(self, tree: Any) -> Any:
        """The inverse of `_to_value_functions`."""
        if not self.shared_value_groups:
            return tree
        agents = self.habitats.num_agents // self.shared_value_groups
        return tree_map(lambda x: x.unflatten(2, (agents, -1)).transpose(1, 2).flatten(0, 1), tree)


@dataclass
class MetaUpdateParts:
    """The parts that a meta-update calls: functions of an `InnerLoop`, plain or recorded.

    `update_agents_silently` is `update_agents` without its last result, the logs.
    """

    act: Callable[..., Any]
    update_agents: Callable[..., Any]
    update_agents_silently: Callable[..., Any]
    update_values: Callable[..., Any]
    meta_loss_and_grad: Callable[..., Any]
    backward_update: Callable[..., Any]
    count_inputs: Callable[..., Any]
    normalize: Callable[..., Any]

    def collect(
        self,
        params: Params,
        acting: ActingState,
        uniforms: Tensor,
        env_uniforms: list[Tensor],
        snapshot: InputSnapshot | None = None,
    ) -> tuple[ActingState, Rollout, EpisodeSums]:
        """Acts for as many rows as there are uniform numbers; the rollouts are [P, rows, environments, ...]."""

        def step(state: ActingState, numbers: tuple[Tensor, Any]) -> Any:
            return self.act(params, state, *numbers, snapshot)

        return collect_population(step, acting, uniforms, env_uniforms)


def meta_update(
    loop: InnerLoop, parts: MetaUpdateParts, state: GroupState, rule_params: Params, draws: Draws, rates: Tensor
) -> tuple[GroupState, GroupGradient]:
    """As many updates of all agents as one of the rule has, and the gradient of the meta-loss through the window.

    A function of tensors, which writes into the replay alone.
    """
    config, learners, values, acting, replay = loop.config, state.learners, state.values, state.acting, state.replay
    inputs = state.inputs
    sums: list[EpisodeSums] = []
    numbers = iter(draws.collections)

    def collect() -> tuple[Rollout, InputStats | None]:
        """A raw rollout, and the statistics of inputs with its own in them, by which it is normalised."""
        nonlocal acting, inputs
        snapshot = None if loop.inputs is None or inputs is None else loop.inputs.snapshot(inputs)
        acting, rollout, ended = parts.collect(learners.params, acting, *next(numbers), snapshot)
        sums.append(ended)
        if inputs is not None:
            inputs = contiguous(parts.count_inputs(inputs, rollout))
        return rollout if config.first_steps else dataclasses.replace(rollout, executed=None), inputs

    def normalized(rollout: Rollout, stats: InputStats | None) -> Rollout:
        return rollout if stats is None else contiguous(parts.normalize(stats, rollout))

    # With `fresh_validation` each rollout is collected when it is needed, with the agents' current parameters; else all of
    # them up front with the initial ones, beside the updates when captured.
    updates = config.updates_per_meta_update
    rollouts = iter(collect, None) if config.fresh_validation else prefetched(collect, updates + 1)
    window, overlap = list(state.window), config.window - updates
    side_stream = SideStream()
    agent_logs: list[Logs] = []
    for n in range(updates):
        rollout, stats = next(rollouts)
        batch = of_first_envs(rollout, config.num_envs)
        if replay is not None:
            replay = add_rollout(replay, batch)
            batch = sample_rollout(replay, draws.batches[n], config.num_fresh)
        batch = normalized(batch, stats)
        # Logs are needed of the last update alone.
        update = parts.update_agents if n + 1 == updates else parts.update_agents_silently
        after, (later, gains), logits, *agent_logs = contiguous(update(rule_params, learners, batch, rates))
        # No agent waits for the value functions: they are needed for the meta-loss.
        values, value_logs = side_stream(lambda *args: contiguous(parts.update_values(*args)), values, batch, logits)
        saved = SavedUpdate([learners.params, *later], learners.meta_state, gains)
        window.append(WindowUpdate(rule_params, saved, batch, torch.ones_like(rates) if overlap else None))
        learners = after
    side_stream.wait()
    valid = normalized(*next(rollouts))
    grads, logs = window_gradient(loop, parts, window, rule_params, learners, values, valid, rates)
    own_logs = agent_logs[0] | ({} if loop.shared_value_groups else value_logs)
    logs |= {f"agent/{name}": value for name, value in own_logs.items()}
    gradient = GroupGradient(grads, logs, tree_map(lambda *xs: torch.stack(xs).sum(0), *sums))
    overlapping = window[-overlap:] if overlap else []  # what the next window shares with this one
    return GroupState(learners, values, acting, replay, inputs, overlapping), gradient


def window_gradient(
    loop: InnerLoop,
    parts: MetaUpdateParts,
    window: list[WindowUpdate],
    rule_params: Params,
    learners: LearnerState,
    values: ValueFunctionState,
    valid: Rollout,
    rates: Tensor,
) -> tuple[Params, Logs]:
    """The backward pass from the validation rollout through the window: each agent's gradient of the rule, and logs."""
    cotangent, loss, logs = parts.meta_loss_and_grad(learners, values, valid)
    grads = {name: param.new_zeros(loss.shape[0], *param.shape) for name, param in rule_params.items()}
    regularizers, update_logs = [], []
    for update in reversed(window):
        grads, cotangent, regularizer, own_logs = parts.backward_update(update, rates, cotangent, grads)
        regularizers.append(regularizer)
        update_logs.append(own_logs)
    counted: Any = sum(1 if update.alive is None else update.alive for update in window)
    logs = dict(logs) | {name: torch.stack([own[name] for own in update_logs]).sum(0) / counted for name in update_logs[0]}
    logs["meta_loss"] = loss + torch.stack(regularizers).sum(0) / loop.config.window  # whose gradient this is
    logs["reg_loss"] = logs["meta_loss"] - logs["pg_loss"]
    return grads, logs


def of_first_envs(rollout: Rollout, num_envs: int) -> Rollout:
    """What rollouts [P, rows, B, ...] hold of the first environments of each agent; the others are for validation alone."""
    memory = tree_map(lambda x: x[:, :num_envs].contiguous(), rollout.first_state)  # [P, B, ...]
    rows = dataclasses.replace(rollout, first_state=None)
    return dataclasses.replace(tree_map(lambda x: x[:, :, :num_envs].contiguous(), rows), first_state=memory)


def contiguous(tree: Any) -> Any:
    """In the layout that a checkpoint restores: it decides how sums are rounded."""
    return tree_map(Tensor.contiguous, tree)
