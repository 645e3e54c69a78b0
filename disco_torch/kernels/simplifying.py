"""Traced operations made fewer, no number changed: what does nothing goes, what is computed twice is computed once."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

aten = torch.ops.aten

SAME = (aten.alias.default, aten.detach.default)
"""Nothing is differentiated any more: these are their input."""
RESHAPES = (aten.view.default, aten.expand.default)


def simplify(graph: fx.Graph) -> None:
    """In place. Of the graph's own inputs none may be written into."""
    graph.eliminate_dead_code()
    drop_idle(graph)
    merge_equal(graph)
    graph.eliminate_dead_code()


def drop_idle(graph: fx.Graph) -> None:
    """Takes out reshapes to the same shape, and those between two reshapes."""
    for node in list(graph.nodes):
        if node.target is aten._unsafe_view.default:
            node.target = aten.view.default
        if node.target is aten.view.default and node.args[0].target is aten.view.default:
            node.args = (node.args[0].args[0], *node.args[1:])
        idle = node.target in RESHAPES and shape_of(node) is not None and shape_of(node) == shape_of(node.args[0])
        if idle or node.target in SAME:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def shape_of(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "shape", None)


def merge_equal(graph: fx.Graph) -> None:
    """Makes nodes with the same operation and the same inputs one, but for those that touch what is written into."""
    written = written_into(graph)
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node in written or any(each in written for each in node.all_input_nodes):
            continue
        leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
        key = (node.target, structure, *((type(leaf), leaf) for leaf in leaves))
        same = first.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def written_into(graph: fx.Graph) -> set[fx.Node]:
    """The operations that write, what they write into, and all that this is a view of."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        found.add(node)
        base = node.args[0]
        while isinstance(base, fx.Node):
            found.add(base)
            views = isinstance(base.target, torch._ops.OpOverload) and (
                base.target.is_view or base.target._schema.is_mutable
            )
            base = base.args[0] if views else None
    return found
