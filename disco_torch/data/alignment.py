"""From rows to steps: the ONLY place that aligns rewards, ends and first rows.

A rollout has rows, each with the observation, the action taken on it, and the reward and discount that ARRIVED with it. A
rule sees steps: step t leaves row t, its reward and its end are in row t+1.

    row       0          1          2          3
    obs       s0         s1         s'0        s'1        the episode ended with step 1; row 2 already shows the next one
    reward    .          r0         r1         r'0
    discount  1          1          0          1
    step      0: s0->s1  1: s1->end  2: s'0->s'1          is_terminal = 0 1 0;  loss mask = 1 1 0

The mask leaves out the steps whose own row closed an episode, as the reference does: the first step of each episode but
the rollout's own first.

A time limit is not an end: the row it leads to holds the episode's LAST observation and is marked in `truncations`. Its
own step leads nowhere and is masked; the step before it bootstraps from it, as the last step of a rollout does, and
nothing flows across.

    row       0          1          2          3
    obs       s0         s1         s2 (last)  s'1        cut by the limit; s'0 is left out
    trunc.    0          0          1          0
    step      0: s0->s1  1: s1->s2  2: none               is_truncated = 0 1 0;  loss mask = 1 1 0

First steps count where a rollout says which rows have a true action, in `executed`. An environment that shows an episode's
last observation ignores the action on it; its next row, of a reset, has reward 0 and discount 0:

    row       0          1          2 (last)   3 (reset)  4
    obs       s0         s1         s2         s'0        s'1
    reward    .          r0         r1         0          r'0
    discount  1          1          0          0          1
    executed  1          1          0          1          1         loss mask = 1 1 0 1, the golden one 1 1 0 0

One-step episodes, where each row closes one episode and begins the next:

    row       0          1          2          3
    obs       s0         s'0        s''0       s'''0
    reward    .          r0         r'0        r''0
    discount  1          0          0          0
    executed  1          1          1          1
    step      0: s0->end 1: s'0->end 2: s''0->end         is_terminal = 1 1 1;  loss mask = 1 1 1, the golden one 1 0 0

A row that a time limit cut never counts: the action was executed on the next episode's first observation, which it does
not hold.

An agent with memory reads the rows of a rollout from its `first_state` on, and its memory is reset before each row that
begins an episode. Behind a cut it has not read the first observation, s'0 above: until the next end, no step counts for such
an agent. Nor do the first steps of a trajectory, as many as `burn_in` says.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from disco_torch.checks import (
    check_actions,
    check_bool,
    check_finite,
    check_floating,
    check_not_empty,
    check_prefix,
    check_rank,
    check_shape,
)
from disco_torch.envs import EnvStep
from disco_torch.types import (
    AgentOutput,
    LearningOutputs,
    Rollout,
    UpdateRuleInputs,
    ValueOuts,
    tree_leaves,
)


class Steps(NamedTuple):
    """What the `T` steps between the rows of a rollout earned and how they ended, [T, B] each.

    `is_truncated` marks steps into the last row of an episode cut by a time limit: returns bootstrap from that row and
    nothing flows across. None: no step was cut.
    """

    rewards: Tensor
    is_terminal: Tensor
    is_truncated: Tensor | None


def steps_of(rollout: Rollout) -> Steps:
    """The steps of a rollout: reward and end of step t are in row t+1, with which they arrived."""
    return Steps(rollout.rewards[1:], rollout.discounts[1:] == 0, _steps_into_cuts(rollout))


def reference_steps(rollout: Rollout) -> Steps:
    """The steps as the reference's value function reads them when it discovers, one off: step t has reward and end of row t.

    The reference has no time limits. Steps out of a cut episode's last row lead nowhere here, too: see `executed_mean`.
    """
    return Steps(rollout.rewards[:-1], rollout.discounts[:-1] == 0, _steps_into_cuts(rollout))


def _steps_into_cuts(rollout: Rollout) -> Tensor | None:
    return None if rollout.truncations is None else rollout.truncations[1:]


def rule_inputs(
    rollout: Rollout, agent_out: AgentOutput | LearningOutputs, value_out: ValueOuts | None = None, burn_in: int = 0
) -> UpdateRuleInputs:
    """What a rule sees of a rollout under an agent's outputs, [T+1, B, ...] each; for `burn_in` see `loss_mask`."""
    steps = steps_of(rollout)
    learning = agent_out if isinstance(agent_out, LearningOutputs) else LearningOutputs(agent_out)
    return UpdateRuleInputs(
        observations=rollout.observations,
        actions=rollout.actions,
        rewards=steps.rewards,
        is_terminal=steps.is_terminal,
        agent_out=learning.outputs,
        behaviour_agent_out={"logits": rollout.behaviour_logits},
        value_out=value_out,
        is_truncated=steps.is_truncated,
        resets=memory_resets(rollout),
        taken_out=learning.taken,
        agent_summary=learning.summary,
        loss_mask=loss_mask(rollout, burn_in),
    )


