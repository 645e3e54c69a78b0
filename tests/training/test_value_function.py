"""The value function: what it reads of rows, and what it does at time limits. Its numbers are checked by the goldens."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from disco_torch import ValueFunction, ValueFunctionConfig
from disco_torch.training import ValueFunctionState
from disco_torch.types import Rollout, flatten_tree, tree_map
from disco_torch.values import vtrace

ROWS, B, OBS, A, CUT = 8, 3, 4, 2, 4


def make_rollout(seed: int = 0) -> Rollout:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(ROWS, B, *shape, generator=generator, dtype=torch.float64)

    discounts = (normal() > -0.8).double()
    return Rollout(normal(OBS), (normal() > 0).long(), normal(), discounts, normal(A))


def make_function(aligned: bool, **changes: float) -> tuple[ValueFunction, ValueFunctionState]:
    config = ValueFunctionConfig(dense=(8,), aligned=aligned, head_w_init_std=1.0, **changes)
    function = ValueFunction(torch.zeros(OBS), config)
    function.net.double()
    return function, function.init(torch.Generator().manual_seed(1))


def cut_at(rollout: Rollout, row: int) -> Rollout:
    truncations = torch.zeros(ROWS, B, dtype=torch.bool)
    truncations[row] = True
    return dataclasses.replace(rollout, truncations=truncations)


@pytest.mark.parametrize("aligned", [False, True])
def test_which_row_a_steps_reward_and_end_are_read_from(aligned: bool) -> None:
    (function, state), rollout = make_function(aligned), make_rollout()
    outs, raw, _, _ = function.estimate(state, rollout, rollout.behaviour_logits)
    rows = slice(1, None) if aligned else slice(None, -1)
    values = function.encoding.to_scalar(raw)
    discounts = 0.99 * rollout.discounts[rows]
    by_hand = vtrace(values, rollout.rewards[rows], discounts, torch.ones(ROWS - 1, B, dtype=torch.float64), 0.96)
    torch.testing.assert_close(outs.adv, by_hand.advantages, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("aligned", [False, True])
def test_before_a_cut_a_rollout_is_one_that_stops_there(aligned: bool) -> None:
    (function, state), rollout = make_function(aligned), cut_at(make_rollout(), CUT)
    rollout.discounts[CUT] = 1.0
    short = tree_map(lambda x: x[: CUT + 1], rollout)
    logits = make_rollout(seed=1).behaviour_logits
    whole, *_ = function.estimate(state, rollout, logits)
    alone, *_ = function.estimate(state, short, logits[: CUT + 1])
    for name in ("adv", "value_target", "td"):
        torch.testing.assert_close(getattr(whole, name)[:CUT], getattr(alone, name), rtol=1e-10, atol=1e-12)
    uncut, *_ = function.estimate(state, dataclasses.replace(rollout, truncations=None), logits)
    assert whole.adv is not None and uncut.adv is not None and not torch.allclose(whole.adv[:CUT], uncut.adv[:CUT])


@pytest.mark.parametrize("aligned", [False, True])
def test_a_step_that_was_not_executed_teaches_nothing(aligned: bool) -> None:
    """Of two rollouts that differ in the action at a cut episode's last row alone, the same is learned."""
    # Errors are normalised by their deviation over all steps, which is not what this is about: a large epsilon hides it.
    function, state = make_function(aligned, ema_eps=1e6, outer_value_cost=1e6)
    rollout = cut_at(make_rollout(), CUT)
    rollout.discounts[CUT] = 1.0
    actions = rollout.actions.clone()
    actions[CUT] = 1 - actions[CUT]
    logits = make_rollout(seed=1).behaviour_logits

    def learned(**changes: Tensor | None) -> Tensor:
        after, _, _ = function.update(state, dataclasses.replace(rollout, **changes), logits)
        return torch.cat([moment.flatten() for moment in flatten_tree(after.opt_state.mu)[0]])

    torch.testing.assert_close(learned(actions=actions), learned(), rtol=1e-4, atol=1e-8)
    assert not torch.allclose(learned(actions=actions, truncations=None), learned(truncations=None), rtol=1e-2)
