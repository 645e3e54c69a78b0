"""Moving averages: against numpy, at their fixed points, and split over processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disco_torch.types import EmaState
from disco_torch.values import MovingAverage


def batches(count: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [i + (1 + i) * torch.randn(shape, generator=generator, dtype=torch.float64) for i in range(count)]


def fresh(average: MovingAverage) -> EmaState:
    return average.init_state(dtype=torch.float64)


@given(st.floats(-1e3, 1e3), st.floats(0.0, 0.999), st.integers(1, 5))
def test_the_debiased_mean_of_a_constant_is_that_constant(constant: float, decay: float, updates: int) -> None:
    average = MovingAverage(decay)
    x = torch.full((2, 3), constant, dtype=torch.float64)
    state = fresh(average)
    for _ in range(updates):
        state = average.update_state(x, state)
    mean = state.moment1 / (1.0 - state.decay_product)
    torch.testing.assert_close(mean, x[0, 0], rtol=1e-9, atol=1e-9)
    # What is a millionth above 0 in variance is rounding; divided by the two epsilons it stays small beside 1 / eps.
    assert average.normalize(x, state).abs().max() <= 1e-3


def test_one_batch_is_normalised_by_its_own_mean_and_deviation() -> None:
    (x,) = batches(1, 40, 5)
    average = MovingAverage()
    normalized = average.normalize(x, average.update_state(x, fresh(average)))
    torch.testing.assert_close(normalized.mean(), torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(normalized.std(correction=0), torch.ones((), dtype=torch.float64), rtol=1e-5, atol=0)


def test_several_batches_against_numpy() -> None:
    average = MovingAverage(decay=0.8, eps=1e-3)
    state = fresh(average)
    moments = np.zeros(2)
    for n, x in enumerate(batches(4, 3, 2), start=1):
        state = average.update_state(x, state)
        moments = 0.8 * moments + 0.2 * np.array([x.numpy().mean(), (x.numpy() ** 2).mean()])
        mean, square = moments / (1.0 - 0.8**n)
        deviation = np.sqrt(max(0.0, square - mean**2) + 1e-12) + 1e-3
        for subtract_mean in (True, False):
            want = (x.numpy() - mean * subtract_mean) / deviation
            np.testing.assert_allclose(average.normalize(x, state, subtract_mean), want, rtol=1e-12)
    assert float(state.decay_product) == pytest.approx(0.8**4)


def test_decay_0_forgets_all_but_the_last_batch() -> None:
    average = MovingAverage(decay=0.0)
    first, last = batches(2, 3, 2)
    remembered = average.update_state(last, average.update_state(first, fresh(average)))
    alone = average.update_state(last, fresh(average))
    torch.testing.assert_close(average.normalize(last, remembered), average.normalize(last, alone))


def test_halves_with_the_mean_across_processes_equal_the_whole() -> None:
    average = MovingAverage(decay=0.9)
    whole, state = fresh(average), fresh(average)
    for x in batches(3, 4, 6):
        ours, theirs = x[:, :3], x[:, 3:]
        other = torch.stack([theirs.mean(), theirs.square().mean()])
        state = average.update_state(ours, state, lambda mine, other=other: (mine + other) / 2.0)
        whole = average.update_state(x, whole)
        torch.testing.assert_close(average.normalize(x, state), average.normalize(x, whole), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(state.moment1, average.update_state(ours, fresh(average)).moment1)


def test_the_state_is_passed_through_and_not_written_to() -> None:
    average = MovingAverage()
    state = fresh(average)
    average.update_state(batches(1, 3, 2)[0], state)
    assert (float(state.moment1), float(state.moment2), float(state.decay_product)) == (0.0, 0.0, 1.0)


def test_gradients_are_finite_where_the_variance_is_0() -> None:
    average = MovingAverage()
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    average.normalize(x, average.update_state(x, fresh(average))).sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


AVERAGE = MovingAverage()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MovingAverage(decay=1.5), r"`decay` must lie in \[0, 1\), got 1.5"),
        (lambda: MovingAverage(decay=-0.1), r"`decay` must lie in \[0, 1\), got -0.1"),
        (lambda: AVERAGE.update_state(torch.ones(2, 2).long(), AVERAGE.init_state()), r"`x` must be floating point"),
        (lambda: AVERAGE.update_state(torch.ones(2, 0), AVERAGE.init_state()), r"`x` is empty, shape \[2, 0\]"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_decay_of_1_is_refused() -> None:
    with pytest.raises(ValueError, match="`decay` must"):
        MovingAverage(decay=1.0)
