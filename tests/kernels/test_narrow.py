"""Narrow products become sums, wide ones stay, and the numbers stay the same."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch.kernels.narrow import NARROW, PRODUCTS, spread_narrow


def spread(fn, *args):
    """The graph of a function with its narrow products spread, and how many products are left."""
    graph = make_fx(fn)(*args)
    spread_narrow(graph.graph)
    graph.recompile()
    return graph, sum(node.target in PRODUCTS for node in graph.graph.nodes)


def linear(x, weight, bias):
    return torch.addmm(bias, x, weight)


def joined(x, weight, bias):
    return torch.ops.aten._addmm_activation.default(bias, x, weight)


@pytest.mark.parametrize("fn", [linear, joined])
@pytest.mark.parametrize(
    ("rows", "inner", "outer", "left"), [(40, 9, 16, 0), (1, 300, 80, 0), (40, NARROW + 1, 2, 1), (40, 2, 64, 1)]
)
def test_of_matrices(fn, rows, inner, outer, left):
    args = [torch.randn(*shape, dtype=torch.float64) for shape in ((rows, inner), (inner, outer), (outer,))]
    graph, products = spread(fn, *args)
    assert products == left
    torch.testing.assert_close(graph(*args), fn(*args), rtol=1e-12, atol=1e-12)


def test_of_batches_and_without_bias():
    x, weight = torch.randn(3, 50, 4, dtype=torch.float64), torch.randn(3, 4, 7, dtype=torch.float64)
    graph, products = spread(lambda x, w: torch.bmm(x, w) + torch.mm(x[0], w[0]), x, weight)
    assert products == 0
    torch.testing.assert_close(graph(x, weight), x @ weight + x[0] @ weight[0], rtol=1e-12, atol=1e-12)
