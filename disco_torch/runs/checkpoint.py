"""Checkpoints: everything that changes, by name, in one file; a kill at any moment leaves the last one whole."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from disco_torch.files import load_tensors, replacing
from disco_torch.types import flatten_tree, tree_items, unflatten_tree

FORMAT = 2
"""Format of the files. In format 1 the leaves of a state had no names."""
FIX = "use the settings and the version of disco-torch that wrote it"
MAX_COUNT = 2**63 - 1
T = TypeVar("T")
Leaves = dict[str, Any]
"""The leaves of a state by name, as `tree_items` names them: tensors on the CPU and plain values."""


class CheckpointMismatch(ValueError):
    """A checkpoint is not of the state that it is loaded into."""


def pack(tree: Any) -> Leaves:
    """The leaves of a state by name; tensors and plain values, which load without running any code."""
    return {name: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf for name, leaf in tree_items(tree)}


def unpack(leaves: Mapping[str, Any], like: T, where: str = "") -> T:
    """A state of the same structure as `like` with the given leaves, on the devices of its tensors.

    Args:
      leaves: from `pack`. Names, shapes and dtypes must be those of `like`.
      like: a state of the wanted structure.
      where: what the names in messages begin with.
    """
    wanted = dict(tree_items(like))
    check_leaves(leaves, wanted, where)
    placed = [
        _owned(leaves[name]).to(old.device) if isinstance(old, Tensor) else leaves[name] for name, old in wanted.items()
    ]
    return unflatten_tree(placed, flatten_tree(like)[1])


def check_leaves(leaves: Mapping[str, Any], wanted: Mapping[str, Any], where: str = "") -> None:
    """Raises unless leaves have the names of those that are wanted, and each its shape and dtype, or its class."""
    if not isinstance(leaves, Mapping):
        raise CheckpointMismatch(f"the checkpoint's `{where}` must be leaves by name, got {type(leaves).__name__}; {FIX}.")
    for name in [*wanted, *leaves]:
        path = "/".join(part for part in (where, str(name)) if part)
        if name not in leaves or name not in wanted:
            problem = "is missing" if name not in leaves else "is not part of this state"
            raise CheckpointMismatch(f"the checkpoint's `{path}` {problem}; {FIX}.")
        if (expected := _describe(wanted[name])) != (found := _describe(leaves[name])):
            raise CheckpointMismatch(f"the checkpoint's `{path}` must be {expected}, got {found}; {FIX}.")


def _owned(leaf: Tensor) -> Tensor:
    """A tensor whose numbers have a place each: where one stands for many, as `expand` leaves it, nothing can be written."""
    repeats = any(stride == 0 and size > 1 for stride, size in zip(leaf.stride(), leaf.shape, strict=True))
    return leaf.clone(memory_format=torch.contiguous_format) if repeats else leaf


def typed(state: Mapping[str, Any], name: str, kind: type[T], where: str = "") -> T:
    """A plain value of a state, which must be of this very class; a tensor in its place could claim any size."""
    value, path = state.get(name), "/".join(part for part in (where, name) if part)
    if type(value) is not kind:
        raise CheckpointMismatch(f"the checkpoint's `{path}` must be {kind.__name__}, got {type(value).__name__}; {FIX}.")
    return value


def number_pairs(state: Mapping[str, Any], name: str) -> list[tuple[float, float]]:
    """Pairs of numbers, such as returns and lengths of episodes, as a checkpoint has them."""
    pairs = typed(state, name, list)
    if any(type(pair) is not list or len(pair) != 2 or any(type(x) is not float for x in pair) for pair in pairs):
        raise CheckpointMismatch(f"the checkpoint's `{name}` must be pairs of a return and a length; {FIX}.")
    return [(a, b) for a, b in pairs]


def number_list(state: Mapping[str, Any], name: str) -> list[float]:
    """A list of numbers, as a checkpoint has it."""
    found = typed(state, name, list)
    if any(type(x) is not float for x in found):
        raise CheckpointMismatch(f"the checkpoint's `{name}` must be numbers; {FIX}.")
    return found


def check_names(state: Any, names: Iterable[str], where: str = "") -> None:
    """Raises unless a part of a checkpoint is a dictionary with these names and no others."""
    if type(state) is not dict:
        raise CheckpointMismatch(f"the checkpoint's `{where}` must be dict, got {type(state).__name__}; {FIX}.")
    for name in sorted(set(names) ^ set(state), key=str):
        problem, path = "is not part of this state" if name in state else "is missing", f"{where}/{name}" if where else name
        raise CheckpointMismatch(f"the checkpoint's `{path}` {problem}; {FIX}.")


def check_range(name: str, numbers: Any, low: float, high: float) -> None:
    """Raises unless all numbers, a tensor or a list, lie in low .. high."""
    found = (
        [numbers.min().item(), numbers.max().item()] if isinstance(numbers, Tensor) and numbers.numel() else list(numbers)
    )
    for number in found:
        if not low <= number <= high:
            raise CheckpointMismatch(f"the checkpoint's `{name}` must lie in {low} .. {high}, got {number}; {FIX}.")


def restore_generator(generator: torch.Generator, state: Any, where: str = "generator") -> None:
    """Sets the state of a generator, a tensor of the right shape."""
    generator.set_state(unpack({where: state}, {where: generator.get_state()})[where])


def unpack_counters(state: Mapping[str, Any], like: T) -> T:
    """Counters of a state, a dataclass of integers that are not negative."""
    counts = unpack(typed(state, "counters", dict), dataclasses.asdict(like), "counters")  # type: ignore[call-overload]
    for name, count in counts.items():
        check_range(f"counters/{name}", [count], 0, MAX_COUNT)
    return type(like)(**counts)


def _describe(leaf: Any) -> str:
    """What a leaf must have in common with the one that it replaces."""
    if isinstance(leaf, Tensor):
        return f"{list(leaf.shape)} of {str(leaf.dtype).removeprefix('torch.')}"
    return type(leaf).__name__


def first_not_finite(tree: Any) -> str | None:
    """The first tensor of a tree that holds NaN or infinity, in words; None where all are finite.

    All numbers are summed first, in one operation. Only where the sum is not finite each tensor is looked at.
    """
    items = [(name, x) for name, x in tree_items(tree) if isinstance(x, Tensor) and x.is_floating_point()]
    if not items or torch.cat([leaf.reshape(-1) for _, leaf in items]).sum().isfinite():
        return None
    for name, leaf in items:
        if not (ok := leaf.isfinite()).all():
            bad = leaf[~ok] if leaf.ndim else leaf.reshape(1)
            return f"`{name}` must be finite, got {float(bad[0])} ({bad.numel()} of {leaf.numel()} values)"
    return None


def checkpoint_path(folder: Path, count: int) -> Path:
    """The file of the checkpoint after so many rollouts or meta-updates."""
    return folder / f"checkpoint-{count:09d}.pt"


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, the newest last."""
    return sorted(path for path in folder.glob("checkpoint-*.pt") if re.fullmatch(r"checkpoint-\d{9}\.pt", path.name))


