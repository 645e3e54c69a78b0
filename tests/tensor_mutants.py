"""Mutants of what `torch.save` writes, such as checkpoints; see mutations.py."""

from __future__ import annotations

import io
import pickletools
import random
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from mutations import Mutant, Subject
from torch import Tensor
from torch.utils import _pytree as pytree

from disco_torch.files import load_tensors

warnings.simplefilter("ignore")  # of zipfile about duplicates


def same_tree(a: Any, b: Any) -> bool:
    """Whether two trees hold the same tensors and values, of the same types."""
    (x, structure), (y, other) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    return structure == other and all(map(same_leaf, x, y))


def same_leaf(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.dtype == y.dtype and torch.equal(x, y)
    return type(x) is type(y) and x == y


class TensorFile(Subject):
    """An archive of a pickle and one member for each storage."""

    suffix = ".pt"

    def __init__(self, content: Any = None) -> None:
        generator = torch.Generator().manual_seed(0)
        leaves = [torch.randn(size, generator=generator) for size in (3, 50, 7, 400)]
        leaves += [torch.zeros(2, 3).t(), torch.tensor(5), torch.ones(4, dtype=torch.bool), generator.get_state()]
        session = [*leaves, 3, None, "text", 1.5]
        self.content = content or {"format": 1, "session": session, "counters": {"rollouts": 7}, "more": (1, 2)}
        buffer = io.BytesIO()
        torch.save(self.content, buffer)
        self.bytes = buffer.getvalue()
        with zipfile.ZipFile(buffer) as archive:
            self.members = [(name, archive.read(name)) for name in archive.namelist()]

    def original(self) -> Mutant:
        return Mutant("original", self.bytes, self.content)

    def zipped(self, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, content in members:
                archive.writestr(name, content)
        return buffer.getvalue()

    def structural(self, rng: random.Random) -> Mutant:
        members = list(self.members)
        index = rng.randrange(len(members))
        name, content = members[index]
        choice = rng.randrange(6)
        if choice == 0:
            members.insert(rng.randrange(len(members)), rng.choice([members[index], (name.upper(), content), (name, b"")]))
            return Mutant("archive: duplicate", self.zipped(members), self.content)
        if choice == 1:
            return Mutant("archive: compressed", self.zipped(members, rng.choice([8, 12, 14])), self.content)
        if choice == 2:
            del members[index]
            return Mutant("archive: missing member", self.zipped(members), self.content)
        if choice == 3:
            members[index] = (name, rng.choice([content[:-1], content + b"\0", b"", content * 2]))
            return Mutant("archive: length of a member", self.zipped(members), None)
        where = next(i for i, (name, _) in enumerate(members) if name.endswith("data.pkl"))
        kind, changed = odd_pickle(members[where][1], rng)
        members[where] = (members[where][0], changed)
        return Mutant(kind, self.zipped(members), None)

    def load(self, path: Path) -> Any:
        return load_tensors(path)

    def holds(self, loaded: Any, expected: Any) -> bool:
        return expected is None or same_tree(loaded, expected)  # None: the file says what nobody knows


HOSTILE = [
    b"cbuiltins\nbytearray\n\x8a\x05\x00\x00\x00\x00\x02\x85R0",  # bytearray(2**33)
    b"cos\nsystem\n0",
    b"ctorch\nempty\n0",
    b"r\xff\xff\xff\xff",  # puts into place 2**32 - 1 of the memo
    b"\x96\x00\x00\x00\x00\x02\x00\x00\x00",  # the head of a bytearray of 2**33 bytes
    b"N0" * 1000,
    b"((((((((",
]


def odd_pickle(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A pickle with one operation repeated, left out, with another number, or with something hostile before it."""
    operations = [(opcode.name, position) for opcode, _, position in pickletools.genops(content)]
    index = rng.randrange(1, len(operations) - 1)
    start, end = operations[index][1], operations[index + 1][1]
    choice = rng.randrange(4)
    if choice == 0:
        return "pickle: hostile", content[:start] + rng.choice(HOSTILE) + content[start:]
    if choice == 1:
        return "pickle: left out", content[:start] + content[end:]
    if choice == 2:
        return "pickle: repeated", content[:end] + content[start:]
    numbers = [position for name, position in operations if name == "BININT1"]
    position = rng.choice(numbers)
    number = rng.choice(
        [b"K\x00", b"K\xff", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 7 + b"\x7f"]
    )
    return "pickle: number", content[:position] + number + content[position + 2 :]


SUBJECTS = {"tensors": TensorFile}
