"""Every private name of PyTorch that the package uses, but for the tree functions (`torch.utils._pytree`, in `types.py`).

`tests/kernels/test_private.py` names the ones that a PyTorch version lacks.
"""

from __future__ import annotations

import operator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

from disco_torch.types import flatten_tree

PRIVATE_NAMES = {
    "torch._C._functorch.is_functorch_wrapped_tensor": "tensors inside of `grad` and `vmap` take the plain path",
    "torch._ops.OpOverload": "the type of an operation in a recorded graph",
    "torch.ops.aten.add.Tensor._schema": "which of its arguments an operation writes into",
    "torch.ops.aten.add.Tensor.is_view": "whether its result shares memory with its first argument",
    "torch._foreach_copy_": "many small copies in one launch",
    "torch._guards.TracingContext": "the shapes of all nodes in one mode while a function is recorded",
    "torch._guards.tracing": "the same",
    "torch._subclasses.FakeTensorMode": "the same",
}
"""What each of them is needed for."""


def is_wrapped(*tensors: Tensor) -> bool:
    """Whether a transform of `torch.func` (grad, vmap, jvp) holds one of these tensors."""
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


def copy_many(destinations: list[Tensor], sources: list[Tensor]) -> None:
    """Copies tensors of one dtype into others of the same shapes, in one launch."""
    torch._foreach_copy_(destinations, sources)


def one_fake_mode() -> AbstractContextManager[Any]:
    """While a function is recorded, the shapes of all nodes are noted in one mode.

    `make_fx` would make a mode for each node, which takes a third of the time that recording takes.
    """
    return tracing(TracingContext(FakeTensorMode()))


def is_view(node: fx.Node) -> bool:
    """Whether a node shows (a part of) its first argument, which may be a list of tensors."""
    target = node.target
    return target is operator.getitem or (isinstance(target, torch._ops.OpOverload) and target.is_view)


def is_write(node: fx.Node) -> bool:
    """Whether a node writes into one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def written_into(graph: fx.Graph) -> set[fx.Node]:
    """The operations that write, what they write into, all that this is a view of, and all views of that."""
    found: set[fx.Node] = set()
    for node in filter(is_write, graph.nodes):
        found.add(node)
        arguments = node.target._schema.arguments
        given = dict(zip([argument.name for argument in arguments], node.args, strict=False)) | node.kwargs
        for base in flatten_tree([given.get(argument.name) for argument in arguments if argument.is_write])[0]:
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
