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
RESHAPING = (aten.squeeze_.dim, aten.squeeze_.dims)
PLAIN = {
    aten.copy_.default: aten.clone.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
}
"""Operations that write, as far as transforms use them, and those that give the same as a new tensor."""


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
    written = written_into(graph)
    for node in list(graph.nodes):
        if node.target not in PLAIN or not is_own(node.args[0], node):
            continue
        home, plain = node.args[0], PLAIN[node.target]
        if plain is aten.clone.default:
            source = node.args[1]
            if source is not home and source not in written and kind_of(source) == kind_of(home):
                node.target, node.args = plain, (source,)
                node.kwargs = {"memory_format": torch.contiguous_format}
        elif all(kind_of(each)[1:] == kind_of(home)[1:] for each in node.all_input_nodes):
            node.target = plain


def is_own(home: Any, write: fx.Node) -> bool:
    """Whether a tensor is made to be written into by this node alone; contiguous, so that the order of memory is known."""
    if not isinstance(home, fx.Node) or home.op != "call_function" or list(home.users) != [write]:
        return False
    whole = not is_view(home) or write.target in RESHAPING
    return whole and not is_write(home) and home.meta["val"].is_contiguous()


def kind_of(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.dtype, value.device


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


def origin(node: fx.Node) -> fx.Node:
    """What a node is a view of, or itself."""
    while is_view(node):
        parent: Any = node.args[0]
        if node.target is operator.getitem and not is_view(parent):  # of an operation with several results
            break
        node = parent
    return node


def is_write(node: fx.Node) -> bool:
    """Whether a node writes into one of its inputs."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def written_into(graph: fx.Graph) -> set[fx.Node]:
    """The operations that write, what they write into, all that this is a view of, and all views of that."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if not is_write(node):
            continue
        found.add(node)
        schema = node.target._schema
        given = dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)) | node.kwargs
        into = [given.get(argument.name) for argument in schema.arguments if argument.is_write]
        for base in pytree.tree_leaves(into):
            while isinstance(base, fx.Node) and base not in found:
                found.add(base)
                base = base.args[0] if is_view(base) or is_write(base) else None
    for node in graph.nodes:
        if is_view(node) and node.args[0] in found:
            found.add(node)
    return found
