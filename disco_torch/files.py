"""Files written all or nothing, and archives that are looked through before they are read.

Reading an archive allocates what the archive says, not what the file's size suggests: a member of 4 GB fits into a few
kilobytes. So names, sizes and the pickle of tensors are checked first.
"""

from __future__ import annotations

import os
import pickletools
import uuid
import zipfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

MAX_PICKLE_BYTES = 16 * 2**20
"""Of the part of a tensor file that is not tensors; some hundred bytes a tensor."""

STORAGE_ITEM_BYTES = {
    **dict.fromkeys(("BoolStorage", "ByteStorage", "CharStorage", "UntypedStorage"), 1),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("DoubleStorage", "LongStorage"), 8),
}
"""The storages that a tensor file may hold, and the bytes of one number in each."""

PICKLE_FUNCTIONS = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
"""What else a pickle of tensors and plain values refers to."""

PICKLE_OPCODES = {
    *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "REDUCE", "BINPERSID"),
}
"""Those that `torch.save` writes tensors, dictionaries, lists, tuples, texts and numbers with."""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends, or disappears if it fails.

    The folder is made if it is missing: to lose what a long run has found over a missing folder would be worse.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def reason_of(error: Exception, length: int = 200) -> str:
    """The first line of an error's message, cut: libraries quote damaged content at any length, or add their own stack."""
    line = str(error).partition("\n")[0]
    return line if len(line) <= length else f"{line[:length]} ..."


def check_members(archive: zipfile.ZipFile, max_bytes: int) -> None:
    """Raises a `ValueError` where the directory of a zip archive is not what it should be.

    Names must differ (also in more than capitals, which PyTorch's reader ignores), members must be stored or deflated, and
    together unpack to `max_bytes` at most. `zipfile` never reads more of a member than the directory declares.
    """
    names: set[str] = set()
    total = 0
    for member in archive.infolist():
        if member.filename.lower() in names:
            raise ValueError(f"member {member.filename!r} is there twice")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 0x1:
            raise ValueError(f"member {member.filename!r} is compressed or encrypted in a way that is not supported")
        names.add(member.filename.lower())
        total += member.file_size
    if total > max_bytes:
        raise ValueError(f"its members unpack to {total} bytes, more than the {max_bytes} that are allowed here")


def check_archive(path: Path, max_bytes: int | None = None) -> None:
    """Raises a `ValueError` where a file that `torch.save` wrote should not be given to `torch.load`.

    Every member must be stored as it is, so that no more is read than the file is long, and have the right checksum, which
    `torch.load` does not check. The pickle may hold tensors, dictionaries, lists, tuples, texts and numbers, and nothing
    that builds anything else (`weights_only=True` allows `bytearray(2**33)`). Each storage must be as long as its member.

    The shapes of tensors are not checked: a tensor of any size may repeat one number. Compare them before use.

    Args:
      path: the file.
      max_bytes: that the members may have together; defaults to the size of the file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            check_members(archive, path.stat().st_size if max_bytes is None else max_bytes)
            members = {member.filename: member for member in archive.infolist()}
            for member in members.values():
                if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                    raise ValueError(f"member {member.filename!r} is compressed, which `torch.save` never does")
            pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(pickles) != 1 or members[pickles[0]].file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"must hold one data.pkl of at most {MAX_PICKLE_BYTES} bytes, got {len(pickles)}")
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of member {damaged!r} is wrong")
            content = archive.read(pickles[0])
        folder = pickles[0].removesuffix("data.pkl") + "data/"
        sizes = {name.removeprefix(folder): x.file_size for name, x in members.items() if name.startswith(folder)}
        _check_pickle(content, sizes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}.") from error
    # zipfile and pickletools raise many kinds of errors at damaged files.
    except Exception as error:
        raise ValueError(f"{path}: cannot be read ({type(error).__name__}: {reason_of(error)}).") from error


def load_tensors(path: Path, max_bytes: int | None = None) -> Any:
    """What `torch.save` wrote, on the CPU, after `check_archive`; whatever is wrong with the file is a `ValueError`."""
    check_archive(path, max_bytes)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # tensors that do not fit their storages, a pickle that does not add up
        raise ValueError(f"{path}: cannot be read ({type(error).__name__}: {reason_of(error)}).") from error


def _check_pickle(content: bytes, sizes: dict[str, int]) -> None:
    """Raises where a pickle does more than to build tensors and plain values; `sizes` are bytes of the storages by key."""
    memo: dict[Any, Any] = {}
    recent: deque[Any] = deque(maxlen=5)  # the last texts, numbers and references that were pushed
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name not in PICKLE_OPCODES:
            raise ValueError(f"its pickle must hold tensors and plain values, got the operation {name}")
        if name == "GLOBAL":
            module, _, function = str(argument).partition(" ")
            is_storage = module == "torch" and function in STORAGE_ITEM_BYTES
            if not is_storage and argument not in PICKLE_FUNCTIONS:
                raise ValueError(f"its pickle must hold tensors and plain values, got {str(argument).replace(' ', '.')}")
            recent.append(argument)
        elif name in ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"):
            recent.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = recent[-1] if recent else None
        elif name in ("BINGET", "LONG_BINGET"):
            recent.append(memo.get(argument))
        elif name == "BINPERSID":
            _check_storage(list(recent), sizes)


def _check_storage(recent: list[Any], sizes: dict[str, int]) -> None:
    """A reference to a storage is the tuple ("storage", its type, its key, its device, how many numbers)."""
    if len(recent) != 5 or recent[0] != "storage" or type(recent[4]) is not int:
        raise ValueError("its pickle refers to something that is not a storage")
    item_bytes = STORAGE_ITEM_BYTES.get(str(recent[1]).removeprefix("torch "), 0)
    key, count = str(recent[2]), recent[4]
    if sizes.get(key) != count * item_bytes:
        raise ValueError(f"storage {key!r} must be {count * item_bytes} bytes long, got {sizes.get(key, 'none')}")
