"""Products whose bias stands apart are the same products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch.kernels.cpu_biases import split_biases

aten = torch.ops.aten


def test_biases_are_added_after_their_products() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 3), (4, 3), (4,)))

    def layers(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(torch.nn.functional.linear(x, weight, bias)), torch.addmm(bias, x, weight.t(), beta=2.0)

    graph = make_fx(layers)(x, weight, bias)
    split_biases(graph.graph)
    graph.recompile()
    for got, want in zip(graph(x, weight, bias), layers(x, weight, bias), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)
    targets = [node.target for node in graph.graph.nodes]
    assert targets.count(aten.mm.default) == 1
    assert targets.count(aten.addmm.default) == 1  # the one with a factor is left as it is
