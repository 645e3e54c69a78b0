"""Traced operations made fewer, no number changed: what does nothing goes, what is computed twice is computed once."""

from __future__ import annotations

import operator
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
    drop_writes(graph)
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


def drop_writes(graph: fx.Graph) -> None:
    """What is written into a tensor that nothing else looks at is a tensor of its own instead.

    Transforms leave such writes behind. They would stay apart from what computes the same, and could not be dropped.
    """
    for node in list(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if schema is None or [argument.is_write for argument in schema.arguments].count(True) != 1:
            continue
        home, others = node.args[0], [each for each in node.all_input_nodes if each is not node.args[0]]
        if not isinstance(home, fx.Node) or home.op != "call_function" or list(home.users) != [node]:
            continue
        if any(each.meta["val"].dtype != home.meta["val"].dtype for each in others):
            continue
        if node.target is aten.copy_.default:
            (source,) = others
            contiguous = home.meta["val"].is_contiguous() and shape_of(source) == shape_of(home)
            if contiguous and not is_view(home) and source not in written_into(graph):
                node.target, node.args = aten.clone.default, (source,)
                node.kwargs = {"memory_format": torch.contiguous_format}
            continue
        name = schema.name.removeprefix("aten::")
        plain = getattr(getattr(aten, name.removesuffix("_"), None), node.target._overloadname, None)
        if name.endswith("_") and plain is not None and (plain.is_view or not is_view(home)):
            node.target = plain


def merge_equal(graph: fx.Graph) -> None:
    """Makes nodes with the same operation and the same inputs one, but for those that touch what is written into."""
    written = written_into(graph)
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node in written or any(each in written for each in node.all_input_nodes):
            continue
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
        # As text, a zero has its sign.
        key = (node.target, structure, *((type(leaf), str(leaf) if isinstance(leaf, float) else leaf) for leaf in leaves))
        same = first.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def is_view(node: fx.Node) -> bool:
    """Whether a node shows (a part of) its first input, which may be a list of such."""
    return node.target is operator.getitem or (isinstance(node.target, torch._ops.OpOverload) and node.target.is_view)


def written_into(graph: fx.Graph) -> set[fx.Node]:
    """The operations that write, what they write into, all that this is a view of, and all views of that."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        found.add(node)
        given = dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)) | node.kwargs
        into = [given.get(argument.name) for argument in schema.arguments if argument.is_write]
        for base in pytree.tree_leaves(into):
            while isinstance(base, fx.Node) and base not in found:
                found.add(base)
                mutated = getattr(getattr(base.target, "_schema", None), "is_mutable", False)
                base = base.args[0] if is_view(base) or mutated else None
    for node in graph.nodes:
        if is_view(node) and node.args[0] in found:
            found.add(node)
    return found
