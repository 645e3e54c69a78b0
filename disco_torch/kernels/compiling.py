"""The stage `compile`: a recorded graph through `torch.compile`.

On the CPU update of `benchmarks/learner.py` it takes 5% longer than the compiler behind it, called directly, would at first
(148 and 142 s), starts sooner from the compiler's cache on disk (8 and 12 s), and runs as fast.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from disco_torch.kernels.passes import enabled_passes, run_passes
from disco_torch.kernels.private import source_of

aten = torch.ops.aten

GPU_OPTIONS: dict[str, Any] = {
    "max_pointwise_cat_inputs": 20,  # the rule concatenates some sixteen inputs: one kernel, not one for each
    "online_softmax": False,  # rows are short: read once, kept, and written once
    "combo_kernels": True,  # most work is too small to fill a GPU: independent operations run in one kernel
    "combo_kernels_pointwise_only": True,  # but for sums, which want blocks of their own shapes
    "comprehensive_padding": False,  # rows with gaps would have to be copied for the next matmul
    "shape_padding": False,  # matmuls are of aligned rows already, see `layers.linear_each`
    "graph_partition": False,  # it is for graphs that are captured in parts
    "pick_loop_orders": False,  # a transposed weight among many inputs must not decide the layout of results
    "triton.autotune_pointwise": False,  # it gains 1%, 4% for few agents, and takes 10 s of the first start
}


def compiled(graph: fx.GraphModule, tensors: list[Tensor], carried: int) -> Callable[..., Any]:
    """The graph compiled for tensors such as these, which it is run with: some failures show only then.

    The first `carried` outputs are written into the first inputs, which are returned in their place.
    """
    device = "cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu"
    own = fx.GraphModule(graph, copy.deepcopy(graph.graph))
    run_passes(own.graph, "compile", device)
    carried = write_back(own.graph, carried)
    make_constants(own)
    own.recompile()
    options = GPU_OPTIONS if device == "cuda" else {}
    if device == "cpu" and "biases" in enabled_passes():
        options = {"pattern_matcher": False}  # it would put matmuls and biases together again
    run = torch.compile(own, fullgraph=True, dynamic=False, options=options)
    strides = [tensor.stride() for tensor in tensors]

    def call(*inputs: Tensor) -> list[Tensor]:
        # Plain tensors, one object each, with the same strides where a size is 1: else all would be compiled again.
        alike = [x.detach() for x in inputs]
        alike = [x if x.stride() == s else x.as_strided(x.shape, s) for x, s in zip(alike, strides, strict=True)]
        return [*inputs[:carried], *run(*alike)]

    with torch.no_grad():
        call(*tensors)
    return call


def make_constants(module: fx.GraphModule) -> None:
    """Turns parameters in the graph into plain tensors: the compiler would prepare a backward pass for parameters."""
    for node in module.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        value = getattr(module, name)
        if isinstance(value, torch.nn.Parameter):
            delattr(module, name)
            module.register_buffer(name, value.detach())


def write_back(graph: fx.Graph, carried: int) -> int:
    """Writes the first `carried` outputs into the first inputs instead: the kernels that compute them can do that.

    Returns `carried`, or 0 where nothing was changed, since an output is (a view of) an input that would be overwritten.
    """
    homes = [node for node in graph.nodes if node.op == "placeholder"][:carried]
    (output,) = (node for node in graph.nodes if node.op == "output")
    results: list[Any] = list(output.args[0])
    if any(source_of(result) in homes and result not in homes[i : i + 1] for i, result in enumerate(results)):
        return 0
    with graph.inserting_before(output):
        for home, result in zip(homes, results, strict=False):
            if result is not home:
                graph.call_function(aten.copy_.default, (home, result))
    output.args = (tuple(results[carried:]),)
    return carried


def on_copies(fn: Callable[..., Any], carried: int) -> Callable[..., Any]:
    """A function that writes into its first arguments, on copies of them: the caller's may share their memory."""
    return lambda *tensors: fn(*(tensor.clone() for tensor in tensors[:carried]), *tensors[carried:])
