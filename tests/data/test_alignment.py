"""From rows to steps: the two tables of `data/alignment.py`, and rollouts that do not fit together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from disco_torch.checks import checking
from disco_torch.data import (
    check_rollout,
    executed_mean,
    loss_mask,
    masked_mean,
    memory_resets,
    reference_steps,
    rule_inputs,
    steps_of,
)
from disco_torch.types import Rollout, UpdateRuleInputs, ValueOuts

MakeRollout = Callable[..., Rollout]


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(-1)


def four_rows(discounts: Tensor, truncations: Tensor | None = None) -> Rollout:
    return Rollout(
        observations=column(0.0, 1.0, 2.0, 3.0).unsqueeze(-1),
        actions=torch.tensor([[0], [1], [0], [1]]),
        rewards=column(-9.0, 10.0, 11.0, 12.0),
        discounts=discounts,
        behaviour_logits=torch.arange(8.0).reshape(4, 1, 2),
        truncations=truncations,
    )


def flat(x: Tensor | None) -> list[float]:
    assert x is not None
    return [float(value) for value in x.flatten()]


def aligned(rollout: Rollout) -> UpdateRuleInputs:
    return rule_inputs(rollout, {"logits": torch.zeros(4, 1, 2)})


def test_table_of_an_end() -> None:
    rollout = four_rows(discounts=column(1.0, 1.0, 0.0, 1.0))
    inputs = aligned(rollout)
    assert flat(inputs.rewards) == [10.0, 11.0, 12.0]  # r0, r1, r'0; the first row's belongs to the rollout before
    assert flat(inputs.is_terminal) == [0, 1, 0]
    assert flat(loss_mask(rollout)) == [1, 1, 0]
    assert flat(memory_resets(rollout)) == [0, 0, 1, 0]  # row 2 already shows the next episode
    assert inputs.is_truncated is None


def test_table_of_a_time_limit() -> None:
    rollout = four_rows(column(1.0, 1.0, 1.0, 1.0), truncations=column(0, 0, 1, 0).bool())
    inputs = aligned(rollout)
    assert flat(inputs.is_truncated) == [0, 1, 0]
    assert flat(inputs.is_terminal) == [0, 0, 0]
    assert flat(loss_mask(rollout)) == [1, 1, 0]
    assert flat(memory_resets(rollout)) == [0, 0, 0, 1]  # row 2 holds the episode's last observation, row 3 the next one's
    assert flat(inputs.should_reset_mask_bwd) == [0, 1, 0, 0]


def test_both_in_one_rollout() -> None:
    rollout = four_rows(column(0.0, 1.0, 1.0, 0.0), truncations=column(0, 1, 0, 0).bool())
    inputs = aligned(rollout)
    assert flat(inputs.is_terminal) == [0, 0, 1] and flat(inputs.is_truncated) == [1, 0, 0]
    assert flat(loss_mask(rollout)) == [0, 0, 1]
    assert flat(memory_resets(rollout)) == [1, 0, 1, 1]


def test_steps_have_what_the_rule_sees_of_them() -> None:
    rollout = four_rows(column(0.0, 1.0, 1.0, 0.0), truncations=column(0, 1, 0, 0).bool())
    steps, inputs = steps_of(rollout), aligned(rollout)
    for name in ("rewards", "is_terminal", "is_truncated"):
        assert torch.equal(getattr(steps, name), getattr(inputs, name))


def test_steps_as_the_reference_reads_them_are_one_off() -> None:
    rollout = four_rows(column(0.0, 1.0, 0.0, 1.0))
    steps = reference_steps(rollout)
    assert flat(steps.rewards) == [-9.0, 10.0, 11.0] and flat(steps.is_terminal) == [1, 0, 1]
    assert steps.is_truncated is None
    cut = reference_steps(four_rows(column(1.0, 1.0, 1.0, 1.0), truncations=column(1, 0, 1, 0).bool()))
    # A limit cuts between rows: the step into the cut row bootstraps from it, in either way to read rewards.
    assert flat(cut.is_truncated) == [0, 1, 0]


def test_the_mean_over_executed_steps() -> None:
    x = column(1.0, 2.0, 30.0)
    ends = column(1.0, 1.0, 0.0, 1.0)
    assert float(executed_mean(x, four_rows(ends))) == 11.0  # an end is executed; the next episode begins with its row
    cut = four_rows(torch.ones(4, 1), truncations=column(0, 0, 1, 0).bool())
    assert float(executed_mean(x, cut)) == pytest.approx(1.5)
    last = four_rows(torch.ones(4, 1), truncations=column(0, 0, 0, 1).bool())
    assert float(executed_mean(x, last)) == pytest.approx(11.0)  # no step leaves the last row


def test_rule_inputs_carry_everything_else_as_it_is() -> None:
    rollout = four_rows(column(1.0, 0.0, 1.0, 1.0))
    agent_out, value_out = {"logits": torch.ones(4, 1, 2)}, ValueOuts(value=torch.zeros(4, 1))
    inputs = rule_inputs(rollout, agent_out, value_out)
    assert inputs.observations is rollout.observations and inputs.actions is rollout.actions
    assert inputs.agent_out is agent_out and inputs.value_out is value_out
    assert inputs.behaviour_logits() is rollout.behaviour_logits
    assert inputs.should_reset_mask_fwd.flatten().tolist() == [False, True, False, False]
    assert inputs.is_terminal.dtype == torch.bool


def test_small_discounts_are_no_ends() -> None:
    rollout = four_rows(column(1.0, 0.5, 0.9, 1.0))
    assert not aligned(rollout).is_terminal.any() and (loss_mask(rollout) == 1).all()


def test_the_mask_has_the_dtype_of_the_rewards(make_rollout: MakeRollout) -> None:
    assert loss_mask(make_rollout()).dtype == torch.float64


def test_masked_mean() -> None:
    x, mask = torch.tensor([[1.0, 2.0], [3.0, 40.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert float(masked_mean(x, mask)) == pytest.approx(2.0)
    assert float(masked_mean(x, torch.ones(2, 2))) == pytest.approx(float(x.mean()))
    assert float(masked_mean(x, torch.zeros(2, 2))) == 0.0  # not NaN


def test_masked_mean_lets_gradients_flow_where_the_mask_is_1() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    masked_mean(x, torch.tensor([[1.0, 0.0], [1.0, 0.0]])).backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.5, 0.0], [0.5, 0.0]]))


def test_masked_mean_with_a_mask_of_another_shape() -> None:
    with pytest.raises(ValueError, match="`mask` must be"):
        masked_mean(torch.ones(2, 3), torch.ones(2, 1))


def test_good_rollouts_pass(make_rollout: MakeRollout) -> None:
    rollout = make_rollout()
    cut = torch.zeros_like(rollout.discounts, dtype=torch.bool)
    tree = {"image": torch.zeros(7, 3, 2, 2, dtype=torch.uint8), "rest": [rollout.observations]}
    with checking():
        check_rollout(rollout)
        check_rollout(dataclasses.replace(rollout, truncations=cut, observations=tree))


def put(x: Tensor, *place: int, value: float = float("nan")) -> Tensor:
    x = x.clone()
    x[place] = value
    return x


BAD_ROLLOUTS: dict[str, tuple[Callable[[Rollout], dict[str, Any]], str]] = {
    "rank": (lambda r: {"rewards": r.rewards[0]}, r"`rewards` must be \[T\+1, B\], of 2 dimensions, got shape \[3\]; time"),
    "array": (lambda r: {"rewards": r.rewards.numpy()}, r"`rewards` must be a torch.Tensor, got ndarray; .*torch.as_tensor"),
    "integers": (
        lambda r: {"rewards": r.rewards.long()},
        r"`rewards` must be floating point, got torch.int64; .*\.float\(\)",
    ),
    "no rows": (
        lambda r: {"rewards": r.rewards[:0]},
        r"`rewards` is empty, shape \[0, 3\]; at least one step and one batch",
    ),
    "no batch": (lambda r: {"rewards": r.rewards[:, :0]}, r"`rewards` is empty, shape \[7, 0\]"),
    "one row": (
        lambda r: {"rewards": r.rewards[:1]},
        r"`rewards` must have at least 2 rows.*got 1; collect longer rollouts",
    ),
    "discounts": (
        lambda r: {"discounts": r.discounts[1:]},
        r"`discounts` must be \[7, 3\], got \[6, 3\]; every part of a rollout has the same rows",
    ),
    "actions": (lambda r: {"actions": r.actions[1:]}, r"`actions` must be \[7, 3\], got \[6, 3\]; every part"),
    "float actions": (
        lambda r: {"actions": r.actions.float()},
        r"`actions` must be integers, got torch.float32; .*\.long\(\)",
    ),
    "range": (lambda r: {"actions": put(r.actions, 3, 2, value=4)}, r"`actions` must lie in 0 \.\. 3, got 4 at \[3, 2\]"),
    "negative": (lambda r: {"actions": put(r.actions, 0, 1, value=-1)}, r"`actions` must lie in 0 .. 3, got -1 at \[0, 1\]"),
    "logits": (
        lambda r: {"behaviour_logits": r.behaviour_logits[..., 0]},
        r"`behaviour_logits` must be \[7, 3, any\], got \[7, 3\]; every part",
    ),
    "no logits": (lambda r: {"behaviour_logits": None}, r"`behaviour_logits` must be a torch.Tensor, got NoneType"),
    "truncations": (
        lambda r: {"truncations": torch.zeros(6, 3, dtype=torch.bool)},
        r"`truncations` must be \[7, 3\], got \[6, 3\]; every part",
    ),
    "observations": (
        lambda r: {"observations": {"a": r.observations, "b": r.observations[1:]}},
        r"`observations\[1\]` must be \[7, 3, \.\.\.\], got \[6, 3, 10\]; every part",
    ),
    "NaN observation": (
        lambda r: {"observations": put(r.observations, 2, 1, 5)},
        r"`observations\[0\]` must be finite, got nan at \[2, 1, 5\] \(1 of 210 values\); check the environment",
    ),
    "NaN reward": (lambda r: {"rewards": put(r.rewards, 4, 0)}, r"`rewards` must be finite, got nan at \[4, 0\] \(1 of 21"),
    "NaN discount": (lambda r: {"discounts": put(r.discounts, 1, 1)}, r"`discounts` must be finite, got nan at \[1, 1\]"),
    "infinite logit": (
        lambda r: {"behaviour_logits": put(r.behaviour_logits, 1, 1, 0, value=float("-inf"))},
        r"`behaviour_logits` must be finite, got -inf at \[1, 1, 0\]",
    ),
}


@pytest.mark.parametrize("name", BAD_ROLLOUTS)
def test_bad_rollouts(make_rollout: MakeRollout, name: str) -> None:
    change, message = BAD_ROLLOUTS[name]
    rollout = make_rollout()
    with checking(), pytest.raises(ValueError, match=message):
        check_rollout(dataclasses.replace(rollout, **change(rollout)))


def test_values_are_left_alone_unless_they_are_checked(make_rollout: MakeRollout) -> None:
    rollout = make_rollout()
    check_rollout(dataclasses.replace(rollout, rewards=put(rollout.rewards, 0, 0)))


def test_truncations_that_are_numbers(make_rollout: MakeRollout) -> None:
    rollout = make_rollout()
    with pytest.raises(ValueError, match="`truncations` must be bool"):
        check_rollout(dataclasses.replace(rollout, truncations=torch.zeros_like(rollout.rewards)))
