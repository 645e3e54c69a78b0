"""A discovery in memory: the rule, its optimiser and the whole population, and everything that changes while it runs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.group_checkpoint import load_group, merge_groups, save_group
from disco_torch.discovery.group_state import GroupGradient, along, is_finite
from disco_torch.discovery.habitats import shares_of
from disco_torch.discovery.local_group import LocalGroup
from disco_torch.discovery.logs import log_sums
from disco_torch.discovery.snapshots import load_start, save_snapshot
from disco_torch.envs import EnvironmentFailure
from disco_torch.optim import AdamState, adam_init, adam_update, apply_updates, flat, global_norm, unflat
from disco_torch.runs import World, first_not_finite, pack, resolve_speed, unpack
from disco_torch.runs.checkpoint import MAX_COUNT, check_names, check_range, typed, unpack_counters
from disco_torch.types import Logs, Params, tree_map

STATE_NAMES = ("rule", "optimizer", "groups", "counters", "sums", "summed", "lost", "device")


@dataclass
class DiscoveryCounters:
    """Over all processes: updates of the rule, of agents, environment steps, and lives begun."""

    meta_updates: int = 0
    updates: int = 0
    steps: int = 0
    lives: int = 0


class DiscoverySession:
    """One meta-update at a time. Same configuration and device: same rule, on any number of processes up to rounding.

    Args:
      config: settings of the discovery.
      world: processes that it is split over; defaults to a single one.
      imports_names: whether an environment named "module:function" may import its module. Not where the configuration is
        read from a file.
    """

    def __init__(self, config: DiscoverConfig, world: World | None = None, *, imports_names: bool = True) -> None:
        self.config, self.world = config, world or World()
        self.device = self.world.device(config.device)
        self.speed = speed = resolve_speed(config.speed, self.device, on_cpu="traced")
        dtype = getattr(torch, config.dtype)
        self.rule, moments = load_start(config)
        self.rule.to(self.device, dtype).requires_grad_(False)
        self.rule_params: Params = {name: param.detach().clone() for name, param in self.rule.named_parameters()}
        size = self.world.size
        for r in range(size):  # the same error in all of them
            if not any(mine for group in config.groups for mine in shares_of(group, r, size)):
                raise ValueError(f"the population must have agents for each of the {size} processes, process {r} has none.")
        self.groups: list[LocalGroup] = []
        try:
            for i in range(len(config.groups)):
                self.groups.append(LocalGroup(config, i, self.rule, self.device, speed, self.world, imports_names))
        except BaseException:
            self.close()
            raise
        self.opt_states = self._init_optimizers(moments)
        self.counters = DiscoveryCounters(lives=config.num_agents)
        self._zero = torch.zeros((), dtype=dtype, device=self.device)
        self._sums: Logs = {}
        self._summed = 0
        self.lost: list[str] = []
        """This process's agents whose meta-gradient or state was not finite, by name and meta-update."""

    def _init_optimizers(self, moments: AdamState | None) -> list[AdamState]:
        """One Adam; or one for each agent, [P, ...], a list with an entry for each group."""
        one = (
            adam_init(self.rule_params) if moments is None else unpack(pack(moments), adam_init(self.rule_params), "moments")
        )
        if not self.config.adam_per_agent:
            return [one]
        return [repeated(one, group.num_agents) for group in self.groups]

    def advance(self) -> None:
        """One update of the rule: all agents learn for a while, and their meta-gradients are averaged."""
        gradients = [group.advance(self.rule_params) for group in self.groups]
        self._check_environments()
        finite = [
            None if g is None else is_finite(g.grads) & group.is_finite()
            for g, group in zip(gradients, self.groups, strict=True)
        ]
        contributions = [
            self._contribution(i, g, ok)
            for i, (g, ok) in enumerate(zip(gradients, finite, strict=True))
            if g is not None and ok is not None
        ]
        number = torch.stack([ok.sum() for ok in finite if ok is not None]).sum().to(self._zero.dtype)
        total = self.world.sum(torch.cat([torch.stack(contributions).sum(0), number.reshape(1)]))
        num_finite = total[-1]
        means = total[:-1] / num_finite.clamp(min=1.0)
        mean_gradient, *mean_change = means.split(flat(self.rule_params).numel())
        change, opt_state = self._change(mean_gradient, *mean_change)
        params = apply_updates(self.rule_params, change)
        norm = torch.where(num_finite > 0, global_norm(change), self._zero)
        self._keep_logs(gradients, finite, mean_gradient, norm)
        if num_finite > 0:  # here the device is waited for, with nothing left to launch
            self.rule_params = params
            if opt_state is not None:
                self.opt_states = [opt_state]
        self._renew(finite, some_failed=bool(num_finite < self.config.num_agents))
        self.counters.meta_updates += 1
        for name, more in self._counts_of_a_meta_update().items():
            setattr(self.counters, name, getattr(self.counters, name) + more)

    def _counts_of_a_meta_update(self) -> dict[str, int]:
        """What a meta-update adds to the counters of updates and steps."""
        config = self.config
        updates = config.updates_per_meta_update
        rows = updates * config.rollout_length + config.valid_length
        return {"updates": updates * config.num_agents, "steps": rows * config.num_agents * config.num_parallel_envs}

    def _contribution(self, i: int, gradient: GroupGradient, ok: Tensor) -> Tensor:
        """The sum over a group's agents of their gradients and, with an Adam for each, of their changes of the rule."""
        # Zero and not a factor of zero: what is not finite stays so under multiplication.
        grads = {name: torch.where(along(ok, g), g, torch.zeros_like(g)) for name, g in gradient.grads.items()}
        gradients = flat({name: g.sum(0) for name, g in grads.items()})
        if not self.config.adam_per_agent:
            return gradients
        rate = self.config.learning_rate(self.counters.meta_updates)
        update = vmap(lambda g, s: adam_update(g, s, self.rule_params, self.config.optimizer, rate))
        changes, after = update(grads, self.opt_states[i])
        before = self.opt_states[i]
        self.opt_states[i] = select(ok, after, before)
        kept = {name: torch.where(along(ok, c), c, torch.zeros_like(c)).sum(0) for name, c in changes.items()}
        return torch.cat([gradients, flat(kept)])

    def _change(self, mean_gradient: Tensor, mean_change: Tensor | None = None) -> tuple[Params, AdamState | None]:
        """The change of the rule, and the one Adam's state after it.

        With an Adam for each agent the change is the mean of theirs, `mean_change`, and there is no such state.
        """
        if mean_change is not None:
            return unflat(mean_change, self.rule_params), None
        rate = self.config.learning_rate(self.counters.meta_updates)
        mean = unflat(mean_gradient, self.rule_params)
        return adam_update(mean, self.opt_states[0], self.rule_params, self.config.optimizer, rate)

    def close(self) -> None:
        """Closes the environments on the host."""
        for group in self.groups:
            group.habitats.close()

    def _check_environments(self) -> None:
        """If an environment on the host has failed in any process, all take the meta-update back and raise. Collective."""
        if not any(group.habitats.has_hosts for group in self.groups):
            return
        own = next((group.habitats.failure for group in self.groups if group.habitats.failure is not None), None)
        if not self.world.any(own is not None):
            return
        for group in self.groups:
            group.undo_advance()
        messages = self.world.gather("" if own is None else str(own))
        message = self.world.share(lambda: next(filter(None, messages or [])))
        raise EnvironmentFailure(message) from own

    def _failures_of_all(self, group: LocalGroup, failed: list[int]) -> dict[int, int]:
        """The agents of a group that failed in any process, see `LocalGroup.failures`. Collective."""
        lives = torch.zeros(group.own.num_agents, dtype=torch.long, device=self.device)
        for agent_id, life in group.failures(failed).items():
            lives[agent_id] = life
        return {agent_id: life for agent_id, life in enumerate(self.world.sum(lives).tolist()) if life}

    def _renew(self, finite: list[Tensor | None], some_failed: bool) -> None:
        """Starts new lives for agents whose life is over and for those that have failed."""
        born = 0
        for group, ok in zip(self.groups, finite, strict=True):
            failed = [] if ok is None else (~ok).nonzero().flatten().tolist()
            for agent in failed:
                where = f"agent {group.habitats.ids[agent]} of group {group.index} ({group.habitat_of(agent)})"
                self.lost.append(f"{where} at meta-update {self.counters.meta_updates}")
                warnings.warn(
                    f"the meta-gradient or the state of {where} is not finite; it is left out, a new life begins.",
                    stacklevel=2,
                )
            is_shared = some_failed and self.world.size > 1 and self.config.share_values
            born += group.renew(failed, self._failures_of_all(group, failed) if is_shared else None)
        self.counters.lives += born if self.world.size == 1 else int(self.world.sum(torch.tensor(born)))

    def _keep_logs(
        self, gradients: list[GroupGradient | None], finite: list[Tensor | None], mean: Tensor, change: Tensor
    ) -> None:
        """Adds up over this process's agents, on the device; nothing is read back before metrics are asked for."""
        sums: Logs = {"agents": mean.new_zeros(()), "nonfinite": mean.new_zeros(())}
        for group, gradient, ok in zip(self.groups, gradients, finite, strict=True):
            for name, value in log_sums(group, gradient, ok).items():
                sums[name] = sums.get(name, 0.0) + value
        norms = {"meta_grad_norm": torch.linalg.vector_norm(mean), "meta_up_norm": change}
        for name, value in (sums | {name: norm / self.world.size for name, norm in norms.items()}).items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._summed += 1

    def read_metrics(self) -> dict[str, float]:
        """Means since the last call, over all agents of all processes. Collective."""
        if not self._summed:
            return {}
        names = sorted(self._sums)
        totals = self.world.sum(torch.stack([self._sums[name] for name in names])).tolist()
        sums = dict(zip(names, totals, strict=True))
        agents, updates = max(1.0, sums.pop("agents")), self._summed
        metrics = {name: sums.pop(name) / updates for name in ("meta_grad_norm", "meta_up_norm")}
        metrics |= {name: sums.pop(name) for name in ("nonfinite", "pos_rewards", "neg_rewards")}
        metrics["rewards"] = sums.pop("rewards") / max(1.0, sums.pop("taken_steps"))
        for name in [name for name in sums if name.startswith("episodes/")]:
            env, episodes = name.removeprefix("episodes/"), sums.pop(name)
            returns = sums.pop(f"returns/{env}")
            if episodes:
                metrics[f"return/{env}"] = returns / episodes
        metrics |= {name: value / agents for name, value in sums.items()}
        self._sums, self._summed = {}, 0
        return metrics

    def not_finite(self) -> str | None:
        """The first parameter of the rule or moment of its optimiser that is not finite, in words, in all processes."""
        problem = first_not_finite({"rule": self.rule_params, "optimizer": self.opt_states})
        if not self.world.any(problem is not None):
            return None
        return problem or "the state of the rule's optimiser must be finite, which it is not in another process"

    def moments(self) -> AdamState:
        """The optimiser's state; with an Adam for each agent, the mean of them all. Collective."""
        if not self.config.adam_per_agent:
            return self.opt_states[0]
        parts = [
            torch.cat(
                [
                    flat(tree_map(lambda x: x.sum(0), s.mu)),
                    flat(tree_map(lambda x: x.sum(0), s.nu)),
                    s.count.sum().reshape(1).to(self._zero.dtype),
                ]
            )
            for s in self.opt_states
        ]
        total = self.world.sum(torch.stack(parts).sum(0)) / self.config.num_agents
        mu, nu = total[:-1].chunk(2)
        return AdamState(unflat(mu, self.rule_params), unflat(nu, self.rule_params), total[-1].round().long())

    def save_snapshot(self, path: Path, provenance: Mapping[str, Any]) -> None:
        """Writes a rule file and the optimiser's state beside it. Collective; the first process writes."""
        moments = self.moments()
        if self.world.is_first:
            save_snapshot(path, self.rule, self.rule_params, moments, provenance)

    def state_dict(self) -> dict[str, Any] | None:
        """Everything that changes, of all agents, in the first process; None in the others. Collective."""
        each = [None] * len(self.groups) if not self.config.adam_per_agent else self.opt_states
        parts = self.world.gather([save_group(group, opt) for group, opt in zip(self.groups, each, strict=True)])
        sums = {name: float(value) for name, value in self._all_sums().items()}
        if parts is None:
            return None
        groups = [merge_groups([part[i] for part in parts], group.num_agents) for i, group in enumerate(self.config.groups)]
        return {
            "rule": pack(self.rule_params),
            "optimizer": None if self.config.adam_per_agent else pack(self.opt_states[0]),
            "groups": groups,
            "counters": dataclasses.asdict(self.counters),
            "sums": sums,
            "summed": self._summed,
            "lost": list(self.lost),
            "device": self.device.type,
        }

    def _all_sums(self) -> Logs:
        """The sums over all processes; their logs have the same names."""
        names = sorted(self._sums)
        if not names:
            return {}
        totals = self.world.sum(torch.stack([self._sums[name] for name in names]))
        return dict(zip(names, totals, strict=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint, which may be of another number of processes."""
        check_names(state, STATE_NAMES)
        was = torch.device(typed(state, "device", str)).type
        same_device = was == self.device.type
        if not same_device:
            warnings.warn(
                f"the checkpoint is of a discovery on {was}; it continues on {self.device.type} with other random numbers.",
                stacklevel=2,
            )
        self.rule_params = unpack(state["rule"], self.rule_params, "rule")
        each: list[Any] = [None] * len(self.groups) if not self.config.adam_per_agent else list(self.opt_states)
        groups = typed(state, "groups", list)
        if len(groups) != len(self.groups):
            raise ValueError(f"the checkpoint must be of {len(self.groups)} groups of agents, got {len(groups)}.")
        for i, (group, whole) in enumerate(zip(self.groups, groups, strict=True)):
            each[i] = load_group(group, whole, each[i], self.rule_params, same_device, f"groups/{i}")
        if self.config.adam_per_agent:
            typed(state, "optimizer", NoneType)
        else:
            each = [unpack(state["optimizer"], self.opt_states[0], "optimizer")]
        self.opt_states = each
        self.counters = unpack_counters(state, self.counters)
        for name, each_time in self._counts_of_a_meta_update().items():
            expected = each_time * self.counters.meta_updates
            check_range(f"counters/{name}", [getattr(self.counters, name)], expected, expected)
        # The sums so far are the first process's; the others begin at 0.
        share = 1.0 if self.world.is_first else 0.0
        sums, self._summed = typed(state, "sums", dict), typed(state, "summed", int)
        check_range("summed", [self._summed], 0, MAX_COUNT)
        self._sums = {name: self._zero + share * typed(sums, name, float, "sums") for name in sums}
        self.lost = typed(state, "lost", list)


def repeated(tree: Any, number: int) -> Any:
    """A tree of [number, ...] whose rows are all the given one."""
    return tree_map(lambda x: x.expand(number, *x.shape).clone(), tree)


def select(which: Tensor, a: Any, b: Any) -> Any:
    """Trees of [P, ...]: the rows of `a` where `which` [P], those of `b` elsewhere."""
    return tree_map(lambda x, y: torch.where(along(which, x), x, y), a, b)
