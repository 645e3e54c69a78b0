"""A value function beside the agent, for the meta-loss of a discovery and for the policy-gradient rule.

The values that a discovered rule learns from are its own: see `rules.disco.DiscoUpdateRule.estimate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from disco_torch.agents import Agent, AgentConfig
from disco_torch.checks import check_between, check_shape
from disco_torch.data import (
    check_rollout,
    executed_mean,
    executed_weights,
    loss_mask,
    masked_mean,
    reference_steps,
    steps_of,
)
from disco_torch.optim import AdamConfig, AdamState, adam_init, adam_update, apply_updates
from disco_torch.training.over_processes import over_processes
from disco_torch.types import (
    EmaState,
    Logs,
    MeanAcrossProcesses,
    Observations,
    OutputSpec,
    Params,
    Rollout,
    ValueOuts,
    lambdas_at_cuts,
    tree_dataclass,
)
from disco_torch.values import MovingAverage, ValueEncoding, estimate_values, importance_weights, normalize_estimates


@dataclass(frozen=True)
class ValueFunctionConfig:
    """The network and its learning; the defaults are the reference's for discovery."""

    dense: Sequence[int] = (256, 256)
    """Sizes of the network's layers."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    max_abs_update: float = 1.0
    """Bound on the size of each entry of Adam's update."""
    discount_factor: float = 0.99
    """Discount factor of the returns."""
    td_lambda: float = 0.96
    """Trace parameter of V-trace."""
    outer_value_cost: float = 1.0
    """Weight of the value loss."""
    ema_decay: float = 0.99
    """Decay rate of the moving averages that advantages are normalised with."""
    ema_eps: float = 1e-6
    """Small constant added to the denominator of normalised advantages."""
    head_w_init_std: float | None = 1e-2
    """Initial standard deviation of the head's weights."""
    aligned: bool = False
    """Use the reward and discount that a step earned, those of row t+1; needed to learn a policy. Without it, step t gets
    those of row t, which arrived with its observation, as in the reference's discovery."""

    def __post_init__(self) -> None:
        check_between("discount_factor", self.discount_factor, 0.0, 1.0)
        check_between("td_lambda", self.td_lambda, 0.0, 1.0)


@tree_dataclass
class ValueFunctionState:
    """Parameters of a value function, its optimiser's state, and the moments of advantages and value errors."""

    params: Params
    opt_state: AdamState
    adv_ema_state: EmaState
    td_ema_state: EmaState


class ValueFunction:
    """State values from a network of their own, in the signed hyperbolic's space, with V-trace targets."""

    def __init__(self, example: Observations, config: ValueFunctionConfig | None = None) -> None:
        self.config = config = config or ValueFunctionConfig()
        sizes = AgentConfig(dense=config.dense, head_w_init_std=config.head_w_init_std)
        self.net = Agent(example, 1, OutputSpec(flat={"value": 1}), sizes)
        self.encoding = ValueEncoding(nonlinear=True)
        self.average = MovingAverage(config.ema_decay, config.ema_eps)
        self.optimizer = AdamConfig(config.learning_rate, config.max_abs_update)

    def init(self, generator: torch.Generator | None = None, params: Params | None = None) -> ValueFunctionState:
        params = self.net.init(generator) if params is None else params
        like = next(iter(params.values()))
        states = [self.average.init_state(like.device, like.dtype) for _ in range(2)]
        return ValueFunctionState(params, adam_init(params), *states)

    def estimate(
        self,
        state: ValueFunctionState,
        rollout: Rollout,
        logits: Tensor,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[ValueOuts, Tensor, EmaState, EmaState]:
        """Values and normalised advantages of a rollout under a policy.

        Args:
          state: parameters and averages.
          rollout: [T+1, B] rows.
          logits: [T+1, B, A], of the policy whose values are asked for.

        Returns:
          Estimates, the network's outputs [T+1, B, 1], and the averages after taking the advantages and TD errors in.
        """
        outs, net_out = self.raw_estimate(state.params, rollout, logits)
        averages = (state.adv_ema_state, state.td_ema_state)
        outs, adv_state, td_state = normalize_estimates(outs, *averages, self.average, mean_across_processes)
        return outs, net_out, adv_state, td_state

    def raw_estimate(self, params: Params, rollout: Rollout, logits: Tensor) -> tuple[ValueOuts, Tensor]:
        """`estimate` without normalised forms: estimates, and the network's outputs [T+1, B, 1]."""
        check_shape("logits", logits, rollout.behaviour_logits.shape, "it must match the rollout's `behaviour_logits`")
        out, _ = self.net.unroll(params, rollout.observations)
        steps = steps_of(rollout) if self.config.aligned else reference_steps(rollout)
        outs = estimate_values(
            self.encoding.to_scalar(out["value"]),
            steps.rewards,
            self.config.discount_factor * (~steps.is_terminal).to(logits.dtype),
            importance_weights(logits[:-1], rollout.behaviour_logits[:-1], rollout.actions[:-1]),
            lambdas_at_cuts(self.config.td_lambda, steps.is_truncated, logits.dtype),
        )
        return outs, out["value"]

    def update(
        self,
        state: ValueFunctionState,
        rollout: Rollout,
        logits: Tensor,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[ValueFunctionState, ValueOuts, Logs]:
        """One step towards the V-trace targets, the TD error normalised. Estimates are those from before the step.

        The loss fits the network's raw output, in the transformed space, to itself plus the normalised TD error.
        """
        check_rollout(rollout)
        rollout = dataclasses.replace(rollout, first_state=None)  # of the agent; a value function has no memory
        # detached: the value function learns beside the agent, it passes no gradient on to it.
        logits = logits.detach()

        def loss_fn(params: Params) -> tuple[Tensor, tuple[ValueOuts, EmaState, EmaState]]:
            here = ValueFunctionState(params, state.opt_state, state.adv_ema_state, state.td_ema_state)
            outs, net_out, adv_state, td_state = self.estimate(here, rollout, logits, mean_across_processes)
            assert outs.normalized_td is not None
            # detached inside: the target is a constant.
            loss = ValueEncoding().loss_from_td(net_out[:-1], outs.normalized_td.detach())
            # The reference counts all rows. Steps that were not executed (behind a time limit) never count.
            mean = masked_mean(loss, loss_mask(rollout)) if self.config.aligned else executed_mean(loss, rollout)
            return self.config.outer_value_cost * mean, (outs, adv_state, td_state)

        with torch.no_grad():
            grads, (outs, adv_state, td_state) = grad(loss_fn, has_aux=True)(state.params)
            if mean_across_processes is not None:
                mask = loss_mask(rollout) if self.config.aligned else executed_weights(rollout)
                counted = torch.ones_like(logits[:-1, :, 0]) if mask is None else mask
                grads, _ = over_processes(grads, torch.zeros_like(logits[0, 0, 0]), counted, mean_across_processes)
            changes, opt_state = adam_update(grads, state.opt_state, state.params, self.optimizer)
            params = apply_updates(state.params, changes)
            assert outs.normalized_td is not None and outs.td is not None
            logs = {
                "value_loss": self.config.outer_value_cost * 0.5 * torch.square(outs.normalized_td).mean(),
                "value_td": outs.td.mean(),
                "value_normalized_td": outs.normalized_td.mean(),
            }
        return ValueFunctionState(params, opt_state, adv_state, td_state), outs, logs
