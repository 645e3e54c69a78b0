"""Checks that the arrays of a file fit a module, all of them before any is used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from disco_torch.types import Params

STORED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_floating_array(name: str, array: np.ndarray | Tensor) -> None:
    """Raises unless an array of a file is of floating point, in a type that is stored."""
    if isinstance(array, np.ndarray):
        is_stored = array.dtype.kind == "f" and array.dtype.itemsize in (2, 4, 8)
    else:
        is_stored = array.dtype in STORED_DTYPES
    if not is_stored:
        raise ValueError(f"array {name!r} must be floating point of 16, 32 or 64 bits, got {array.dtype}.")


def floating_tensor(name: str, array: np.ndarray | Tensor) -> Tensor:
    """An array of a file as a tensor of the same floating-point numbers."""
    check_floating_array(name, array)
    if isinstance(array, np.ndarray):
        # Arrays may be stored in the other byte order or by columns.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    return array


def check_names(names: set[str], wanted: set[str]) -> None:
    """Raises at the first name that is missing or unexpected."""
    missing, unexpected = sorted(wanted - names), sorted(names - wanted)
    if not missing and not unexpected:
        return
    problems = [f"array {name!r} is missing" for name in missing[:1]]
    problems += [f"array {name!r} is not expected" for name in unexpected[:1]]
    raise ValueError(
        f"{' and '.join(problems)} ({len(missing)} missing, {len(unexpected)} unexpected of {len(wanted)}); "
        "is it another network's file?"
    )


def check_shapes(arrays: Mapping[str, np.ndarray | Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises at the first array that is missing, unexpected, not of floating point, or of another shape."""
    check_names(set(arrays), set(shapes))
    for name, shape in shapes.items():
        check_floating_array(name, arrays[name])
        if tuple(arrays[name].shape) != shape:
            raise ValueError(
                f"array {name!r} must be {list(shape)}, got {list(arrays[name].shape)}; is it another configuration's file?"
            )


def checked_tensors(
    arrays: Mapping[str, np.ndarray | Tensor], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> Params:
    """The arrays as new tensors of `dtype`, in the order of `shapes`.

    Raises at the first array that is missing, unexpected, of another shape, not of floating point, or not finite in `dtype`.
    """
    check_shapes(arrays, shapes)
    tensors = {}
    for name in shapes:
        tensors[name] = tensor = floating_tensor(name, arrays[name]).detach().to(dtype, copy=True)
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            raise ValueError(f"array {name!r} must be finite in {dtype}, got {bad} values that are not.")
    return tensors


def stored_dtype(arrays: Mapping[str, np.ndarray | Tensor]) -> torch.dtype:
    """The narrowest type that holds every array exactly; float32 if there are none."""
    dtypes = [floating_tensor(name, array).dtype for name, array in arrays.items()]
    widest = dtypes[0] if dtypes else torch.float32
    for dtype in dtypes[1:]:
        widest = torch.promote_types(widest, dtype)
    return widest
