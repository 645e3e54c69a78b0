"""Passes over a recorded graph: the same numbers from fewer operations.

    pass       stage    device  what it does
    views      record   any     drops reshapes to the same shape, and those between two reshapes
    writes     record   any     turns writes into tensors that nothing else reads into new tensors
    repeats    record   any     computes once what is computed twice (common subexpressions)
    relus      record   GPU     lets the kernel of a matmul with bias apply the ReLU behind it
    narrow     compile  GPU     turns matmuls of at most 32 channels into sums that the compiler fuses with what is around
    biases     compile  CPU     adds biases after their matmuls, where the compiler fuses them

Those of the first stage also apply to graphs that are not compiled. `DISCO_TORCH_WITHOUT="narrow relus"` leaves passes out:
the benchmarks' `--without` shows what each of them gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import fx

from disco_torch.kernels.private import is_view, is_write, written_into
from disco_torch.types import flatten_tree

aten = torch.ops.aten

WITHOUT = "DISCO_TORCH_WITHOUT"
NARROW = 32
"""A matmul whose inner and outer sizes are at most this is less work than its launch."""
MATMULS = (aten.mm.default, aten.addmm.default, aten._addmm_activation.default, aten.bmm.default)
SAME = (aten.alias.default, aten.detach.default)
"""Nothing is differentiated any more: these return their input."""
RESHAPES = (aten.view.default, aten.expand.default)
RESHAPES_IN_PLACE = (aten.squeeze_.dim, aten.squeeze_.dims)
OUT_OF_PLACE = {
    aten.copy_.default: aten.clone.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.add_.Tensor: aten.add.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.div_.Tensor: aten.div.Tensor,
}
"""Operations in place, as far as transforms use them, and those that return the same as a new tensor."""


class Pass(NamedTuple):
    """What changes a graph in place, at which stage, and on which devices."""

    apply: Callable[[fx.Graph], None]
    stage: Literal["record", "compile"]
    devices: tuple[str, ...] = ("cpu", "cuda")


def enabled_passes() -> list[str]:
    """The names of all passes but those that the environment leaves out."""
    without = os.environ.get(WITHOUT, "").replace(",", " ").split()
    if unknown := sorted(set(without) - PASSES.keys()):
        raise ValueError(f"`{WITHOUT}` must name passes out of {', '.join(PASSES)}, got {', '.join(unknown)}.")
    return [name for name in PASSES if name not in without]


def run_passes(graph: fx.Graph, stage: Literal["record", "compile"], device: str) -> None:
    """Applies the passes of a stage, in place. None of the graph's inputs may be written into."""
    graph.eliminate_dead_code()
    for name in enabled_passes():
        if PASSES[name].stage == stage and device in PASSES[name].devices:
            PASSES[name].apply(graph)
    graph.eliminate_dead_code()


def drop_idle_views(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        if node.target is aten._unsafe_view.default:
            node.target = aten.view.default
        if node.target is aten.view.default and node.args[0].target is aten.view.default:
            node.args = (node.args[0].args[0], *node.args[1:])
        idle = node.target in RESHAPES and shape_of(node) is not None and shape_of(node) == shape_of(node.args[0])
        if idle or node.target in SAME:
            replace(graph, node, node.args[0])


def drop_writes(graph: fx.Graph) -> None:
    """Transforms leave such writes behind. They could neither be merged with what computes the same nor be dropped."""
    written = written_into(graph)
    for node in list(graph.nodes):
        if node.target not in OUT_OF_PLACE or not is_only_use(node):
            continue
        home, plain = node.args[0], OUT_OF_PLACE[node.target]
        if plain is aten.clone.default:
            source = node.args[1]
            if source is not home and source not in written and kind_of(source) == kind_of(home):
                node.target, node.args = plain, (source,)
                node.kwargs = {"memory_format": torch.contiguous_format}
        elif all(kind_of(each)[1:] == kind_of(home)[1:] for each in node.all_input_nodes):
            node.target = plain


def is_only_use(write: fx.Node) -> bool:
    """Whether a tensor is made to be written into by this node alone; contiguous, so that its memory layout is known."""
    home: Any = write.args[0]
    if not isinstance(home, fx.Node) or home.op != "call_function" or list(home.users) != [write]:
        return False
    whole = not is_view(home) or write.target in RESHAPES_IN_PLACE
    return whole and not is_write(home) and home.meta["val"].is_contiguous()


def merge_repeats(graph: fx.Graph) -> None:
    """Leaves alone what touches tensors that are written into, and random numbers."""
    written = written_into(graph)
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node in written or any(each in written for each in node.all_input_nodes):
            continue
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        leaves, structure = flatten_tree((node.args, node.kwargs))
        # As text, a zero keeps its sign.
        key = (node.target, structure, *((type(leaf), str(leaf) if isinstance(leaf, float) else leaf) for leaf in leaves))
        same = first.setdefault(key, node)
        if same is not node:
            replace(graph, node, same)


def fuse_relus(graph: fx.Graph) -> None:
    """Where a matmul with bias is only read through a ReLU, its own kernel applies that, too."""
    for relu in graph.find_nodes(op="call_function", target=aten.relu.default):
        matmul = relu.args[0]
        while matmul.target is aten.view.default and len(matmul.users) == 1:
            matmul = matmul.args[0]
        if matmul.target is aten.addmm.default and len(matmul.users) == 1 and not matmul.kwargs:
            matmul.target = aten._addmm_activation.default
            replace(graph, relu, relu.args[0])


def expand_narrow_matmuls(graph: fx.Graph) -> None:
    """The meta-network has dozens of them, with two to thirty channels: each would be a kernel of its own, or two."""
    for node in list(graph.nodes):
        if node.target not in MATMULS or node.kwargs or not node.meta["val"].is_floating_point():
            continue
        *bias, x, weight = node.args
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
        replace(graph, node, total)


def separate_biases(graph: fx.Graph) -> None:
    """A matmul with bias on a CPU begins with a copy of the bias into every row of its result: a pass over memory more."""
    for node in graph.find_nodes(op="call_function", target=aten.addmm.default):
        if not node.kwargs:  # without factors
            bias, x, weight = node.args
            with graph.inserting_before(node):
                total = graph.call_function(aten.add.Tensor, (graph.call_function(aten.mm.default, (x, weight)), bias))
            replace(graph, node, total)


def replace(graph: fx.Graph, node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def shape_of(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "shape", None)


def kind_of(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.shape, value.dtype, value.device


PASSES = {
    "views": Pass(drop_idle_views, "record"),
    "writes": Pass(drop_writes, "record"),
    "repeats": Pass(merge_repeats, "record"),
    "relus": Pass(fuse_relus, "record", ("cuda",)),
    "narrow": Pass(expand_narrow_matmuls, "compile", ("cuda",)),
    "biases": Pass(separate_biases, "compile", ("cpu",)),
}
"""By name, in the order in which they are applied."""
