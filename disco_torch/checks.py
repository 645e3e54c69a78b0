"""Checks at public boundaries, each raising a `ValueError` that says what to do.

Shapes are always checked, which costs nothing. To check values (non-finite numbers, actions out of range) the data must be
read, which on a GPU would stall the stream; they are checked inside `checking()` or after `set_checking(True)`. The range of
actions is always checked on the CPU, where it is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_checking = False


def set_checking(enabled: bool) -> None:
    """Turns the checks of values on or off for the whole process."""
    global _checking
    _checking = enabled


@contextmanager
def checking(enabled: bool = True) -> Iterator[None]:
    """Turns the checks of values on (or off) inside a `with` block."""
    before = _checking
    set_checking(enabled)
    try:
        yield
    finally:
        set_checking(before)


def values_are_checked() -> bool:
    return _checking


def check_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise ValueError(f"`{name}` must be a torch.Tensor, got {type(value).__name__}; convert it with torch.as_tensor.")
    return value


def check_rank(name: str, value: object, rank: int, layout: str) -> None:
    """Raises unless `value` is a tensor of `rank` dimensions, laid out as `layout`, e.g. "[T, B]"."""
    tensor = check_tensor(name, value)
    if tensor.ndim != rank:
        raise ValueError(
            f"`{name}` must be {layout}, of {rank} dimensions, got shape {list(tensor.shape)}; "
            "time comes first, then the batch."
        )


def check_shape(name: str, value: object, shape: Sequence[int | None], hint: str = "") -> None:
    """Raises unless `value` has `shape`; `None` stands for any size."""
    tensor = check_tensor(name, value)
    matches = tensor.ndim == len(shape) and all(
        want is None or want == got for want, got in zip(shape, tensor.shape, strict=True)
    )
    if not matches:
        wanted = "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
        raise ValueError(f"`{name}` must be {wanted}, got {list(tensor.shape)}" + (f"; {hint}." if hint else "."))


def check_prefix(name: str, value: object, prefix: Sequence[int], hint: str = "") -> None:
    """Raises unless the leading dimensions of `value` are `prefix`."""
    tensor = check_tensor(name, value)
    if tuple(tensor.shape[: len(prefix)]) != tuple(prefix):
        wanted = ", ".join(map(str, prefix))
        raise ValueError(f"`{name}` must be [{wanted}, ...], got {list(tensor.shape)}" + (f"; {hint}." if hint else "."))


def check_floating(name: str, value: Tensor) -> None:
    if not value.is_floating_point():
        raise ValueError(f"`{name}` must be floating point, got {value.dtype}; convert it with `.float()`.")


def check_integer(name: str, value: Tensor) -> None:
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ValueError(f"`{name}` must be integers, got {value.dtype}; convert it with `.long()`.")


def check_not_empty(name: str, value: Tensor) -> None:
    if value.numel() == 0:
        raise ValueError(f"`{name}` is empty, shape {list(value.shape)}; at least one step and one batch entry is needed.")


def check_bool(name: str, value: Tensor) -> None:
    if value.dtype != torch.bool:
        raise ValueError(f"`{name}` must be bool, got {value.dtype}; convert it with `.bool()`.")


def _is_recorded() -> bool:
    """Whether the operations are being recorded or compiled: then Python must not read values."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def _first(bad: Tensor) -> list[int] | None:
    """Where the first True is, or None, also where a transform (vmap) hides the values from Python."""
    try:
        return bad.nonzero()[0].tolist() if bad.any() else None
    except RuntimeError:
        return None


def check_actions(name: str, actions: Tensor, num_actions: int) -> None:
    """Raises unless these are integers in 0 .. num_actions - 1; the range of GPU tensors only when values are checked."""
    check_integer(name, actions)
    if _is_recorded() or not (_checking or actions.device.type == "cpu"):
        return
    where = _first((actions < 0) | (actions >= num_actions))
    if where is not None:
        raise ValueError(
            f"`{name}` must lie in 0 .. {num_actions - 1}, got {int(actions[tuple(where)])} at {where}; "
            "the number of actions is the last size of the logits."
        )


def check_finite(name: str, value: Tensor) -> None:
    """When values are checked, raises at the first NaN or infinity and says where it is."""
    if not _checking or not value.is_floating_point() or _is_recorded():
        return
    bad = ~torch.isfinite(value)
    where = _first(bad)
    if where is not None:
        raise ValueError(
            f"`{name}` must be finite, got {float(value.detach()[tuple(where)])} at {where} "
            f"({int(bad.sum())} of {value.numel()} values); check the environment or the network that made it."
        )


def check_positive(name: str, value: float, hint: str = "") -> None:
    if not isinstance(value, Real | Tensor) or not value > 0:
        raise ValueError(f"`{name}` must be greater than 0, got {value!r}" + (f"; {hint}." if hint else "."))


def check_between(name: str, value: float, low: float, high: float) -> None:
    if not isinstance(value, Real | Tensor) or not low <= value <= high:
        raise ValueError(f"`{name}` must lie in [{low}, {high}], got {value!r}.")


def check_least(name: str, value: float, low: float) -> None:
    if not isinstance(value, Real) or value < low:
        raise ValueError(f"`{name}` must be at least {low}, got {value!r}.")