def memory_resets(rollout: Rollout) -> Tensor:
    """[T+1, B]: rows whose observation begins an episode, before which a memory is reset."""
    resets = rollout.discounts == 0
    if rollout.truncations is not None:
        after_cut = torch.cat([torch.zeros_like(rollout.truncations[:1]), rollout.truncations[:-1]])
        resets = resets | after_cut
    return resets


def executed_rows(step: EnvStep) -> Tensor:
    """[B] bool: rows whose action is executed on the observation that a rollout holds of them.

    Not those that show the last observation of an episode: an environment that resets in a step of its own ignores the
    action; one that has reset already, behind a time limit, executes it on an observation that the rollout does not hold.
    """
    shows_last = (step.episode_ends & ~step.is_first) | step.truncations
    return ~shows_last


def misses_first_row(rollout: Rollout) -> Tensor | None:
    """[T+1, B] bool: rows whose memory has not read the first observation of their episode; None where there are none.

    Those from a cut to the next row with a discount of 0, which shows a first observation.
    """
    if rollout.first_state is None or rollout.truncations is None:
        return None
    rows = torch.arange(rollout.rewards.shape[0], device=rollout.rewards.device).unsqueeze(-1)  # [T+1, 1]
    last_cut, last_end = (
        torch.where(marks, rows, -1).cummax(0).values for marks in (rollout.truncations, rollout.discounts == 0)
    )
    return last_cut > last_end


def check_burn_in(burn_in: int, rows: int) -> None:
    """Raises unless `burn_in` leaves a step of a trajectory of so many rows to learn from."""
    if not 0 <= burn_in < rows - 1:
        raise ValueError(
            f"`burn_in` must be 0 to {rows - 2} for trajectories of {rows} rows, so that a step counts in the loss, got "
            f"{burn_in}; use longer rollouts."
        )


def loss_mask(rollout: Rollout, burn_in: int = 0) -> Tensor:
    """[T, B]: 1 for the steps that the loss is averaged over, in the dtype of the rewards.

    Those of the rows that are `executed`, where a rollout says so; else those that the reference counts.

    Args:
      rollout: [T+1, B] rows.
      burn_in: number of first steps that are left out and only warm up the agent's memory.
    """
    if rollout.executed is not None:
        counts = rollout.executed[:-1]
    else:
        counts = rollout.discounts[:-1] > 0
        if rollout.truncations is not None:
            counts = counts & ~rollout.truncations[:-1]
    misses = misses_first_row(rollout)
    if misses is not None:
        counts = counts & ~misses[:-1]
    if burn_in:
        check_burn_in(burn_in, rollout.rewards.shape[0])
        counts = torch.cat([torch.zeros_like(counts[:burn_in]), counts[burn_in:]])
    return counts.to(rollout.rewards.dtype)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """sum(x mask) / (sum(mask) + 1e-8), over [T, B]."""
    check_shape("mask", mask, x.shape, "one entry for each step")
    return torch.sum(x * mask) / (torch.sum(mask) + 1e-8)


def executed_weights(rollout: Rollout) -> Tensor | None:
    """[T, B] bool: the steps that were executed, all but those out of the last row of a cut episode; None if all were.

    For an agent with memory all steps behind a cut are left out, see `misses_first_row`.
    """
    misses, counts = misses_first_row(rollout), rollout.executed
    if counts is None:
        if rollout.truncations is None:
            return None
        counts = ~rollout.truncations
    counts = counts if misses is None else counts & ~misses
    return counts[:-1]


def executed_mean(x: Tensor, rollout: Rollout) -> Tensor:
    """The mean of [T, B] over the steps that were executed, see `executed_weights`."""
    counts = executed_weights(rollout)
    return x.mean() if counts is None else masked_mean(x, counts.to(x.dtype))


def check_rollout(rollout: Rollout) -> None:
    """Raises where the rows of a rollout do not fit together."""
    check_rank("rewards", rollout.rewards, 2, "[T+1, B]")
    check_floating("rewards", rollout.rewards)
    check_not_empty("rewards", rollout.rewards)
    if rollout.rewards.shape[0] < 2:
        raise ValueError("`rewards` must have at least 2 rows, one step between them, got 1; collect longer rollouts.")
    rows = tuple(rollout.rewards.shape)
    hint = "every part of a rollout has the same rows"
    check_shape("discounts", rollout.discounts, rows, hint)
    check_shape("actions", rollout.actions, rows, hint)
    check_shape("behaviour_logits", rollout.behaviour_logits, (*rows, None), hint)
    check_actions("actions", rollout.actions, rollout.behaviour_logits.shape[2])
    if rollout.truncations is not None:
        check_shape("truncations", rollout.truncations, rows, hint)
        check_bool("truncations", rollout.truncations)
    if rollout.executed is not None:
        check_shape("executed", rollout.executed, rows, hint)
        check_bool("executed", rollout.executed)
    for i, leaf in enumerate(tree_leaves(rollout.observations)):
        check_prefix(f"observations[{i}]", leaf, rows, hint)
        check_finite(f"observations[{i}]", leaf)
    check_finite("rewards", rollout.rewards)
    check_finite("discounts", rollout.discounts)
    check_finite("behaviour_logits", rollout.behaviour_logits)
