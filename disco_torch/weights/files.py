"""Weight files on disk: `.npz` and `.safetensors`, read without trust and written all or nothing.

Nothing in a file is ever unpickled, and a file that cannot be read is refused by name. Reading allocates no more than is
allowed: the arrays of a `.safetensors` are as long as the file, those of an `.npz` are checked before they are unpacked.
"""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from disco_torch.files import check_members, reason_of, replacing

Arrays = dict[str, np.ndarray]
FileFormat = Literal["npz", "safetensors"]
MAX_BYTES = 512 * 2**20
"""That the arrays of an `.npz` may have together, unless the caller knows what it expects."""

FORMATS = ("disco-torch 1", "disco-torch 2")
"""What the metadata of our own files says under "format". From 2 on it must hold a checksum under "sha256"."""


@dataclass(frozen=True)
class StoredFile:
    """All that a file holds.

    Attributes:
      path: where it is.
      format: what it is, by its content.
      arrays: numpy's in an `.npz`, torch's in a `.safetensors`.
      metadata: of a `.safetensors`, without its checksum; an `.npz` has none.
    """

    path: Path
    format: FileFormat
    arrays: Mapping[str, np.ndarray | Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Puts the file's name before the message of a `ValueError`, which may quote the file: it is cut if it is long."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {reason_of(error, 1000)}") from error


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


def read_file(path: str | Path, max_bytes: int = MAX_BYTES) -> StoredFile:
    """Reads a file of either format, whatever its arrays are; see `StoredFile`. An `.npz` unpacks to `max_bytes` at most."""
    path = Path(path)
    if format_of_content(path) == "npz":
        return StoredFile(path, "npz", _read_npz(path, max_bytes))
    return _read_safetensors(path)


def load_npz(path: str | Path, max_bytes: int = MAX_BYTES) -> Arrays:
    """The arrays of an `.npz` file by name; nothing is unpickled.

    Raises at a file that is damaged or unpacks to more than `max_bytes`, and at the first array that is damaged, comes
    twice, or holds Python objects.
    """
    path = Path(path)
    if format_of_content(path) != "npz":
        raise ValueError(f"{path}: must be an .npz file, got a .safetensors one.")
    return _read_npz(path, max_bytes)


def _read_npz(path: Path, max_bytes: int) -> Arrays:
    arrays: Arrays = {}
    name = None
    try:
        with zipfile.ZipFile(path) as archive:
            check_members(archive, max_bytes)
            if others := [x.filename for x in archive.infolist() if not x.filename.endswith(".npy")]:
                raise ValueError(f"{others[0]!r} is not an array; is it an archive of something else?")
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                with archive.open(member) as stream:
                    _check_npy_header(stream, member.file_size)
                with archive.open(member) as stream:
                    arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
    # A damaged archive fails in the zip, the inflater or the parser of a header, each with its own exceptions.
    except Exception as error:
        reason = f"cannot be read ({reason_of(error)})"
        if name is None:
            raise ValueError(f"{path}: the archive {reason}; is it damaged, or another network's file?") from error
        raise ValueError(f"{path}: array {name!r} {reason}; fetch the file again.") from error
    return arrays


def _check_npy_header(stream: IO[bytes], file_size: int) -> None:
    """Raises unless the array that a header describes takes exactly the rest of the member; numpy trusts the header."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its .npy format must be one of {list(readers)}, got {version}")
    shape, _, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which would have to be unpickled")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != file_size - stream.tell():
        raise ValueError(f"its header says {dtype} {list(shape)}, but {file_size - stream.tell()} bytes follow")


def _read_safetensors(path: Path) -> StoredFile:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            # Copies, so that nothing refers to the file once it is closed.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
            metadata = dict(file.metadata() or {})
        with path.open("rb") as stream:
            header = stream.read(int.from_bytes(stream.read(8), "little"))  # as long as the library has found it to be
        json.loads(header, object_pairs_hook=_refuse_duplicates)
        checksum = metadata.pop("sha256", None)
        _check_checksum(checksum, tensors, metadata)
    except Exception as error:
        raise ValueError(f"{path}: cannot be read ({reason_of(error)}); fetch the file again.") from error
    return StoredFile(path, "safetensors", tensors, metadata)


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    """Raises where a name comes twice in an object of JSON, of which readers take the one or the other."""
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise ValueError(f"{name!r} is there twice")
        names.add(name)


def _check_checksum(checksum: str | None, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Raises where the content of one of our own files is not what was written. Files of others have no checksum."""
    version = metadata.get("format", "")
    if version.startswith("disco-torch") and version not in FORMATS:
        raise ValueError(f"its format must be one of {list(FORMATS)}, got {version!r}; use the version that wrote it")
    if checksum is None and version == FORMATS[-1]:
        raise ValueError("its checksum is missing")
    if checksum is not None and checksum != content_checksum(tensors, metadata):
        raise ValueError("its content does not have the checksum that it was written with")


def content_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 of the metadata and of the names, dtypes, shapes and bytes of all tensors, in the order of their names."""
    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
    """Writes tensors by name, texts beside them, and a checksum of all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(plain, {**metadata, "sha256": content_checksum(plain, metadata)})
    with replacing(Path(path)) as file:
        file.write(content)
