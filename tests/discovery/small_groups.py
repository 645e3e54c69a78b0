"""Small populations that are watched while they learn, and their meta-gradient by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from small_discoveries import TINY_AGENT, TINY_RULE, small_config
from torch import Tensor

from disco_torch import DiscoUpdateRule
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.local_group import LocalGroup, put
from disco_torch.discovery.meta_loss import target_regularizer, validation_loss
from disco_torch.kernels import Speed
from disco_torch.runs import World
from disco_torch.training import LearnerState, ValueFunctionState
from disco_torch.types import Params, Rollout, ValueOuts, flatten_tree, tree_map

CATCH = HabitatConfig("catch", {"rows": 3, "columns": 3}, agents=2)
CHAIN = HabitatConfig("chain", {"length": 4})
GRID = HabitatConfig("grid", {"size": 5})
SLIDING = {"window": 3, "stride": 1, "fresh_validation": True}
REPLAY = {"replay_capacity": 6, "replayed_share": 0.5, "fresh_validation": True}


def tiny_config(*habitats: HabitatConfig, **changes: Any) -> DiscoverConfig:
    """Two agents on 3x3 Catch and one on a chain, unless given; rollouts of 4 rows in 3 parallel environments."""
    group = GroupConfig(habitats or (CATCH, CHAIN), TINY_AGENT, learning_rates=(1e-2, 3e-3))
    sizes = {"rollout_length": 4, "valid_length": 5, "num_envs": 3, "batch_size": 3}
    return small_config(Path("runs"), **({"groups": (group,)} | sizes | changes))


def random_rule(seed: int = 0) -> DiscoUpdateRule:
    """A rule whose parameters are far from 0, biases too: its targets depend on all of them."""
    rule = DiscoUpdateRule(TINY_RULE).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for param in rule.parameters():
        param.copy_(0.3 * torch.randn(param.shape, generator=generator, dtype=torch.float64))
    return rule


def params_of(rule: DiscoUpdateRule, scale: float = 1.0) -> Params:
    return {name: scale * param.detach() for name, param in rule.named_parameters()}


def make_group(config: DiscoverConfig, rank: int = 0, size: int = 1) -> LocalGroup:
    return LocalGroup(config, 0, random_rule(), torch.device("cpu"), Speed(), World(rank, size))


def pick(tree: Any, agent: int) -> Any:
    """One agent's part of a tree of [P, ...]."""
    return tree_map(lambda x: x[agent], tree)


@dataclass(frozen=True)
class Update:
    """What all agents were updated with."""

    eta: Params
    before: LearnerState
    values: ValueFunctionState | None
    batch: Rollout


@dataclass
class Watched:
    """A group that notes what it learns from and what its meta-loss is computed on."""

    group: LocalGroup
    updates: list[Update] = field(default_factory=list)
    collected: list[Rollout] = field(default_factory=list)
    values: ValueFunctionState | None = None
    valid: Rollout | None = None

    def __post_init__(self) -> None:
        parts: Any = self.group.meta_update.parts
        learn, meta_loss, collect = parts.update_values, parts.meta_loss_and_grad, parts.collect

        def noting(update: Any) -> Any:
            def noting_update(eta: Params, before: Any, batch: Any, rates: Tensor) -> Any:
                self.updates.append(Update(eta, before, None, batch))
                return update(eta, before, batch, rates)

            return noting_update

        def noting_learn(values: Any, batch: Any, logits: Tensor) -> Any:
            self.updates[-1] = replace(self.updates[-1], values=values)
            return learn(values, batch, logits)

        def noting_meta_loss(learners: Any, values: Any, valid: Any) -> Any:
            self.values, self.valid = values, valid
            return meta_loss(learners, values, valid)

        def noting_collect(*args: Any) -> Any:
            acting, rollout, sums = collect(*args)
            self.collected.append(rollout)
            return acting, rollout, sums

        parts.update_agents = noting(parts.update_agents)
        parts.update_agents_silently = noting(parts.update_agents_silently)
        parts.update_values, parts.meta_loss_and_grad = noting_learn, noting_meta_loss
        parts.collect = noting_collect


def meta_gradient_by_hand(watched: Watched, agent: int, updates: list[Update], value_out: ValueOuts | None = None) -> Params:
    """Autograd through one agent's updates, the state before the first of them a constant.

    Each update has parameters of the rule of its own, whose gradients are added up.
    """
    group, config = watched.group, watched.group.config
    learner, rate = group.meta_gradient.learner, group.rates[agent]
    valid = pick(watched.valid, agent)
    state: LearnerState = tree_map(Tensor.detach, pick(updates[0].before, agent))
    etas, loss = [], torch.zeros((), dtype=torch.float64)
    with torch.enable_grad():
        for update in updates:
            eta = {name: param.detach().clone().requires_grad_() for name, param in update.eta.items()}
            etas.append(eta)
            batch = pick(update.batch, agent)
            state, _, targets, _ = learner.differentiable_update(state, batch, eta, learning_rate=rate)
            loss = loss + target_regularizer(targets, config.weights)[0] / config.window
        out, _ = group.agent.unroll(state.params, valid.observations)
        if value_out is None:
            value_out, *_ = group.value_function.estimate(pick(watched.values, agent), valid, out["logits"].detach())
        value_out = tree_map(Tensor.detach, value_out)
        loss = loss + validation_loss(valid, out, value_out, config.weights)[0]
        leaves = [param for eta in etas for param in eta.values()]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    totals = {name: torch.zeros_like(param) for name, param in etas[0].items()}
    for i, grad in enumerate(grads):
        totals[list(totals)[i % len(totals)]] += grad
    return totals


def assert_close(got: Params, want: Params, tolerance: float = 1e-10) -> None:
    assert got.keys() == want.keys()
    size = max(float(x.abs().max()) for x in want.values())
    assert size > 0
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=tolerance, atol=tolerance * size)


def assert_close_trees(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    """Two trees have the same parts, and their tensors are close."""
    (ours, structure), (theirs, other) = (flatten_tree(tree) for tree in (got, want))
    assert structure == other
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0.01 * tolerance)


def poison(group: LocalGroup, agent: int, part: str = "") -> None:
    """Makes an agent's parameters NaN, all or those whose names begin with `part`."""
    params = group.state.learners.params
    nans = {name: torch.full_like(x[agent], torch.nan) for name, x in params.items() if name.startswith(part)}
    assert nans
    group.state.learners.params = params | put({name: params[name] for name in nans}, agent, nans)