def save_checkpoint(folder: Path, count: int, content: dict[str, Any], keep: int) -> Path:
    """Writes the whole file before it takes its name, and only then removes the oldest beyond `keep`."""
    path = checkpoint_path(folder, count)
    with replacing(path) as file:
        torch.save({"format": FORMAT, **content}, file)
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def best_path(folder: Path) -> Path:
    """The file of the best checkpoint so far, by the mean return of evaluations during the run."""
    return folder / "best.pt"


def save_best(folder: Path, content: dict[str, Any]) -> Path:
    """Writes the best checkpoint, in the format of the others; it is kept however many of them are."""
    with replacing(best_path(folder)) as file:
        torch.save({"format": FORMAT, **content}, file)
    return best_path(folder)


def load_checkpoint(folder: Path, which: str | int = "newest") -> dict[str, Any]:
    """Reads a checkpoint; see `find_checkpoint`."""
    return find_checkpoint(folder, which)[1]


def find_checkpoint(folder: Path, which: str | int = "newest") -> tuple[Path, dict[str, Any]]:
    """The file of a checkpoint and its content. Only tensors and plain values are read, never code.

    Args:
      folder: folder of the checkpoints.
      which: `newest` is the newest one that loads, `best` the one with the best evaluation; a number is the one after so
        many rollouts or meta-updates.
    """
    if which != "newest":
        path = _path_of(folder, which)
        return path, _checked(path, load_tensors(path))
    for path in reversed(list_checkpoints(folder)):
        try:
            content = load_tensors(path)
        except Exception as error:  # a damaged file raises whatever its damage leads to
            warnings.warn(f"{path} does not load ({type(error).__name__}: {error}); trying the one before.", stacklevel=2)
            continue
        return path, _checked(path, content)
    raise ValueError(f"no checkpoint that loads in {folder}; a run can be resumed once it has written one.")


def _path_of(folder: Path, which: str | int) -> Path:
    """The file of the best checkpoint or of a number."""
    if which == "best":
        if not best_path(folder).is_file():
            raise ValueError(f"`which` is 'best', but {folder} has no best.pt; a run writes it with `eval_every` above 0.")
        return best_path(folder)
    if not isinstance(which, int) or not checkpoint_path(folder, which).is_file():
        kept = [int(path.stem.removeprefix("checkpoint-")) for path in list_checkpoints(folder)]
        raise ValueError(
            f"`which` must be 'newest', 'best' or the number of a checkpoint in {folder}, {kept}, got {which!r}."
        )
    return checkpoint_path(folder, which)


def _checked(path: Path, content: Any) -> dict[str, Any]:
    """The content of a checkpoint; raises where it is of another format."""
    found = content.get("format") if isinstance(content, dict) else None
    found = found if type(found) is int or found is None else type(found).__name__
    if found != FORMAT:
        hint = "resume it with the version of disco-torch that wrote it, or start a new run"
        raise ValueError(f"{path} must be of checkpoint format {FORMAT}, got {found}; {hint}.")
    return content


@contextmanager
def restoring(folder: Path) -> Iterator[None]:
    """Names the folder where a checkpoint is not what a session needs, whatever error its content leads to."""
    try:
        yield
    except CheckpointMismatch:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError, ValueError) as error:
        raise ValueError(
            f"the checkpoint in {folder} is not one of this run ({type(error).__name__}: {error}); {FIX}."
        ) from error
