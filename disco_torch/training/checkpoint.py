"""Checkpoints: everything that changes, in one file, written so that a kill at any moment leaves the last one whole."""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from disco_torch.files import replacing

FORMAT = 1
T = TypeVar("T")


def pack(tree: Any) -> list[Any]:
    """The leaves of a state, in order: tensors and plain values, which load without running any code."""
    return [leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf for leaf in pytree.tree_leaves(tree)]


def unpack(leaves: list[Any], like: T) -> T:
    """A state of the same structure as `like`, with the given leaves, on the devices of its tensors."""
    old, structure = pytree.tree_flatten(like)
    if len(old) != len(leaves):
        raise ValueError(
            f"the checkpoint holds {len(leaves)} parts of a state, {len(old)} are needed; was it another setting?"
        )
    placed = [new.to(leaf.device) if isinstance(leaf, Tensor) else new for leaf, new in zip(old, leaves, strict=True)]
    return pytree.tree_unflatten(placed, structure)


def checkpoint_path(folder: Path, count: int) -> Path:
    """Of so many rollouts, or of whatever a run counts."""
    return folder / f"checkpoint-{count:09d}.pt"


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, the newest last."""
    return sorted(path for path in folder.glob("checkpoint-*.pt") if re.fullmatch(r"checkpoint-\d{9}\.pt", path.name))


def save_checkpoint(folder: Path, count: int, content: dict[str, Any], keep: int) -> Path:
    """Writes the whole file before it takes its name, and only then drops the oldest beyond `keep`."""
    path = checkpoint_path(folder, count)
    with replacing(path) as file:
        torch.save({"format": FORMAT, **content}, file)
    for leftover in folder.glob(".checkpoint-*.partial"):  # of a run that was killed while writing
        leftover.unlink()
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def check_sums(path: Path) -> None:
    """Raises where a part of the file is not what was written; `torch.load` takes changed numbers as they are."""
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """The newest checkpoint that loads. Only tensors and plain values are read, never code."""
    for path in reversed(list_checkpoints(folder)):
        try:
            check_sums(path)
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file raises whatever its damage leads to
            warnings.warn(f"{path} does not load ({type(error).__name__}: {error}); trying the one before.", stacklevel=2)
            continue
        if content.get("format") != FORMAT:
            found = content.get("format")
            raise ValueError(f"{path} must be of checkpoint format {FORMAT}, got {found}; use the matching version.")
        return content
    raise ValueError(f"no checkpoint that loads in {folder}; a run can be resumed once it has written one.")
