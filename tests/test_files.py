"""Archives of tensors are looked through before they are read: sizes, duplicates, checksums and what the pickle builds."""

from __future__ import annotations

import collections
import io
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensor_mutants
import torch
from limits import run_limited
from mutations import report, try_all

from disco_torch.files import check_archive, load_tensors

CONTENT: dict[str, Any] = {
    "format": 1,
    "leaves": [
        *(torch.arange(4, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)),
        *(torch.ones(4, dtype=dtype) for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)),
        *(torch.tensor(7), torch.zeros(0), torch.zeros(0, 5), torch.ones(2, 3).t(), torch.arange(6.0)[2:4]),
        torch.Generator().get_state(),
    ],
    "plain": [
        None,
        True,
        False,
        0,
        255,
        65535,
        -1,
        2**31,
        2**40,
        10**30,
        -(10**400),
        1.5,
        "text",
        "ü" * 300,
        (),
        (1, 2, 3, 4),
    ],
    "nested": {"a": [(1,), (1, 2), (1, 2, 3)], "b": {}, "c": collections.OrderedDict(d=[1.0])},
}


def saved(path: Path, content: object = CONTENT) -> Path:
    torch.save(content, path)
    return path


def rewritten(path: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes]], **kwargs: Any) -> Path:
    """The same archive with its members changed, and checksums and sizes right again."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", **kwargs) as archive:
        for name, content in change(members).items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=kwargs.get("compression"))
    return path


def with_pickle(content: bytes) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    return lambda members: {name: content if name.endswith("data.pkl") else x for name, x in members.items()}


def test_what_checkpoints_hold_passes_and_loads(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt")
    check_archive(path)
    check_archive(path, max_bytes=path.stat().st_size)
    loaded = load_tensors(path)
    assert loaded["plain"] == CONTENT["plain"] and loaded["nested"] == CONTENT["nested"]
    assert all(torch.equal(x, y) for x, y in zip(loaded["leaves"], CONTENT["leaves"], strict=True))


def test_many_tensors_and_shared_storages_pass(tmp_path: Path) -> None:
    whole = torch.arange(1000.0)
    check_archive(saved(tmp_path / "a.pt", [whole[i:] for i in range(300)] + [torch.zeros(i % 5) for i in range(600)]))


def test_more_than_is_allowed_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", [torch.zeros(1000)])
    with pytest.raises(ValueError, match=r"a\.pt: its members unpack to \d+ bytes, more than the 4000 that are allowed"):
        check_archive(path, max_bytes=4000)


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    """PyTorch reads them: a member of gigabytes would fit into a small file."""
    path = rewritten(saved(tmp_path / "a.pt"), lambda members: members, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"a\.pt: member 'a/data.pkl' is compressed, which `torch.save` never does"):
        check_archive(path, max_bytes=2**30)
    path = rewritten(saved(tmp_path / "b.pt"), lambda members: members, compression=zipfile.ZIP_BZIP2)
    with pytest.raises(ValueError, match=r"b\.pt: member '.*' is compressed or encrypted in a way that is not supported"):
        check_archive(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["a/data/0", "a/DATA/0"])
def test_duplicate_members_are_refused(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path / "a.pt")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"\0" * 8)
    with pytest.raises(ValueError, match=rf"a\.pt: member '{name}' is there twice"):
        check_archive(path)


class Call:
    """Pickled, a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (Call(bytearray, 2**33), r"bytearray"),
        (Call(print, "hello"), r"print"),
        (Call(torch.empty, 2**40), r"\w+\.getattr"),
        (np.zeros(2), r"numpy\.\S+"),
        ({1, 2}, "set|EMPTY_SET"),
        (torch.Size([1]), r"torch\.Size"),
        (Path("x"), r"pathlib\.\S+"),
        (b"bytes", r"_codecs\.encode|SHORT_BINBYTES"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles_that_build_anything_else_are_refused(tmp_path: Path, content: Any, found: str, protocol: int) -> None:
    path = rewritten(saved(tmp_path / "a.pt"), with_pickle(pickle.dumps({"x": content}, protocol=protocol)))
    found = found if protocol == 2 else "the operation"
    with pytest.raises(ValueError, match=rf"a\.pt: its pickle must hold tensors and plain values, got .*({found})"):
        check_archive(path)


def test_a_huge_bytearray_is_never_made(tmp_path: Path) -> None:
    """`torch.load(weights_only=True)` makes it: this is what the check is for."""
    path = rewritten(saved(tmp_path / "a.pt"), with_pickle(pickle.dumps(Call(bytearray, 2**33), protocol=2)))
    code = """
try:
    torch.load(sys.argv[1], weights_only=True)
except MemoryError:
    print("torch.load allocates")
try:
    disco_torch.files.check_archive(Path(sys.argv[1]))
except ValueError as error:
    print("refused", error)
"""
    assert re.match(r"torch.load allocates\nrefused .*bytearray", run_limited(code, path))


def test_a_storage_that_is_not_as_long_as_its_member_is_refused(tmp_path: Path) -> None:
    path = rewritten(saved(tmp_path / "a.pt", torch.zeros(5)), lambda members: members | {"a/data/0": b"\0" * 19})
    with pytest.raises(ValueError, match=r"a\.pt: storage '0' must be 20 bytes long, got 19"):
        check_archive(path)

    def without(members: dict[str, bytes]) -> dict[str, bytes]:
        return {name: content for name, content in members.items() if name != "b/data/0"}

    path = rewritten(saved(tmp_path / "b.pt", torch.zeros(5)), without)
    with pytest.raises(ValueError, match=r"b\.pt: storage '0' must be 20 bytes long, got none"):
        check_archive(path)


def test_references_to_anything_but_storages_are_refused(tmp_path: Path) -> None:
    class Referring(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("other", "x") if obj == "here" else None

    buffer = io.BytesIO()
    Referring(buffer, protocol=2).dump(["here"])
    path = rewritten(saved(tmp_path / "a.pt"), with_pickle(buffer.getvalue()))
    with pytest.raises(ValueError, match=r"a\.pt: its pickle refers to something that is not a storage"):
        check_archive(path)


def test_archives_without_a_pickle_or_with_damage_are_refused(tmp_path: Path) -> None:
    path = rewritten(saved(tmp_path / "a.pt"), lambda members: {"a/version": b"3"})
    with pytest.raises(ValueError, match=r"a\.pt: must hold one data\.pkl of at most 16777216 bytes, got 0"):
        check_archive(path)
    path = rewritten(saved(tmp_path / "b.pt"), with_pickle(b"\x80\x02cos\nsystem\n" + b"("))
    with pytest.raises(ValueError, match=r"b\.pt: its pickle must hold .*, got os\.system"):
        check_archive(path)
    path = saved(tmp_path / "c.pt", torch.arange(1000.0))
    content = bytearray(path.read_bytes())
    content[content.index(np.float32(500).tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.pt: the checksum of member 'c/data/0' is wrong"):
        check_archive(path)
    (tmp_path / "d.pt").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"d\.pt: cannot be read \(BadZipFile: "):
        check_archive(tmp_path / "d.pt")
    for length in range(0, len(content), 97):
        (tmp_path / "e.pt").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"e\.pt: "):
            check_archive(tmp_path / "e.pt")


def test_a_few_mutated_tensor_files(tmp_path: Path) -> None:
    refused, accepted = try_all(tensor_mutants, "tensors", 300, 0, tmp_path)
    assert sum(refused.values()) > 150 and sum(accepted.values()) > 10


@pytest.mark.slow
def test_mutated_tensor_files(tmp_path: Path) -> None:
    report("tensors", *try_all(tensor_mutants, "tensors", 2500, 1, tmp_path))
