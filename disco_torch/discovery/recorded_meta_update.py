"""How a meta-update is made fast: which of its parts are recorded, compiled and captured.

All of it is captured as one, unless something in it must run on the host: a step of environments that are not tensors, or a
sum over processes. Then its parts are captured one by one.

Streams are part of `meta_update` (`prefetched` acting, value functions on a `SideStream`); they do nothing unless captured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from disco_torch.discovery.group_state import Draws, GroupGradient, GroupState
from disco_torch.discovery.inner_loop import InnerLoop, MetaUpdateParts, meta_update
from disco_torch.kernels import Recorded, Speed
from disco_torch.types import Params

LARGE_POPULATION = 1 << 22
"""Number of parameters of all agents together from which their optimisers work by parameter where they are compiled."""
FEW_UPDATES = 4
"""Up to this number of updates in a meta-update, all of them compute logs: one recording serves them all."""


class RecordedMetaUpdate:
    """`meta_update` of one group, at some speed.

    Args:
      loop: its parts, as plain functions.
      speed: stages to go through.

    Attributes:
      parts: the same parts, recorded.
    """

    def __init__(self, loop: InnerLoop, speed: Speed) -> None:
        # The parts of a meta-update are compiled, which is captured as a whole: compiled as one graph it would be too long.
        is_whole = not loop.habitats.has_hosts and loop.pooled is None
        part = Speed(speed.trace, speed.compile, speed.capture and not is_whole)
        agent: Any = loop.meta_gradient.learner.agent
        is_large = loop.habitats.num_agents * sum(x.numel() for x in agent.parameters()) >= LARGE_POPULATION
        update = Recorded(loop.update_agents, part, "the agents' update", by_parameter=is_large)
        silently = update
        if loop.config.updates_per_meta_update > FEW_UPDATES:
            # The logs are a sixth of what an update of many agents reads and writes; only the last update needs them.
            silently = Recorded(
                lambda *args: loop.update_agents(*args)[:-1],
                part,
                "the agents' update without logs",
                by_parameter=is_large,
            )
            # To compile the same graph again, for one update of many, would take longer than it ever saves.
            with_logs = Speed(speed.trace, capture=part.capture)
            update = Recorded(loop.update_agents, with_logs, "the agents' update with logs")
        # Environments are many small operations: they compile quickly and gain much.
        acting = Speed(speed.trace, speed.compile or speed.capture, part.capture)
        self.parts = MetaUpdateParts(
            act=acting_with_hosts(loop, acting) if loop.habitats.has_hosts else Recorded(loop.act, acting, "acting"),
            update_agents=update,
            update_agents_silently=silently,
            update_values=Recorded(loop.update_values, part, "the value functions' update", by_parameter=is_large),
            meta_loss_and_grad=Recorded(loop.meta_loss_and_grad, part, "the meta-loss"),
            backward_update=Recorded(loop.backward_update, part, "the backward pass", by_parameter=is_large),
            count_inputs=Recorded(loop.count_inputs, part, "the statistics of inputs"),
            normalize=Recorded(loop.normalize, part, "the normalisation of inputs"),
        )
        if loop.pooled is not None:
            self.parts.update_values, self.parts.meta_loss_and_grad = pooled_parts(loop, part)
        self._loop = loop
        whole = Speed(capture=speed.capture and is_whole)
        self._meta_update = Recorded(self._plain, whole, "the meta-update", carry=True)

    def _plain(
        self, state: GroupState, rule_params: Params, draws: Draws, rates: Tensor
    ) -> tuple[GroupState, GroupGradient]:
        return meta_update(self._loop, self.parts, state, rule_params, draws, rates)

    def __call__(
        self, state: GroupState, rule_params: Params, draws: Draws, rates: Tensor
    ) -> tuple[GroupState, GroupGradient]:
        """See `meta_update`. With a capture, a state that was passed in or returned is overwritten by the next call."""
        after: tuple[GroupState, GroupGradient] = self._meta_update(state, rule_params, draws, rates)
        return after


def acting_with_hosts(loop: InnerLoop, speed: Speed) -> Callable[..., Any]:
    """`InnerLoop.act` where some environments are stepped on the host: what comes before and after that is recorded."""
    decide = Recorded(loop.decide, speed, "the agents' decisions")
    move = Recorded(loop.habitats.move, speed, "acting")

    def act(params: Params, acting: Any, uniforms: Tensor, env_uniforms: Any, snapshot: Any = None) -> Any:
        decisions = decide(params, acting, uniforms, snapshot)
        host_steps = loop.habitats.step_hosts(decisions.actions)
        after, sums = move(acting, decisions, env_uniforms, host_steps)
        return after, (decisions.row, sums)

    return act


def pooled_parts(loop: InnerLoop, speed: Speed) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`update_values` and `meta_loss_and_grad` for pooled value functions: sums over processes are between recordings."""
    pooled = loop.pooled
    assert pooled is not None
    sums = Recorded(pooled.sums, speed, "the value functions' gradient")
    step = Recorded(pooled.step, speed, "the value functions' update")
    estimates = Recorded(loop.pooled_estimates, speed, "the values of the meta-loss")
    meta_loss_and_grad = Recorded(loop.pooled_meta_loss_and_grad, speed, "the meta-loss")

    def update_values(values: Any, rollout: Any, logits: Tensor) -> tuple[Any, Any]:
        rollout = dataclasses.replace(rollout, first_state=None)  # of the agents; value functions have no memory
        return step(values, pooled.total(sums(values, rollout, logits))), {}

    def with_totals(learners: Any, values: Any, valid: Any) -> Any:
        outs, own_sums = estimates(learners, values, valid)
        return meta_loss_and_grad(learners, values, valid, outs, pooled.total(own_sums))

    return update_values, with_totals
