"""Whether an agent has learned anything yet."""

from __future__ import annotations

import math

import numpy as np
import pytest

from disco_torch.analysis.learning_check import EPISODES, learning_problem

RANDOM = np.random.default_rng(0)
FIRST = RANDOM.normal(0.0, 1.0, EPISODES).tolist()


@pytest.mark.parametrize(("shift", "problem"), [(0.0, True), (-1.0, True), (0.05, True), (0.5, False), (3.0, False)])
def test_returns_must_rise_above_the_interval_of_the_first_ones(shift: float, problem: bool) -> None:
    last = [value + shift for value in FIRST]
    said = learning_problem(FIRST, last, 0.5, 2)
    assert (said is not None) == problem
    if said is not None:
        mean = f"{np.mean(last):.4g}"
        assert said.startswith(f"the mean return of the last 100 episodes, {mean}, is not above that of the first 100")


def test_equal_returns_are_not_learning() -> None:
    assert "is not above" in (learning_problem([0.0] * 100, [0.0] * 100, None, 3) or "")
    assert learning_problem([0.0] * 100, [0.1] * 100, None, 3) is None


@pytest.mark.parametrize("number", [0, 99])
def test_with_too_few_episodes_returns_say_nothing(number: int) -> None:
    assert learning_problem(FIRST[:number], FIRST, 0.5, 2) is None
    assert learning_problem(FIRST, FIRST[:number], 0.5, 2) is None


@pytest.mark.parametrize("num_actions", [2, 18])
def test_entropy_at_its_bounds(num_actions: int) -> None:
    largest, risen = math.log(num_actions), [value + 3.0 for value in FIRST]
    for returns in (([], []), (FIRST, risen)):
        assert "actions are chosen at random" in (learning_problem(*returns, largest, num_actions) or "")
        assert learning_problem(*returns, 0.98 * largest, num_actions) is None
        assert learning_problem(*returns, 0.05 * largest, num_actions) is None
    # A policy that has solved its task may be deterministic.
    assert learning_problem(FIRST, risen, 1e-4, num_actions) is None
    assert "does not explore any more" in (learning_problem([], [], 1e-4, num_actions) or "")


def test_one_action_has_no_entropy_to_speak_of() -> None:
    assert learning_problem([], [], 0.0, 1) is None and learning_problem([], [], None, 4) is None
