"""Traced operations made fewer: those that the matrix product can do itself, and all others by PyTorch's compiler."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from disco_torch.kernels.cpu_biases import CPU_COMPILER_OPTIONS, split_biases
from disco_torch.kernels.narrow import spread_narrow
from disco_torch.kernels.parting import part_vectors
from disco_torch.kernels.simplifying import origin

aten = torch.ops.aten

COMPILER_OPTIONS: dict[str, Any] = {
    "max_pointwise_cat_inputs": 20,  # the rule lays some sixteen inputs side by side: one kernel, not one for each
    "online_softmax": False,  # rows are short: read once, kept, and written once
    "combo_kernels": True,  # most work is too small to fill a GPU: what does not depend on each other runs together
    "combo_kernels_pointwise_only": True,  # but for sums, which want blocks of their own shapes
    "comprehensive_padding": False,  # rows with gaps would have to be copied for the next product
    "shape_padding": False,  # products are of aligned rows already, see `layers.linear_each`
    "graph_partition": False,  # for graphs that are captured in parts
    "pick_loop_orders": False,  # a transposed weight among many inputs must not decide how results lie in memory
    "triton.autotune_pointwise": False,  # it gains 1%, 4% for few agents, and takes 10 s of the first start
}

CHOICES = "disco_torch: 2"
"""To be counted up when `choices.Choices` change: all that the compiler's cache knows of them."""


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's search for circular garbage: a quarter of a compilation's time, whose objects stay anyway."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass
class Plan:
    """A compilation: all that it depends on. It can be carried out by another process, too.

    Attributes:
      module: the graph, ready for the compiler.
      like: shape, strides, dtype and device of each input.
      options: for the compiler.
      carried: so many first inputs are overwritten with the first outputs, and returned as such.
    """

    module: fx.GraphModule
    like: list[tuple[Any, ...]]
    options: dict[str, Any]
    carried: int

    @classmethod
    def of(cls, graph: fx.GraphModule, tensors: list[Tensor], carried: int) -> Plan:
        import torch._inductor

        own = fx.GraphModule(graph, copy.deepcopy(graph.graph))
        if any(tensor.is_cuda for tensor in tensors):
            known = set(torch._inductor.list_options())
            options = {name: value for name, value in COMPILER_OPTIONS.items() if name in known}
            part_vectors(own.graph)
            spread_narrow(own.graph)
        else:
            options = CPU_COMPILER_OPTIONS
            split_biases(own.graph)
        carried = write_back(own.graph, carried)
        own.recompile()
        return cls(own, outlines(tensors), options, carried)

    @uncollected()
    def compile(self) -> Any:
        import torch._inductor
        from torch._guards import TracingContext, tracing
        from torch._inductor.virtualized import V
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        from disco_torch.kernels.choices import Choices

        # With an environment for shapes, though all are fixed: without, the compiler does not look into its cache on disk.
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        with mode:
            like: list[Any] = [
                torch.empty_strided(*sizes, dtype=dtype, device=device) for *sizes, dtype, device in self.like
            ]
        # As an option, choices are part of the cache's key; but it holds for a process's first compilation alone.
        options = self.options | {"inductor_choices_class": partial(Choices, CHOICES)}
        # Parameters may be part of the graph; no derivative of it is wanted.
        with torch.no_grad(), tracing(TracingContext(mode)), V.set_choices_handler(Choices(CHOICES)):
            return torch._inductor.compile(self.module, like, options)

    def carry_out(self, tensors: list[Tensor]) -> Callable[..., Any]:
        """Compiles, unless that was done before; and runs it with these: some failures show only then."""
        compiled, carried = self.compile(), self.carried
        with torch.no_grad():
            compiled(*tensors)
        return lambda *inputs: [*inputs[:carried], *compiled(*inputs)]


def outlines(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    return [(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors]


def write_back(graph: fx.Graph, carried: int) -> int:
    """Writes the first `carried` outputs into the first inputs instead: the kernels that make them can do that.

    Returns `carried`, or 0 where nothing was changed, since an output is (a view of) an input that would be overwritten.
    """
    homes = [node for node in graph.nodes if node.op == "placeholder"][:carried]
    (output,) = (node for node in graph.nodes if node.op == "output")
    results: list[Any] = list(output.args[0])
    if any(origin(result) in homes and result not in homes[i : i + 1] for i, result in enumerate(results)):
        return 0
    with graph.inserting_before(output):
        for home, result in zip(homes, results, strict=False):
            if result is not home:
                graph.call_function(aten.copy_.default, (home, result))
    output.args = (tuple(results[carried:]),)
    return carried


def join_relus(graph: fx.Graph) -> None:
    """Where a product with a bias is only looked at through a relu, the product's own kernel does that, too."""
    for relu in list(graph.nodes):
        if relu.target is not aten.relu.default:
            continue
        product = relu.args[0]
        while product.target is aten.view.default and len(product.users) == 1:
            product = product.args[0]
        if product.target is not aten.addmm.default or len(product.users) != 1 or product.kwargs:
            continue
        product.target = aten._addmm_activation.default
        relu.replace_all_uses_with(relu.args[0])
        graph.erase_node(relu)
