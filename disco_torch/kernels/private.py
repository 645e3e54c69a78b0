"""Every private name of PyTorch that the package uses, but for the tree functions (`torch.utils._pytree`, in `types.py`).

`tests/kernels/test_private.py` names the ones that a PyTorch version lacks.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

PRIVATE_NAMES = {
    "torch._C._functorch.is_functorch_wrapped_tensor": "tensors inside of `grad` and `vmap` take the plain path",
    "torch._ops.OpOverload": "the type of an operation in a recorded graph",
    "torch.ops.aten.add.Tensor._schema": "which of its arguments an operation writes into",
    "torch.ops.aten.add.Tensor.is_view": "whether its result shares memory with its first argument",
    "torch._foreach_copy_": "many small copies in one launch",
}
"""What each of them is needed for."""


def is_wrapped(*tensors: Tensor) -> bool:
    """Whether a transform of `torch.func` (grad, vmap, jvp) holds one of these tensors."""
    return any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors))


def copy_many(destinations: list[Tensor], sources: list[Tensor]) -> None:
    """Copies tensors of one dtype into others of the same shapes, in one launch."""
    torch._foreach_copy_(destinations, sources)


def is_view(node: fx.Node) -> bool:
    """Whether a node shows (a part of) its first argument, which may be a list of tensors."""
    target = node.target
    return target is operator.getitem or (isinstance(target, torch._ops.OpOverload) and target.is_view)


def is_write(node: fx.Node) -> bool:
    """Whether a node writes into one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def written_arguments(node: fx.Node) -> list[Any]:
    """The arguments that a node writes into, tensors or lists of them."""
    assert isinstance(node.target, torch._ops.OpOverload)
    arguments = node.target._schema.arguments
    given = dict(zip([argument.name for argument in arguments], node.args, strict=False)) | node.kwargs
    return [given.get(argument.name) for argument in arguments if argument.is_write]
