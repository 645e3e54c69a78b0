"""Weight files on disk: `.npz` and `.safetensors`, read without trust and written all or nothing.

Nothing in a file is ever unpickled, and a file that cannot be read is refused by name.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
import safetensors.torch
from torch import Tensor

from disco_torch.files import replacing

Arrays = dict[str, np.ndarray]
FileFormat = Literal["npz", "safetensors"]


@dataclass(frozen=True)
class StoredFile:
    """All that a file holds.

    Attributes:
      path: where it is.
      format: what it is, by its content.
      arrays: numpy's in an `.npz`, torch's in a `.safetensors`.
      metadata: of a `.safetensors`; an `.npz` has none.
    """

    path: Path
    format: FileFormat
    arrays: Mapping[str, np.ndarray | Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's name before the message of a `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def format_of_name(path: Path) -> FileFormat:
    """The format to write, by the name's ending."""
    if path.suffix == ".npz":
        return "npz"
    if path.suffix == ".safetensors":
        return "safetensors"
    raise ValueError(f"`path` must end in .npz or .safetensors, got {path.name!r}.")


def format_of_content(path: Path) -> FileFormat:
    """The format to read, by the first bytes; a name that says otherwise is refused."""
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be an .npz or .safetensors file, got {str(path)!r}, which is not a file.")
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(b"PK"):
        found: FileFormat = "npz"
    elif start[8:] == b"{":  # after eight bytes of length, a header in JSON
        found = "safetensors"
    else:
        raise ValueError(f"{path}: neither an .npz nor a .safetensors file; was it cut short or is it something else?")
    if path.suffix in (".npz", ".safetensors") and path.suffix != f".{found}":
        raise ValueError(f"{path}: a {path.suffix} by its name, but .{found} by its content; rename it.")
    return found


def read_file(path: str | Path) -> StoredFile:
    """Reads a file of either format, whatever its arrays are; see `StoredFile`."""
    path = Path(path)
    if format_of_content(path) == "npz":
        return StoredFile(path, "npz", _read_npz(path))
    return _read_safetensors(path)


def load_npz(path: str | Path) -> Arrays:
    """The arrays of an `.npz` file by name; nothing is unpickled.

    Raises at a file that is damaged, and at the first array that is damaged or holds Python objects.
    """
    path = Path(path)
    if format_of_content(path) != "npz":
        raise ValueError(f"{path}: must be an .npz file, got a .safetensors one.")
    return _read_npz(path)


def _read_npz(path: Path) -> Arrays:
    arrays: Arrays = {}
    name = None
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = archive[name]
    # A damaged archive fails in the zip, the inflater or the parser of a header, each with exceptions of its own.
    except Exception as error:
        where = "the archive" if name is None else f"array {name!r}"
        raise ValueError(f"{path}: {where} cannot be read ({error}); fetch the file again.") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands over the bytes of any other member of the archive
            raise ValueError(f"{path}: {name!r} is not an array; is it an archive of something else?")
    return arrays


def _read_safetensors(path: Path) -> StoredFile:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            # Copies, so that nothing refers to the file once it is closed.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return StoredFile(path, "safetensors", tensors, file.metadata() or {})
    except Exception as error:
        raise ValueError(f"{path}: cannot be read ({error}); fetch the file again.") from error


def save_npz(path: str | Path, module_arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name, compressed; `to_haiku` makes them from a module. The same arrays make the same bytes."""
    with (
        replacing(Path(path)) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, array in module_arrays.items():
            if np.asarray(array).dtype.hasobject:
                raise ValueError(f"array {name!r} must hold numbers, got Python objects, which would have to be pickled.")
            member = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)


def save_safetensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes tensors by name, and texts beside them."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(plain, dict(metadata))
    with replacing(Path(path)) as file:
        file.write(content)
