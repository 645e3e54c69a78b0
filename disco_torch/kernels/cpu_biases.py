"""Biases apart from their products, for PyTorch's compiler on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

CPU_COMPILER_OPTIONS: dict[str, Any] = {"pattern_matcher": False}
"""It would put the two together again."""


def split_biases(graph: fx.Graph) -> None:
    """Turns b + x W into a product and a sum, which the compiler then fuses with what is done to it.

    Together they cost a pass more: a product on a CPU begins with a copy of the bias into every row of its result.
    """
    for node in graph.find_nodes(op="call_function", target=aten.addmm.default):
        if node.kwargs:  # with factors
            continue
        bias, x, weight = node.args
        with graph.inserting_before(node):
            total = graph.call_function(aten.add.Tensor, (graph.call_function(aten.mm.default, (x, weight)), bias))
        node.replace_all_uses_with(total)
        graph.erase_node(node)
