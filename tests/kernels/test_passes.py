"""Graphs after the passes compute what they did, with fewer operations; each pass can be left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.func import grad, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch.kernels.compiling import compiled, write_back
from disco_torch.kernels.passes import (
    MATMULS,
    NARROW,
    PASSES,
    WITHOUT,
    enabled_passes,
    expand_narrow_matmuls,
    fuse_relus,
    run_passes,
    separate_biases,
)
from disco_torch.kernels.private import written_into
from disco_torch.layers import MLP

aten = torch.ops.aten


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trace(fn: Callable[..., Any], *args: Tensor) -> fx.GraphModule:
    with torch.no_grad():
        return make_fx(fn)(*args)


def number_of(graph: fx.Graph, target: Any) -> int:
    return sum(node.target is target for node in graph.nodes)


def simplified(fn: Callable[..., Any], *args: Tensor) -> fx.GraphModule:
    """The simplified graph of a function, seen to give the same numbers as before."""
    module = trace(fn, *args)
    want = module(*args)
    run_passes(module.graph, "record", "cpu")
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*args), want, rtol=0, atol=0)
    return module


def test_what_is_computed_twice_is_computed_once() -> None:
    def twice(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x @ y).detach() + torch.tanh(x.view(3, 3) @ y) + torch.tanh(y @ x)

    graph = simplified(twice, draw(3, 3), draw(3, 3, seed=1)).graph
    assert number_of(graph, aten.mm.default) == 2 and number_of(graph, aten.tanh.default) == 2
    assert number_of(graph, aten.detach.default) == 0 and number_of(graph, aten.view.default) == 0


def test_targets_computed_with_and_without_a_derivative_are_computed_once() -> None:
    """As the backward pass of a meta-gradient does, batched over agents."""

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(x @ w).square().sum()

    def both(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            value = loss(w, x)
        again, pull = vjp(lambda w: loss(w, x), w)
        return value * again, pull(value)[0]

    graph = simplified(lambda w, x: vmap(both, in_dims=(None, 0))(w, x), draw(3, 4), draw(2, 5, 3)).graph
    assert number_of(graph, aten.tanh.default) == 1


def test_a_reshape_between_reshapes_goes() -> None:
    graph = simplified(lambda x: x.view(6).view(3, 2).view(2, 3) + x.view(2, 3), draw(2, 3)).graph
    assert number_of(graph, aten.view.default) == 0


def test_what_is_written_into_stays() -> None:
    def scatter(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        first[0], second[1] = x[0], x[1]
        return first, second, first.view(-1) + second.view(-1)

    module = simplified(scatter, draw(2, 3))
    assert number_of(module.graph, aten.zeros_like.default) == 2 and len(written_into(module.graph)) >= 4


def test_a_value_from_before_and_one_from_after_a_write_are_two() -> None:
    def fill(x: Tensor) -> tuple[Tensor, Tensor]:
        own = torch.zeros_like(x)
        before = own.sum()
        own.copy_(x)
        return before, own.sum()

    before, after = simplified(fill, draw(3))(draw(3))
    assert before == 0 and after != 0


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    own = x.clone()
    row = own[0]
    before = row * 2
    own[0].add_(1)
    return before, row * 2


def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    own = x.clone()
    before = own.sum()
    own.unbind()[0].add_(1)
    return before, own.sum()


def lists(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    torch._foreach_add_([first], 1.0)
    return first, second


def zeros(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.copysign(x, torch.full_like(x, 0.0)), torch.copysign(x, torch.full_like(x, -0.0))


@pytest.mark.parametrize("fn", [views, parts, lists, zeros])
def test_what_only_looks_equal_stays_apart(fn: Callable[..., Any]) -> None:
    one, other = simplified(fn, draw(2, 3))(draw(2, 3))
    assert not torch.equal(one, other)


def fresh_copy(x: Tensor) -> Tensor:
    return torch.zeros_like(x).copy_(x) * 2


def fresh_order(x: Tensor) -> Tensor:
    return torch.zeros(3, 2, dtype=x.dtype).copy_(x.t()).view(-1)


def fresh_sum(x: Tensor) -> Tensor:
    return x.sum(0).div_(x[0]).add_(x[1]) + x


def fresh_shape(x: Tensor) -> Tensor:
    return (x * 2).unsqueeze(0).squeeze_(0)


@pytest.mark.parametrize("fn", [fresh_copy, fresh_order, fresh_sum, fresh_shape])
def test_writes_that_nobody_else_sees_are_none(fn: Callable[..., Any]) -> None:
    assert not written_into(simplified(fn, draw(2, 3)).graph)


def other_layout(x: Tensor) -> Tensor:
    return torch.zeros(3, 2, dtype=x.dtype).t().copy_(x) * 2


def other_dtype(x: Tensor) -> Tensor:
    return torch.zeros_like(x, dtype=torch.float32).copy_(x) * x.float().sum().add_(x[0, 0])


def part(x: Tensor) -> Tensor:
    own = x * 2
    return own[0].add_(1) + own


def part_twice(x: Tensor) -> Tensor:
    own = x * 2
    own[0].add_(x[0]).mul_(x[1])
    return own


def part_again(x: Tensor) -> Tensor:
    own = x * 2
    row = own[0]
    row.add_(x[0])
    row.copy_(x[1])
    return own


def to_itself(x: Tensor) -> Tensor:
    own = x * 2
    return own.copy_(own)


def compared(x: Tensor) -> Tensor:
    return (x * 1).gt_(0.0) + (x * 1).logical_not_()


def raised(x: Tensor) -> Tensor:
    return (x * 1).pow_(2)


def turned(x: Tensor) -> Tensor:
    return (x.t() * 2).mul_(x[:, :1].t()).t().view(-1)


@pytest.mark.parametrize(
    "fn", [other_layout, other_dtype, part, part_twice, part_again, to_itself, compared, raised, turned]
)
def test_other_writes_stay(fn: Callable[..., Any]) -> None:
    assert written_into(simplified(fn, draw(2, 3)).graph)


def test_random_numbers_stay_apart() -> None:
    module = trace(lambda x: torch.rand_like(x) - torch.rand_like(x), draw(3))
    run_passes(module.graph, "record", "cpu")
    assert number_of(module.graph, aten.rand_like.default) == 2


def test_second_derivatives() -> None:
    simplified(lambda w: grad(lambda v: grad(lambda u: torch.sin(u).prod())(v).square().sum())(w), draw(4))


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4)])
def test_a_relu_is_applied_by_its_matmul(shape: tuple[int, ...]) -> None:
    net, x = MLP(4, (8, 8, 3)).double(), draw(*shape)
    module = trace(net, x)
    want = module(x)
    fuse_relus(module.graph)
    module.graph.lint()
    module.recompile()
    assert number_of(module.graph, aten.relu.default) == 0
    assert number_of(module.graph, aten._addmm_activation.default) == 2
    torch.testing.assert_close(module(x), want, rtol=1e-14, atol=1e-15)


def test_a_relu_stays_where_its_input_is_used_otherwise() -> None:
    weight, bias = draw(4, 3), draw(3)

    def used_twice(x: Tensor) -> Tensor:
        pre = torch.addmm(bias, x, weight)
        return torch.relu(pre) + pre

    module = trace(used_twice, draw(5, 4))
    fuse_relus(module.graph)
    assert number_of(module.graph, aten.relu.default) == 1


def test_outputs_are_written_into_the_inputs_that_they_replace() -> None:
    def step(a: Tensor, b: Tensor, x: Tensor) -> list[Tensor]:
        return [a + x, a * b, b.sum()]

    args = draw(3), draw(3, seed=1), draw(3, seed=2)
    module, want = trace(step, *args), step(*args)
    assert write_back(module.graph, 2) == 2
    module.graph.lint()
    module.recompile()
    rest = module(*args)
    torch.testing.assert_close([args[0], args[1], *rest], want, rtol=0, atol=0)


def test_inputs_that_are_outputs_elsewhere_are_not_written_into() -> None:
    for fn in (lambda a, b: [b, a], lambda a, b: [a + b, b, a], lambda a, b: [a + b, a * b, a[:2]]):
        module = trace(fn, draw(3), draw(3, seed=1))
        nodes = len(module.graph.nodes)
        assert write_back(module.graph, 2) == 0 and len(module.graph.nodes) == nodes


@pytest.mark.slow
def test_compiled_steps_carry_their_state() -> None:
    def step(mean: Tensor, slow: Tensor, x: Tensor) -> list[Tensor]:
        return [0.9 * mean + 0.1 * x, slow.lerp(mean, 0.5), (x - mean).square().sum()]

    mean, slow = draw(5), draw(5, seed=1)
    inputs = [mean.clone(), slow.clone(), draw(5)]
    run = compiled(trace(step, mean, slow, draw(5)), inputs, carried=2)
    state = [mean.clone(), slow.clone()]
    for seed in range(3):
        want = step(mean, slow, draw(5, seed=seed))
        got = run(*state, draw(5, seed=seed))
        torch.testing.assert_close(list(got), want, rtol=1e-14, atol=1e-15)
        assert got[0] is state[0] and got[1] is state[1]
        mean, slow = want[:2]


def expanded(fn: Callable[..., Any], *args: Tensor) -> tuple[fx.GraphModule, int]:
    """The graph of a function with its narrow matmuls expanded, and how many matmuls are left."""
    graph = trace(fn, *args)
    expand_narrow_matmuls(graph.graph)
    graph.recompile()
    return graph, sum(node.target in MATMULS for node in graph.graph.nodes)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return aten._addmm_activation.default(bias, x, weight)


@pytest.mark.parametrize("fn", [linear, linear_relu])
@pytest.mark.parametrize(
    ("rows", "inner", "outer", "left"), [(40, 9, 16, 0), (1, 300, 80, 0), (40, NARROW + 1, 2, 1), (40, 2, 64, 1)]
)
def test_narrow_matmuls_become_sums_and_wide_ones_stay(
    fn: Callable[..., Tensor], rows: int, inner: int, outer: int, left: int
) -> None:
    args = [draw(rows, inner), draw(inner, outer, seed=1), draw(outer, seed=2)]
    graph, matmuls = expanded(fn, *args)
    assert matmuls == left
    torch.testing.assert_close(graph(*args), fn(*args), rtol=1e-12, atol=1e-12)


def test_narrow_matmuls_of_batches_and_without_bias() -> None:
    x, weight = draw(3, 50, 4), draw(3, 4, 7, seed=1)
    graph, matmuls = expanded(lambda x, w: torch.bmm(x, w) + torch.mm(x[0], w[0]), x, weight)
    assert matmuls == 0
    torch.testing.assert_close(graph(x, weight), x @ weight + x[0] @ weight[0], rtol=1e-12, atol=1e-12)


def test_biases_are_added_after_their_matmuls() -> None:
    def layers(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(torch.nn.functional.linear(x, weight, bias)), torch.addmm(bias, x, weight.t(), beta=2.0)

    args = draw(5, 3), draw(4, 3, seed=1), draw(4, seed=2)
    graph = trace(layers, *args)
    separate_biases(graph.graph)
    graph.recompile()
    torch.testing.assert_close(graph(*args), layers(*args), rtol=1e-14, atol=1e-14)
    assert number_of(graph.graph, aten.mm.default) == 1
    assert number_of(graph.graph, aten.addmm.default) == 1  # the one with a factor is left as it is


def everything(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Any, ...]:
    """Something to do for every pass."""
    same = x.view(5, 4).detach()  # views
    written = torch.zeros_like(x).copy_(same)  # writes
    twice = torch.tanh(x) + torch.tanh(x)  # repeats
    return torch.relu(torch.addmm(bias, written, weight)), twice


def nodes_after(device: str) -> list[Any]:
    args = draw(5, 4), draw(4, 3), draw(3)
    graph = make_fx(everything)(*args)
    want = graph(*args)
    for stage in ("record", "compile"):
        run_passes(graph.graph, stage, device)
    graph.graph.lint()
    graph.recompile()
    torch.testing.assert_close(graph(*args), want, rtol=1e-12, atol=1e-12)
    return [node.target for node in graph.graph.nodes]


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_changes_something_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    device = PASSES[name].devices[-1]
    if name == "relus":
        monkeypatch.setenv(WITHOUT, "narrow")  # it takes the matmul, ReLU or not
    with_all = nodes_after(device)
    monkeypatch.setenv(WITHOUT, f"narrow, {name}" if name == "relus" else name)
    assert name not in enabled_passes() and nodes_after(device) != with_all


def test_a_pass_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WITHOUT, "narrow slow")
    with pytest.raises(ValueError, match=r"^`DISCO_TORCH_WITHOUT` must name passes out of views, .*biases, got slow\.$"):
        run_passes(trace(torch.tanh, draw(2)).graph, "record", "cpu")
