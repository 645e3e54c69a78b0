"""The pass `vectors`: operations on a vector concatenated of many parts are done on the parts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from disco_torch.kernels.private import written_into
from disco_torch.types import flatten_tree, unflatten_tree

aten = torch.ops.aten

FEWEST = 8
"""Parts that are worth it."""
LEAST = 1 << 22
"""Elements that are worth it for several agents: 64 agents gain 9%, two gain nothing and take 10 s longer to compile. One
agent, which has a vector of one dimension, gains 10%."""


@dataclass(frozen=True)
class Parts:
    """What a vector, [N] or [P, N], is made of, along its last dimension."""

    sizes: tuple[int, ...]
    nodes: tuple[fx.Node, ...]


def split_vectors(graph: fx.Graph) -> None:
    """Elementwise operations on a concatenated vector are done on each of its parts instead; in place.

    Plain PyTorch works best on one vector of all parameters, since each operation is a kernel. A compiler fuses operations
    anyway, and is spared copying the parts into the vector and out of it. What is written into is left alone.
    """
    known: dict[fx.Node, Parts] = {}
    made: dict[fx.Node, Parts] = {}
    written = written_into(graph)
    for node in list(graph.nodes):
        if node in written or any(each in written for each in node.all_input_nodes):
            continue
        if node.target is aten.cat.default:
            known |= of_cat(node)
        elif is_elementwise(node):
            made |= of_each(graph, node, known)
            known |= made
        elif is_part(node) and node.target is operator.getitem:
            vector, sizes, *dim = node.args[0].args
            if vector in known and tuple(sizes) == known[vector].sizes and is_last(dim, vector):
                node.replace_all_uses_with(known[vector].nodes[node.args[1]])
    for node in reversed(graph.nodes):
        if not node.users and (node in made or is_part(node)):
            graph.erase_node(node)
    for node, parts in made.items():
        if node.users:  # the whole vector is read, too
            with graph.inserting_before(node):
                whole = graph.call_function(aten.cat.default, (list(parts.nodes), -1))
            whole.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(whole)
    graph.eliminate_dead_code()


def is_part(node: fx.Node) -> bool:
    """Whether a node splits a vector, or is one of the results."""
    split = node.args[0] if node.target is operator.getitem else node
    return isinstance(split, fx.Node) and split.target is aten.split_with_sizes.default


def is_last(dim: Sequence[int], vector: fx.Node) -> bool:
    ndim = vector.meta["val"].ndim
    return (dim[0] if dim else 0) % ndim == ndim - 1


def of_cat(node: fx.Node) -> dict[fx.Node, Parts]:
    nodes: Any = node.args[0]
    dim: Any = node.args[1:]
    value = node.meta["val"]
    if len(nodes) < FEWEST or value.ndim > 2 or not is_last(dim, node) or (value.ndim == 2 and value.numel() < LEAST):
        return {}
    if len({each.meta["val"].dtype for each in (node, *nodes)}) > 1:  # the vector has the widest of them
        return {}
    return {node: Parts(tuple(part.meta["val"].shape[-1] for part in nodes), tuple(nodes))}


def is_elementwise(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or node.target is aten._to_copy.default


def of_each(graph: fx.Graph, node: fx.Node, known: dict[fx.Node, Parts]) -> dict[fx.Node, Parts]:
    """The operation on each part, if it is on vectors of the same parts and on one number for each vector."""
    leaves, structure = flatten_tree((node.args, node.kwargs))
    vectors = [leaf for leaf in leaves if isinstance(leaf, fx.Node) and leaf in known]
    if not vectors or len({known[vector].sizes for vector in vectors}) > 1:
        return {}
    sizes, shape = known[vectors[0]].sizes, vectors[0].meta["val"].shape
    others = [leaf for leaf in leaves if isinstance(leaf, fx.Node) and leaf not in known]
    whole = [leaf for leaf in others if leaf.meta["val"].shape == shape]
    if any(leaf.meta["val"].ndim and leaf.meta["val"].shape[-1] != 1 for leaf in others if leaf not in whole):
        return {}
    with graph.inserting_before(node):
        parts = {vector: known[vector].nodes for vector in vectors} | {leaf: slices(graph, leaf, sizes) for leaf in whole}
        nodes, start = [], 0
        for i, size in enumerate(sizes):
            each = [parts[leaf][i] if isinstance(leaf, fx.Node) and leaf in parts else leaf for leaf in leaves]
            args, kwargs = unflatten_tree(each, structure)
            part = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
            part.meta["val"] = node.meta["val"].narrow(-1, start, size)
            nodes.append(part)
            start += size
    return {node: Parts(sizes, tuple(nodes))}


def slices(graph: fx.Graph, vector: fx.Node, sizes: tuple[int, ...]) -> tuple[fx.Node, ...]:
    found, start = [], 0
    for size in sizes:
        part = graph.call_function(aten.slice.Tensor, (vector, vector.meta["val"].ndim - 1, start, start + size))
        part.meta["val"] = vector.meta["val"].narrow(-1, start, size)
        found.append(part)
        start += size
    return tuple(found)
