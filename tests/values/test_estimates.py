"""Estimates along a rollout: the reference's numbers, the identities between their parts, and normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from disco_torch.values import (
    MovingAverage,
    ValueEncoding,
    estimate_q_values,
    estimate_values,
    expected_q,
    normalize_estimates,
    retrace,
    scalar_values,
    select_action,
    vtrace,
)

T, B, A, V = 5, 2, 3, 7


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case() -> dict[str, Tensor]:
    return {
        "values": draw(T + 1, B, seed=1),
        "q_values": draw(T + 1, B, A, seed=2),
        "actions": torch.arange(T * B).reshape(T, B) % A,
        "rewards": draw(T, B, seed=3),
        "discounts": torch.full((T, B), 0.9, dtype=torch.float64),
        "rho": torch.exp(draw(T, B, seed=4)),
        "target_values": draw(T + 1, B, seed=5),
        "target_q_values": draw(T + 1, B, A, seed=6),
    }


def assert_equal(got: Tensor | None, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def golden_values(golden: Path, config: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    data = np.load(golden / "values.npz")
    arrays = {name: torch.as_tensor(data[name]) for name in data.files}
    inputs = {name.removeprefix("input/"): x for name, x in arrays.items() if name.startswith("input/")}
    inputs["discounts"] = config["values"]["discount"] * inputs["discounts"]
    return inputs, arrays, config["values"]["lambda_"]


def test_vtrace_estimates_against_the_reference(golden: Path, golden_config: dict[str, Any]) -> None:
    x, arrays, lambda_ = golden_values(golden, golden_config)
    outs = estimate_values(x["values"], x["rewards"], x["discounts"], x["rho"], lambda_)
    for name in ("adv", "td", "value_target"):
        assert_equal(getattr(outs, name), arrays[f"vtrace/{name}"])


def test_retrace_estimates_against_the_reference(golden: Path, golden_config: dict[str, Any]) -> None:
    x, arrays, lambda_ = golden_values(golden, golden_config)
    args = (x["values"], x["q"], x["actions"], x["rewards"], x["discounts"], x["rho"], lambda_)
    outs = estimate_q_values(*args, target_values=x["target_values"], target_q_values=x["target_q"])
    for name in ("adv", "q_target", "q_td", "qv_adv", "td", "value_target"):
        assert_equal(getattr(outs, name), arrays[f"retrace/{name}"])


def test_state_value_estimates_are_made_of_vtrace_over_the_target_values() -> None:
    x = case()
    steps = (x["rewards"], x["discounts"], x["rho"], 0.9)
    outs = estimate_values(x["values"], *steps, target_values=x["target_values"])
    errors, advantages = vtrace(x["target_values"], *steps)
    assert_equal(outs.adv, advantages)
    assert_equal(outs.value_target, x["target_values"][:-1] + errors)
    assert_equal(outs.td, x["target_values"][:-1] + errors - x["values"][:-1])
    assert outs.q_value is None and outs.q_td is None


def test_action_value_estimates_are_made_of_retrace_over_the_target_network() -> None:
    x = case()
    outs = estimate_q_values(**x, lambda_=0.9)
    taken = select_action(x["target_q_values"][:-1], x["actions"])
    returns = retrace(x["target_values"], taken, x["rewards"], x["discounts"], x["rho"], 0.9)
    assert_equal(outs.q_target, returns)
    assert_equal(outs.q_td, returns - select_action(x["q_values"][:-1], x["actions"]))
    assert_equal(outs.adv, returns - x["target_values"][:-1])
    assert_equal(outs.qv_adv, x["target_q_values"] - x["target_values"].unsqueeze(-1))
    mixed = x["target_values"][:-1] + x["rho"].clamp(max=1.0) * (returns - x["target_values"][:-1])
    assert_equal(outs.value_target, mixed)
    assert_equal(outs.td, mixed - x["values"][:-1])


@pytest.mark.parametrize("kind", ["v", "q"])
def test_without_a_target_network_the_values_are_their_own_targets(kind: str) -> None:
    x = case()
    x["target_values"], x["target_q_values"] = x["values"], x["q_values"]
    if kind == "v":
        names = ("values", "rewards", "discounts", "rho")
        outs = estimate_values(*(x[name] for name in names), 0.9)
        want = estimate_values(*(x[name] for name in names), 0.9, target_values=x["values"])
    else:
        want = estimate_q_values(**x, lambda_=0.9)
        del x["target_values"], x["target_q_values"]
        outs = estimate_q_values(**x, lambda_=0.9)
    assert_equal(outs.adv, want.adv)
    assert_equal(outs.td, want.td)


def test_expected_q_is_the_policys_mean() -> None:
    logits = torch.log(torch.tensor([[[0.2, 0.8]]]))
    torch.testing.assert_close(expected_q(logits, torch.tensor([[[1.0, 2.0]]])), torch.tensor([[1.8]]))


def test_scalar_values_take_the_mean_of_q_where_no_network_gives_values() -> None:
    encoding = ValueEncoding(V, 3.0, nonlinear=True)
    logits, v_out, q_out = draw(T + 1, B, A), draw(T + 1, B, V, seed=1), draw(T + 1, B, A, V, seed=2)
    values, q_values = scalar_values(encoding, logits, None, q_out)
    assert q_values is not None
    assert_equal(q_values, encoding.to_scalar(q_out))
    assert_equal(values, torch.sum(torch.softmax(logits, -1) * q_values, -1))
    values, q_values = scalar_values(encoding, logits, v_out, q_out)
    assert_equal(values, encoding.to_scalar(v_out))
    values, q_values = scalar_values(encoding, logits, v_out, None)
    assert_equal(values, encoding.to_scalar(v_out))
    assert q_values is None


@pytest.mark.parametrize("kind", ["v", "q"])
def test_normalised_estimates(kind: str) -> None:
    x = case()
    if kind == "v":
        outs = estimate_values(x["values"], x["rewards"], x["discounts"], x["rho"], 0.9)
    else:
        outs = estimate_q_values(**x, lambda_=0.9)
    td = outs.td if kind == "v" else outs.q_td
    assert outs.adv is not None and td is not None
    average = MovingAverage(0.9)
    states = [average.update_state(draw(3, seed=s), average.init_state(dtype=torch.float64)) for s in (7, 8)]
    got, adv_state, td_state = normalize_estimates(outs, *states, average)
    adv_want, td_want = (average.update_state(batch, s) for batch, s in zip((outs.adv, td), states, strict=True))
    assert_equal(adv_state.moment2, adv_want.moment2)
    assert_equal(td_state.moment1, td_want.moment1)
    assert_equal(got.normalized_adv, average.normalize(outs.adv, adv_want))
    normalized_td = average.normalize(td, td_want, subtract_mean=False)
    assert torch.equal(torch.sign(normalized_td), torch.sign(td))  # the direction of learning stays
    if kind == "v":
        assert_equal(got.normalized_td, normalized_td)
        assert got.normalized_q_td is None and got.normalized_qv_adv is None
    else:
        assert outs.qv_adv is not None
        assert_equal(got.normalized_q_td, normalized_td)
        assert_equal(got.normalized_qv_adv, average.normalize(outs.qv_adv, adv_want))
        assert got.normalized_td is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q_values": draw(T + 1, B)}, r"`q_values` must be \[T\+1, B, A\], of 3 dimensions, got shape \[6, 2\]"),
        ({"target_q_values": draw(T + 1, B, 4)}, r"`target_q_values` must be \[6, 2, 3\], got \[6, 2, 4\]; it must match"),
        ({"target_q_values": None}, r"`target_values` and `target_q_values` must be given together, got one of them"),
        ({"values": draw(T, B)}, r"`values` must be \[6, 2\], got \[5, 2\]; it must match `q_values` without the actions"),
        ({"target_values": draw(T, B)}, r"`target_values` must be \[6, 2\], got \[5, 2\]; it must match `values`"),
        ({"actions": torch.zeros(T + 1, B).long()}, r"`actions` must be \[5, 2\], got \[6, 2\].*drop the last row"),
        ({"actions": torch.full((T, B), A)}, r"`actions` must lie in 0 \.\. 2, got 3 at \[0, 0\]"),
        ({"rewards": torch.zeros(T, B).long()}, r"`rewards` must be floating point, got torch.int64"),
    ],
)
def test_bad_input_to_action_value_estimates(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_q_values(**(case() | change), lambda_=0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: estimate_values(x["values"], x["rewards"], x["discounts"], x["rho"], 0.9, target_values=draw(T, B)),
            r"`target_values` must be \[6, 2\], got \[5, 2\]; it must match `values`",
        ),
        (
            lambda x: scalar_values(ValueEncoding(V), draw(T + 1, B, A), None, None),
            r"one of `value_out` and `q_out` must be given, got None for both",
        ),
        (
            lambda x: scalar_values(ValueEncoding(V), draw(T + 1, B, A), draw(T, B, V), None),
            r"`value_out` must be \[6, 2, \.\.\.\], got \[5, 2, 7\]; it must match `pi_logits`",
        ),
        (
            lambda x: scalar_values(ValueEncoding(V), draw(T + 1, B, A), None, draw(T + 1, B, 4, V)),
            r"`q_out` must be \[6, 2, 3, \.\.\.\], got \[6, 2, 4, 7\]; it must match `pi_logits`",
        ),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(case())


def test_expected_q_of_other_shapes() -> None:
    with pytest.raises(ValueError, match="`q_values` must be"):
        expected_q(draw(T, B, A), draw(T, 1, A))
