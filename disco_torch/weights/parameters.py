"""Parameters of a module, to and from a file of either format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from disco_torch.types import Params
from disco_torch.weights.arrays import check_shapes, checked_tensors, stored_dtype
from disco_torch.weights.files import FORMATS, StoredFile, format_of_name, naming, save_npz, save_safetensors
from disco_torch.weights.haiku import HaikuLayer, from_haiku, to_haiku

Layers = Callable[[], Sequence[HaikuLayer]]
"""Makes the list of Haiku's layers; a function, because a network without Haiku names has none and may not need any."""


MEMBER_BYTES = 2**14
"""Of a member of an `.npz` besides its numbers: a header, at most."""


def max_file_bytes(module: nn.Module) -> int:
    """How much an `.npz` of a module's parameters can unpack to: 64 bits a number."""
    return sum(8 * param.numel() + MEMBER_BYTES for param in module.parameters())


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(param.shape) for name, param in module.named_parameters()}


def metadata_of(kind: str, config: object, provenance: Mapping[str, Any] | None) -> dict[str, str]:
    """What a `.safetensors` file says about itself: `kind` is "rule" or "agent", `config` and `provenance` plain data."""
    texts = {"format": FORMATS[-1], "kind": kind, "config": json.dumps(config)}
    if provenance is not None:
        try:
            texts["provenance"] = json.dumps(dict(provenance))
        except TypeError as error:
            raise ValueError(f"`provenance` must be what JSON can hold, numbers and texts by name; {error}.") from error
    return texts


def plain_metadata(stored: StoredFile, name: str) -> Any:
    """An entry of the metadata that holds JSON, or None if the file has no such entry."""
    if name not in stored.metadata:
        return None
    try:
        return json.loads(stored.metadata[name])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{stored.path}: the metadata's {name!r} must be JSON ({error}).") from error


def save_params(
    path: str | Path,
    module: nn.Module,
    layers: Layers,
    params: Params | None,
    metadata: Mapping[str, str],
    dtype: torch.dtype | None,
) -> None:
    """Writes parameters of a module: `.npz` under Haiku's names, `.safetensors` under ours with the metadata.

    They are checked as they would be on loading, so that a good file is never replaced by one that cannot be read.
    """
    path = Path(path)
    file_format = format_of_name(path)
    params = dict(module.named_parameters()) if params is None else params
    with naming(path):
        tensors = checked_tensors(params, _shapes(module), dtype or stored_dtype(params))
        if file_format == "safetensors":
            save_safetensors(path, tensors, metadata)
            return
        if "provenance" in metadata:
            raise ValueError("an .npz file holds arrays only, no `provenance`; leave it out or save as .safetensors.")
        if any(tensor.dtype == torch.bfloat16 for tensor in tensors.values()):
            raise ValueError("an .npz file cannot hold torch.bfloat16; give `dtype`, or save as .safetensors.")
        save_npz(path, to_haiku(module, layers(), tensors))


def check_fits(stored: StoredFile, module: nn.Module) -> None:
    """Raises where the arrays of a `.safetensors` file do not have the names and shapes of a module's parameters."""
    check_shapes(stored.arrays, _shapes(module))


def params_from(stored: StoredFile, module: nn.Module, layers: Layers, kind: str) -> Params:
    """All parameters of a module from a file, checked, in its dtype and device; `kind` is what the file must be of."""
    with naming(stored.path):
        found = stored.metadata.get("kind", kind)
        if found != kind:
            raise ValueError(f"must hold the parameters of the kind {kind!r}, got those of the kind {found!r}.")
        if stored.format == "npz":
            return from_haiku(module, layers(), stored.arrays)
        like = next(module.parameters())
        params = checked_tensors(stored.arrays, _shapes(module), like.dtype)
    return {name: param.to(like.device) for name, param in params.items()}
