"""Do the arrays of a file fit a module? All are looked at before any is used."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from disco_torch.types import Params

STORED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def floating_tensor(name: str, array: np.ndarray | Tensor) -> Tensor:
    """An array of a file as a tensor of the same floating-point numbers."""
    if isinstance(array, np.ndarray):
        if array.dtype.kind != "f" or array.dtype.itemsize not in (2, 4, 8):
            raise ValueError(f"array {name!r} must be floating point of 16, 32 or 64 bits, got {array.dtype}.")
        # Arrays may be stored in the other byte order or by columns.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    if array.dtype not in STORED_DTYPES:
        raise ValueError(f"array {name!r} must be floating point of 16, 32 or 64 bits, got {array.dtype}.")
    return array


def check_names(names: set[str], wanted: set[str]) -> None:
    """Raises at the first name that is missing or one too many."""
    missing, unexpected = sorted(wanted - names), sorted(names - wanted)
    if not missing and not unexpected:
        return
    problems = [f"array {name!r} is missing" for name in missing[:1]]
    problems += [f"array {name!r} is not expected" for name in unexpected[:1]]
    raise ValueError(
        f"{' and '.join(problems)} ({len(missing)} missing, {len(unexpected)} unexpected of {len(wanted)}); "
        "is it another network's file?"
    )


def checked_tensors(
    arrays: Mapping[str, np.ndarray | Tensor], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> Params:
    """The arrays as new tensors of `dtype`, in the order of `shapes`.

    Raises at the first array that is missing, unexpected, of another shape, not of floating point, or not finite in `dtype`.
    """
    check_names(set(arrays), set(shapes))
    tensors = {}
    for name, shape in shapes.items():
        tensor = floating_tensor(name, arrays[name])
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"array {name!r} must be {list(shape)}, got {list(tensor.shape)}; is it another configuration's file?"
            )
        tensors[name] = tensor = tensor.detach().to(dtype, copy=True)
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
