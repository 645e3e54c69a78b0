"""Functions in two halves give what the whole function gives, and do all that they can before the rest is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.func import grad, jvp
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch.kernels import SPEEDS, Halves, cutting
from disco_torch.kernels.cutting import halve, split

aten = torch.ops.aten


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def push(early: dict[str, Tensor], late: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """A second derivative along a direction that is known late; the value itself needs no direction."""

    def loss(w: Tensor) -> Tensor:
        return torch.log_softmax(torch.tanh(early["x"] @ w), dim=-1).square().mean()

    value, along = jvp(grad(loss), (early["w"],), (late[0],))
    return {"value": value.t(), "along": along + late[1], "x": early["x"]}


def arguments(seed: int = 0) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
    early = {"w": draw(3, 4, seed=seed), "x": draw(5, 3, seed=seed + 1)}
    return early, (draw(3, 4, seed=seed + 2), draw(3, 4, seed=seed + 3))


def number_of(module: fx.GraphModule, target: Any) -> int:
    return sum(node.target is target for node in module.graph.nodes)


def assert_same(got: Any, want: Any, **tolerance: float) -> None:
    torch.testing.assert_close(got, want, **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("speed", ["plain", "traced"])
def test_both_halves_are_the_whole(speed: str, apart: bool) -> None:
    halves = Halves(push, SPEEDS[speed], "push", apart=apart)
    for seed in (0, 10):
        early, late = arguments(seed)
        finish = halves.ahead(early, arguments(99)[1])
        assert_same(finish(late), push(early, late))
        assert_same(finish((late[1], late[0])), push(early, (late[1], late[0])))


@pytest.mark.slow
def test_compiled_halves() -> None:
    early, late = arguments()
    got = Halves(push, SPEEDS["compiled"], "push").ahead(early, late)(late)
    assert_same(got, push(early, late), rtol=1e-12, atol=1e-14)


def test_each_half_has_its_own_work() -> None:
    def fn(w: Tensor, x: Tensor, late: Tensor) -> list[Tensor]:
        hidden = torch.tanh(x @ w)
        return [hidden.t().reshape(2, -1) @ late, hidden.sum(), late * 2]

    args = draw(3, 4), draw(5, 3), draw(10, 2)
    first, second = split(make_fx(fn)(*args), 2)
    assert number_of(first, aten.mm.default) == 1 and number_of(first, aten.tanh.default) == 1
    assert number_of(second, aten.tanh.default) == 0 and number_of(second, aten.mm.default) == 1
    assert number_of(first, aten.mul.Tensor) == 0 and number_of(second, aten.sum.default) == 0
    kept = first(*args[:2])
    assert_same(second(*kept, *args), fn(*args))


def test_what_views_show_is_kept_once() -> None:
    def fn(x: Tensor, late: Tensor) -> list[Tensor]:
        doubled = x * 2
        left, right = doubled.split(2, dim=1)
        return [left * late, right * late, doubled.t() @ late]

    args = draw(4, 4), draw(4, 2)
    first, second = split(make_fx(fn)(*args), 1)
    assert len(first(args[0])) == 1
    assert_same(second(*first(args[0]), *args), fn(*args))


def test_results_of_one_operation_are_kept_each() -> None:
    def fn(x: Tensor, late: Tensor) -> list[Tensor]:
        values, places = x.max(dim=1)
        return [values * late, late.gather(0, places)]

    args = draw(4, 4), draw(4)
    first, second = split(make_fx(fn)(*args), 1)
    assert len(first(args[0])) == 2
    assert_same(second(*first(args[0]), *args), fn(*args))


def test_what_depends_on_nothing_is_not_kept() -> None:
    def fn(x: Tensor, late: Tensor) -> list[Tensor]:
        places = torch.linspace(0.0, 1.0, 3, dtype=torch.float64) * 2
        return [(x * places).sum() * late, places * late]

    args = draw(3), draw(3, seed=1)
    first, second = split(make_fx(fn)(*args), 1)
    assert len(first(args[0])) == 1
    assert_same(second(*first(args[0]), *args), fn(*args))


def test_nothing_may_be_known_before() -> None:
    halves = Halves(lambda early, late: [late * torch.arange(3.0).cos(), torch.arange(3.0).sin()], SPEEDS["traced"], "late")
    late = torch.randn(3)
    assert_same(halves.ahead({}, late)(late), [late * torch.arange(3.0).cos(), torch.arange(3.0).sin()])


@pytest.mark.parametrize("other", [{"b": 1.0, "a": 2.0}, {"a": 1.0}, {"a": 1.0, "b": 2.0, "c": 3.0}])
def test_what_comes_late_is_as_announced(other: dict[str, float]) -> None:
    def trees(numbers: dict[str, float]) -> dict[str, Tensor]:
        return {name: torch.tensor(number) for name, number in numbers.items()}

    finish = Halves(lambda early, late: early + late["a"], SPEEDS["traced"], "sum").ahead(
        draw(2), trees({"a": 1.0, "b": 2.0})
    )
    with pytest.raises(ValueError, match="`late` must have the structure, shapes and values of `like`"):
        finish(trees(other))


def test_what_is_written_into_is_left_to_the_second() -> None:
    def fn(x: Tensor, late: Tensor) -> list[Tensor]:
        own = x * 2
        before = own.sum()
        own[0].copy_(late)
        return [before, own]

    args = draw(2, 3), draw(3)
    first, second = split(make_fx(fn)(*args), 1)
    assert first(args[0]) == []
    assert_same(second(*args), fn(*args))


def test_a_large_graph_is_cut_where_little_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Tensor) -> list[Tensor]:
        wide = [torch.sin(x * i) for i in range(1, 6)]
        total = torch.stack(wide).sum()
        return [torch.cos(total * i) for i in range(1, 9)]

    module = make_fx(fn)(draw(3))
    assert halve(module) is None
    monkeypatch.setattr(cutting, "LARGE", 20)
    halves = halve(module)
    assert halves is not None
    first, second = halves
    assert len(first(draw(3, seed=1))) == 1 and number_of(first, aten.sin.default) == 5 == 5 - number_of(
        second, aten.sin.default
    )
    assert_same(second(*first(draw(3, seed=1)), draw(3, seed=1)), fn(draw(3, seed=1)))


def test_halves_of_views_of_results_and_of_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is cut: between an operation and its results, a tensor and its views, with inputs among the outputs."""

    def fn(x: Tensor, y: Tensor) -> list[Tensor]:
        values, places = (x * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).t().max(dim=1)
        left, right = values.outer(y).split([1, 2])
        return [left.t(), right.exp(), places, x, x.t(), left.sum() + torch.ones(2).sum()]

    args = draw(4, 3), draw(5)
    module = make_fx(fn)(*args)
    monkeypatch.setattr(cutting, "LARGE", 1)
    number = sum(node.op == "call_function" for node in module.graph.nodes)
    for place in range(number - 1):
        monkeypatch.setattr(cutting, "min", lambda places, key, place=place: place, raising=False)
        halves = halve(module)
        assert halves is not None
        assert_same(halves[1](*halves[0](*args), *args), fn(*args))


def test_a_graph_that_writes_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "LARGE", 1)
    assert halve(make_fx(lambda x: (x * 2).add_(1).exp())(draw(3))) is None
