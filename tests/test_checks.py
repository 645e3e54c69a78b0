"""Each check passes what it should and says, where it does not, the argument, what came and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from disco_torch import checks
from disco_torch.checks import checking, set_checking, values_are_checked

NAN_AT_1_0 = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: checks.check_tensor("x", torch.ones(2)),
        lambda: checks.check_rank("x", torch.ones(2, 3), 2, "[T, B]"),
        lambda: checks.check_shape("x", torch.ones(2, 3), (2, None)),
        lambda: checks.check_prefix("x", torch.ones(2, 3, 4), (2, 3)),
        lambda: checks.check_floating("x", torch.ones(2, dtype=torch.bfloat16)),
        lambda: checks.check_integer("x", torch.ones(2, dtype=torch.uint8)),
        lambda: checks.check_not_empty("x", torch.ones(1, 1)),
        lambda: checks.check_actions("x", torch.tensor([0, 2]), 3),
        lambda: checks.check_finite("x", torch.ones(2)),
        lambda: checks.check_finite("x", torch.ones(2).long()),
        lambda: checks.check_positive("x", 1e-9),
        lambda: checks.check_between("x", 1.0, 0.0, 1.0),
    ],
)
def test_good_input_passes(call) -> None:
    with checking():
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: checks.check_tensor("rewards", np.ones(2)),
            "`rewards` must be a torch.Tensor, got ndarray; convert it with torch.as_tensor.",
        ),
        (
            lambda: checks.check_rank("rewards", torch.ones(2), 2, "[T, B]"),
            "`rewards` must be [T, B], of 2 dimensions, got shape [2]; time comes first, then the batch.",
        ),
        (
            lambda: checks.check_shape("rewards", torch.ones(3, 2), (3, None, 4), "drop the last row"),
            "`rewards` must be [3, any, 4], got [3, 2]; drop the last row.",
        ),
        (lambda: checks.check_shape("rewards", torch.ones(3, 2), (2, 2)), "`rewards` must be [2, 2], got [3, 2]."),
        (
            lambda: checks.check_prefix("agent_out['y']", torch.ones(3, 2, 5), (4, 2), "add a row"),
            "`agent_out['y']` must be [4, 2, ...], got [3, 2, 5]; add a row.",
        ),
        (
            lambda: checks.check_floating("rewards", torch.ones(2).long()),
            "`rewards` must be floating point, got torch.int64; convert it with `.float()`.",
        ),
        (
            lambda: checks.check_integer("actions", torch.ones(2)),
            "`actions` must be integers, got torch.float32; convert it with `.long()`.",
        ),
        (
            lambda: checks.check_integer("actions", torch.ones(2).bool()),
            "`actions` must be integers, got torch.bool; convert it with `.long()`.",
        ),
        (
            lambda: checks.check_not_empty("rewards", torch.ones(0, 2)),
            "`rewards` is empty, shape [0, 2]; at least one step and one batch entry is needed.",
        ),
        (
            lambda: checks.check_actions("actions", torch.tensor([[0, 1], [3, -1]]), 3),
            "`actions` must lie in 0 .. 2, got 3 at [1, 0]; the number of actions is the last size of the logits.",
        ),
        (
            lambda: checks.check_positive("max_abs_value", 0.0, "it is a range"),
            "`max_abs_value` must be greater than 0, got 0.0; it is a range.",
        ),
        (lambda: checks.check_positive("x", float("nan")), "`x` must be greater than 0, got nan."),
        (lambda: checks.check_between("decay", 1.5, 0.0, 1.0), "`decay` must lie in [0.0, 1.0], got 1.5."),
        (lambda: checks.check_between("decay", float("nan"), 0.0, 1.0), "`decay` must lie in [0.0, 1.0], got nan."),
    ],
)
def test_messages(call, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011, the whole text is compared
        call()
    assert str(error.value) == message


def test_values_are_looked_at_only_when_asked() -> None:
    assert not values_are_checked()
    checks.check_finite("rewards", NAN_AT_1_0)
    with checking():
        assert values_are_checked()
        with pytest.raises(ValueError, match=r"`rewards` must be finite, got nan at \[1, 0\] \(2 of 4 values\); check"):
            checks.check_finite("rewards", NAN_AT_1_0)
        with checking(False):
            checks.check_finite("rewards", NAN_AT_1_0)
        assert values_are_checked()
    assert not values_are_checked()


def test_an_error_inside_the_block_turns_checking_off_again() -> None:
    with pytest.raises(KeyError), checking():
        raise KeyError
    assert not values_are_checked()


def test_set_checking_holds_until_it_is_changed() -> None:
    set_checking(True)
    try:
        with pytest.raises(ValueError, match="must be finite"):
            checks.check_finite("x", NAN_AT_1_0)
    finally:
        set_checking(False)
    checks.check_finite("x", NAN_AT_1_0)


@pytest.mark.parametrize("asked", [False, True])
def test_checks_work_inside_of_function_transforms(asked: bool) -> None:
    def loss(x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        checks.check_finite("x", x)
        checks.check_actions("actions", actions, 3)
        return x.sum()

    with checking(asked):
        torch.func.grad(loss)(torch.ones(2), torch.tensor([0, 1]))
    torch.func.vmap(loss)(torch.ones(4, 2), torch.zeros(4, 2).long())


def test_a_nan_is_found_inside_of_a_gradient() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        checks.check_finite("x", x)
        return x.sum()

    with checking(), pytest.raises(ValueError, match=r"`x` must be finite, got nan at \[1, 0\]"):
        torch.func.grad(loss)(NAN_AT_1_0)


def test_values_are_checked_or_let_through_inside_of_vmap() -> None:
    def loss(x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        checks.check_finite("x", x)
        checks.check_actions("actions", actions, 3)
        return x.sum()

    with checking():
        torch.func.vmap(loss)(torch.ones(4, 2), torch.zeros(4, 2).long())
