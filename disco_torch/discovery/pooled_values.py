"""Value functions that agents share wherever they are: learned from sums over agents, added up over processes.

A shared value function's update is `ValueFunction.update` on the steps of all its agents. Everything in it that joins agents
is a mean: of advantages and TD errors and of their squares, and of the gradient, which is linear in the TD error and can
therefore be scaled after the sum. So each process adds up its own agents, and one reduction is enough:

    g = 1 / (n s) sum_steps d loss(v, td) / d params,     s = sqrt(var(td)) + eps,     n = number of steps that count

Where one process has all agents and equally many for each function, they are one batch instead (`InnerLoop`): the same up to
rounding, and quicker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import grad, vmap

from disco_torch.data import executed_weights, loss_mask
from disco_torch.optim import adam_update, apply_updates, flat, unflat
from disco_torch.training import ValueFunction, ValueFunctionState
from disco_torch.types import Params, Rollout, ValueOuts, tree_map
from disco_torch.values import ValueEncoding

T = TypeVar("T")
NUM_MOMENTS = 6
"""Numbers of a row of `PooledValues.sums` before the gradient: sums of advantages, their squares, TD errors, their squares;
steps, and steps that count in the loss."""
MASK_EPSILON = 1e-8
"""As in `masked_mean`."""


@dataclass(frozen=True)
class PooledValues:
    """The `G` value functions of a group, for this process's agents.

    Attributes:
      value_function: the network and its learning.
      counts: how many of this process's agents each function has; agents are in the order of their functions.
      is_masked: whether any step may be left out of the loss.
      total: adds up a tensor over all processes.
    """

    value_function: ValueFunction
    counts: Sequence[int]
    is_masked: bool
    total: Callable[[Tensor], Tensor]

    def blank_sums(self, like: Params) -> tuple[Tensor, Tensor]:
        """Zeros in the shapes of what a process with agents adds up: in an update, and for the meta-loss."""
        leaf, G = next(iter(like.values())), len(self.counts)
        size = sum(param.numel() for param in like.values())
        return leaf.new_zeros(G, NUM_MOMENTS + size), leaf.new_zeros(G, 3)

    def sums(self, values: ValueFunctionState, rollout: Rollout, logits: Tensor) -> Tensor:
        """Sums over this process's agents for an update, [G, n]; rollouts are [P, rows, B, ...]."""
        return self._by_function(vmap(self._sums_of_agent)(self._of_agents(values).params, rollout, logits))

    def step(self, values: ValueFunctionState, totals: Tensor) -> ValueFunctionState:
        """The update of all functions from the sums over all agents, [G, n]."""
        return vmap(self._step_of_function)(values, totals)

    def estimates(self, values: ValueFunctionState, rollout: Rollout, logits: Tensor) -> tuple[ValueOuts, Tensor]:
        """Estimates of each agent without normalised forms, [P, ...], and sums to normalise them by, [G, 3]."""

        def one(params: Params, rollout: Rollout, logits: Tensor) -> tuple[ValueOuts, Tensor]:
            outs, _ = self.value_function.raw_estimate(params, rollout, logits)
            assert outs.adv is not None
            count = torch.full((), outs.adv.numel(), dtype=outs.adv.dtype, device=outs.adv.device)
            return outs, torch.stack([outs.adv.sum(), torch.square(outs.adv).sum(), count])

        outs, sums = vmap(one)(self._of_agents(values).params, rollout, logits)
        return outs, self._by_function(sums)

    def normalized(self, values: ValueFunctionState, outs: ValueOuts, totals: Tensor) -> ValueOuts:
        """The estimates of `estimates` with advantages normalised by the moments of all agents of their function."""
        average = self.value_function.average
        states = vmap(lambda state, total: average.with_means(total[:2] / total[2], state))(values.adv_ema_state, totals)
        assert outs.adv is not None
        return dataclasses.replace(outs, normalized_adv=vmap(average.normalize)(outs.adv, self._of_agents(states)))

    def _of_agents(self, tree: T) -> T:
        """From [G, ...] to [P, ...]: each agent's own function."""

        def repeated(x: Tensor) -> Tensor:
            return torch.cat([x[i].expand(count, *x.shape[1:]) for i, count in enumerate(self.counts)])

        return tree_map(repeated, tree)

    def _by_function(self, rows: Tensor) -> Tensor:
        """The sums of [P, n] over the agents of each function, [G, n]."""
        return torch.stack([part.sum(0) for part in rows.split(list(self.counts))])

    def _sums_of_agent(self, params: Params, rollout: Rollout, logits: Tensor) -> Tensor:
        mask = loss_mask(rollout) if self.value_function.config.aligned else executed_weights(rollout)

        def loss_fn(params: Params) -> tuple[Tensor, tuple[ValueOuts, Tensor]]:
            outs, net_out = self.value_function.raw_estimate(params, rollout, logits)
            assert outs.td is not None
            # detached inside: the target is a constant.
            losses = ValueEncoding().loss_from_td(net_out[:-1], outs.td.detach())
            weights = torch.ones_like(losses) if mask is None else mask.to(losses.dtype)
            return self.value_function.config.outer_value_cost * (losses * weights).sum(), (outs, weights)

        grads, (outs, weights) = grad(loss_fn, has_aux=True)(params)
        assert outs.adv is not None and outs.td is not None
        moments = [x.sum() for value in (outs.adv, outs.td) for x in (value, torch.square(value))]
        steps = torch.full_like(moments[0], outs.td.numel())
        return torch.cat([torch.stack([*moments, steps, weights.sum()]), flat(grads)])

    def _step_of_function(self, state: ValueFunctionState, total: Tensor) -> ValueFunctionState:
        fn = self.value_function
        moments, steps, weight, gradient = total[:4], total[4], total[5], total[NUM_MOMENTS:]
        adv_state = fn.average.with_means(moments[:2] / steps, state.adv_ema_state)
        td_state = fn.average.with_means(moments[2:] / steps, state.td_ema_state)
        weight = weight + MASK_EPSILON if self.is_masked else weight
        # The normalised TD error is a multiple of the TD error, and so is the gradient.
        gradient = fn.average.normalize(gradient / weight, td_state, subtract_mean=False)
        changes, opt_state = adam_update(unflat(gradient, state.params), state.opt_state, state.params, fn.optimizer)
        return ValueFunctionState(apply_updates(state.params, changes), opt_state, adv_state, td_state)
