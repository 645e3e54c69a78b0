"""First steps of episodes count where a rollout says which rows are executed: the tables of `data/alignment.py` by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from disco_torch.checks import checking
from disco_torch.data import (
    Replay,
    check_rollout,
    executed_mean,
    executed_rows,
    loss_mask,
    memory_resets,
    rule_inputs,
    steps_of,
)
from disco_torch.envs import EnvStep
from disco_torch.types import Rollout
from disco_torch.values import estimate_values


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(-1)


def rows_of(
    rewards: list[float], discounts: list[float], executed: list[int] | None, cut: list[int] | None = None
) -> Rollout:
    rows = len(rewards)
    return Rollout(
        observations=torch.arange(float(rows)).reshape(rows, 1, 1),
        actions=torch.zeros(rows, 1, dtype=torch.long),
        rewards=column(*rewards),
        discounts=column(*discounts),
        behaviour_logits=torch.zeros(rows, 1, 2),
        truncations=None if cut is None else column(*cut).bool(),
        executed=None if executed is None else column(*executed).bool(),
    )


def flat(x: Tensor) -> list[float]:
    return [float(value) for value in x.flatten()]


def test_table_of_a_reset_in_a_step_of_its_own() -> None:
    rollout = rows_of([-9.0, 10.0, 11.0, 0.0, 20.0], [1, 1, 0, 0, 1], [1, 1, 0, 1, 1])
    assert flat(loss_mask(rollout)) == [1, 1, 0, 1]
    assert flat(loss_mask(dataclasses.replace(rollout, executed=None))) == [1, 1, 0, 0]  # the golden one
    steps = steps_of(rollout)
    assert flat(steps.rewards) == [10, 11, 0, 20] and flat(steps.is_terminal) == [0, 1, 1, 0]


def test_table_of_one_step_episodes_and_their_returns() -> None:
    rollout = rows_of([-9.0, 1.0, 2.0, 3.0], [1, 0, 0, 0], [1, 1, 1, 1])
    inputs = rule_inputs(rollout, {"logits": torch.zeros(4, 1, 2)})
    assert flat(loss_mask(rollout)) == [1, 1, 1]
    assert flat(loss_mask(dataclasses.replace(rollout, executed=None))) == [1, 0, 0]
    assert flat(inputs.rewards) == [1, 2, 3] and flat(inputs.is_terminal) == [1, 1, 1]
    assert flat(memory_resets(rollout)) == [0, 1, 1, 1]
    values = column(100.0, 200.0, 300.0, 400.0)
    outs = estimate_values(values, inputs.rewards, 0.9 * inputs.continues(), torch.ones(3, 1), 0.95)
    assert outs.value_target is not None and outs.adv is not None
    assert flat(outs.value_target) == [1, 2, 3]  # each its own reward: nothing bootstraps from the next episode
    assert flat(outs.adv) == [1 - 100, 2 - 200, 3 - 300]


def test_a_row_that_a_time_limit_cut_never_counts() -> None:
    rollout = rows_of([-9.0, 10.0, 11.0, 20.0], [1, 1, 1, 1], [1, 1, 0, 1], cut=[0, 0, 1, 0])
    assert flat(loss_mask(rollout)) == [1, 1, 0]


def test_means_leave_out_what_was_not_executed() -> None:
    rollout = rows_of([0.0, 0.0, 0.0, 0.0], [1, 0, 0, 1], [1, 0, 1, 1])
    assert float(executed_mean(column(1.0, 50.0, 3.0), rollout)) == pytest.approx(2.0)
    assert float(executed_mean(column(1.0, 50.0, 3.0), dataclasses.replace(rollout, executed=None))) == pytest.approx(18.0)


@pytest.mark.parametrize(
    ("row", "ends", "is_first", "cut", "executed"),
    [
        ("the episode continues", False, False, False, True),
        ("a reset", False, True, False, True),
        ("it ended, and shows the next one's first observation", True, True, False, True),
        ("it ended, and shows its last observation", True, False, False, False),
        ("a time limit cut it, the next one has begun", True, True, True, False),
        ("a time limit cut it, and the next one begins a step later", True, False, True, False),
    ],
)
def test_which_rows_of_an_environment_are_executed(row: str, ends: bool, is_first: bool, cut: bool, executed: bool) -> None:
    def flag(value: bool) -> Tensor:
        return torch.tensor([value])

    step = EnvStep(torch.zeros(1, 1), torch.zeros(1), torch.ones(1), flag(cut), None, flag(is_first), flag(ends))
    assert executed_rows(step).tolist() == [executed], row


@pytest.mark.parametrize(
    ("executed", "message"),
    [
        (torch.ones(3, 1, dtype=torch.bool), r"`executed` must .*\[4, 1\]"),
        (torch.ones(4, 1), "`executed` must be bool"),
    ],
)
def test_marks_that_do_not_fit_are_refused(executed: Tensor, message: str) -> None:
    rollout = rows_of([0.0] * 4, [1.0] * 4, [1] * 4)
    with checking(), pytest.raises(ValueError, match=message):
        check_rollout(dataclasses.replace(rollout, executed=executed))


def test_the_replay_keeps_the_marks_where_it_is_asked_to() -> None:
    rollout = rows_of([0.0, 1.0, 2.0, 3.0], [1, 0, 0, 1], [1, 0, 1, 0])
    kept, dropped = (Replay(3, 4, torch.zeros(1), 2, first_steps=asked) for asked in (True, False))
    for replay in (kept, dropped):
        replay.add(rollout)
    drawn = kept.sample(5, torch.Generator().manual_seed(0))
    assert drawn.executed is not None and torch.equal(drawn.executed, column(1, 0, 1, 0).bool().expand(4, 5))
    assert dropped.sample(2).executed is None
    assert kept.bytes_per_step == dropped.bytes_per_step + 1
    again: Any = Replay(3, 4, torch.zeros(1), 2, first_steps=True)
    again.load_state_dict(kept.state_dict())
    assert again.sample(1).executed.flatten().tolist() == [True, False, True, False]
    assert "executed" not in dropped.state_dict()["tensors"]
    with pytest.raises(ValueError, match="`rollout` must say which rows are `executed` for first steps to count, got None"):
        kept.add(dataclasses.replace(rollout, executed=None))
