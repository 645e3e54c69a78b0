"""What passes ask of a recorded graph."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from disco_torch.kernels.private import is_view, is_write, written_arguments
from disco_torch.types import flatten_tree

__all__ = ["is_view", "is_write", "kind_of", "replace", "shape_of", "source_of", "written_into"]


def replace(graph: fx.Graph, node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def shape_of(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "shape", None)


def kind_of(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.dtype, value.device


def written_into(graph: fx.Graph) -> set[fx.Node]:
    """The operations that write, what they write into, all that this is a view of, and all views of that."""
    found: set[fx.Node] = set()
    for node in filter(is_write, graph.nodes):
        found.add(node)
        for base in flatten_tree(written_arguments(node))[0]:
            while isinstance(base, fx.Node) and base not in found:
                found.add(base)
                base = base.args[0] if is_view(base) or is_write(base) else None
    for node in graph.nodes:
        if is_view(node) and node.args[0] in found:
            found.add(node)
    return found


def source_of(node: fx.Node) -> fx.Node:
    """What a node is a view of, or itself."""
    while is_view(node):
        parent: Any = node.args[0]
        if node.target is operator.getitem and not is_view(parent):  # of an operation with several results
            break
        node = parent
    return node
