"""Narrow matrix products as sums of elementwise ones, for PyTorch's compiler on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

NARROW = 32
"""A product whose inner and outer widths are at most this is less work than its launch."""
PRODUCTS = (aten.mm.default, aten.addmm.default, aten._addmm_activation.default, aten.bmm.default)


def spread_narrow(graph: fx.Graph) -> None:
    """Turns products of narrow matrices, or of a single row, into sums that the compiler fuses with what is around them.

    The meta-network has dozens of them, with two to thirty channels: each would be a kernel of its own, or two.
    """
    for node in list(graph.nodes):
        if node.target not in PRODUCTS or node.kwargs or not node.meta["val"].is_floating_point():
            continue
        args: Any = node.args
        *bias, x, weight = args
        rows, (inner, outer) = x.meta["val"].shape[-2], weight.meta["val"].shape[-2:]
        if rows > 1 and (inner > NARROW or outer > NARROW):
            continue
        last = x.meta["val"].ndim
        with graph.inserting_before(node):
            columns = graph.call_function(aten.unsqueeze.default, (x, last))  # [..., rows, inner, 1]
            spread = graph.call_function(aten.unsqueeze.default, (weight, last - 2))  # [..., 1, inner, outer]
            terms = graph.call_function(aten.mul.Tensor, (columns, spread))
            total = graph.call_function(aten.sum.dim_IntList, (terms, [last - 1]))
            if bias:
                total = graph.call_function(aten.add.Tensor, (total, bias[0]))
            if node.target is aten._addmm_activation.default:
                total = graph.call_function(aten.relu.default, (total,))
        total.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(total)
        graph.erase_node(node)
