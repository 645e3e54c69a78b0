"""Files as such: what is read is what was written, half a file is never seen, nothing is unpickled."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from limits import run_limited

from disco_torch.files import replacing
from disco_torch.weights import load_npz, read_file, save_npz
from disco_torch.weights.files import FORMATS, MAX_BYTES, format_of_name, save_safetensors, sha256_of


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def some_arrays() -> dict[str, np.ndarray]:
    return {"lstm/~/linear/w": np.arange(6, dtype=np.float32).reshape(2, 3), "file": np.array(-0.0), "b": np.zeros((0, 2))}


def test_npz_comes_back_bit_for_bit(tmp_path: Path) -> None:
    save_npz(tmp_path / "a.npz", some_arrays())
    for read in (load_npz(tmp_path / "a.npz"), dict(np.load(tmp_path / "a.npz"))):
        assert list(read) == list(some_arrays())
        for name, array in some_arrays().items():
            assert read[name].dtype == array.dtype and read[name].shape == array.shape
            assert read[name].tobytes() == array.tobytes()


def test_the_same_arrays_make_the_same_bytes(tmp_path: Path) -> None:
    save_npz(tmp_path / "a.npz", some_arrays())
    save_npz(tmp_path / "b.npz", some_arrays())
    assert sha256_of(tmp_path / "a.npz") == sha256_of(tmp_path / "b.npz")
    assert sha256_of(tmp_path / "a.npz") == hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, failure: type[BaseException]) -> None:
    target = tmp_path / "rule.npz"
    target.write_bytes(b"before")

    def write() -> None:
        with replacing(target) as file:
            file.write(b"half")
            raise failure

    with pytest.raises(failure):
        write()
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    save_npz(tmp_path / "new" / "folder" / "a.npz", some_arrays())
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["a.npz"]


def test_objects_are_neither_written_nor_read(tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    arrays = {"good": np.zeros(2), "bad": np.array([Bomb(fuse)], dtype=object)}
    with pytest.raises(ValueError, match="'bad' must hold numbers"):
        save_npz(tmp_path / "a.npz", arrays)
    assert list(tmp_path.iterdir()) == []
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(ValueError, match=r"b\.npz: array 'bad' cannot be read"):
        load_npz(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(pickle.dumps(Bomb(fuse)))
    with pytest.raises(ValueError, match=r"c\.npz: neither an \.npz nor a \.safetensors file"):
        load_npz(tmp_path / "c.npz")
    assert not fuse.exists()


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(FileNotFoundError, match=r"a\.npz', which is not a file"):
        read_file(path)
    with pytest.raises(FileNotFoundError, match="which is not a file"):
        read_file(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.npz: neither"):
        read_file(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(ValueError, match=r"a\.npz: the archive cannot be read \('readme.txt' is not an array"):
        read_file(path)


def test_a_name_that_lies_is_refused_and_one_that_says_nothing_is_not(tmp_path: Path) -> None:
    save_npz(tmp_path / "a.npz", some_arrays())
    save_safetensors(tmp_path / "b.safetensors", {"x": torch.ones(2)}, {"k": "v"})
    (tmp_path / "c.safetensors").write_bytes((tmp_path / "a.npz").read_bytes())
    (tmp_path / "d").write_bytes((tmp_path / "a.npz").read_bytes())
    (tmp_path / "e").write_bytes((tmp_path / "b.safetensors").read_bytes())
    with pytest.raises(
        ValueError, match=r"c\.safetensors: a \.safetensors by its name, but \.npz by its content; rename it"
    ):
        read_file(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors: must be an \.npz file"):
        load_npz(tmp_path / "b.safetensors")
    assert list(read_file(tmp_path / "d").arrays) == list(some_arrays())
    assert dict(read_file(tmp_path / "e").metadata) == {"k": "v"}
    with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors, got 'rule\.pt'"):
        format_of_name(Path("rule.pt"))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path, suffix: str) -> None:
    whole, cut = tmp_path / f"whole{suffix}", tmp_path / f"cut{suffix}"
    arrays = {f"layer_{i}": np.random.default_rng(i).normal(size=(5, 7)) for i in range(3)}
    if suffix == ".npz":
        save_npz(whole, arrays)
    else:
        save_safetensors(whole, {name: torch.from_numpy(array) for name, array in arrays.items()}, {"a": "b"})
    content = whole.read_bytes()
    for length in range(0, len(content), 7):
        cut.write_bytes(content[:length])
        with pytest.raises(ValueError, match=rf"cut\{suffix}: "):
            read_file(cut)


def test_a_damaged_array_is_named(tmp_path: Path) -> None:
    arrays = {f"layer_{i}": np.random.default_rng(i).normal(size=64) for i in range(3)}
    save_npz(tmp_path / "a.npz", arrays)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF  # inside the second array
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: array 'layer_1' cannot be read"):
        read_file(tmp_path / "a.npz")


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def zipped(path: Path, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("twice", ["b", "__metadata__", "dtype"])
def test_a_name_that_is_twice_in_a_header_is_refused(tmp_path: Path, twice: str) -> None:
    """Readers take the one or the other; nobody could say what such a file holds."""
    path = tmp_path / "a.safetensors"
    save_safetensors(path, {"a": torch.zeros(2), "b": torch.ones(2)}, {"format": FORMATS[-1]})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    text = json.dumps(header)
    if twice == "dtype":
        text = text.replace('"dtype"', '"dtype": "F32", "dtype"', 1)
    else:
        text = f'{{"{twice}": {json.dumps(header[twice])}, {text[1:]}'
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + content[8 + length :])
    with pytest.raises(ValueError, match=r"a\.safetensors: cannot be read \(.*(twice|duplicate)"):
        read_file(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for second in ("x.npy", "X.npy"):
        path = zipped(tmp_path / "a.npz", [("x.npy", npy(np.zeros(2))), (second, npy(np.ones(2)))])
        with pytest.raises(ValueError, match=rf"a\.npz: the archive cannot be read \(member '{second}' is there twice\)"):
            load_npz(path)


def test_an_archive_that_unpacks_to_more_than_is_allowed_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.npz", [("x.npy", npy(np.zeros(2**20)))])
    assert path.stat().st_size < 2**14
    assert load_npz(path)["x"].size == 2**20
    with pytest.raises(ValueError, match=r"a\.npz: .*unpack to 8388736 bytes, more than the 8388608 that are allowed"):
        read_file(path, max_bytes=2**23)


def test_gigabytes_in_a_small_archive_are_never_allocated(tmp_path: Path) -> None:
    """Whether the directory of the archive tells of them, or the header of the array alone, or neither."""
    header = npy(np.zeros(0)).replace(b"(0,)", b"(805306368,)")  # 6 GB
    named = zipped(tmp_path / "header.npz", [("x.npy", header)])
    hidden = zipped(tmp_path / "hidden.npz", [("x.npy", npy(np.zeros(2**27, np.uint8)))])  # 128 MB
    content = hidden.read_bytes()
    size = struct.pack("<I", 2**27 + 128)
    assert content.count(size) >= 1
    hidden.write_bytes(content.replace(size, struct.pack("<I", 512)))  # says that it is small
    with zipfile.ZipFile(tmp_path / "directory.npz", "w") as archive:
        archive.writestr("x.npy", header)
        archive.getinfo("x.npy").file_size = 6 * 2**30
    code = """
for path in sys.argv[1:]:
    try:
        disco_torch.weights.read_file(path)
    except ValueError as error:
        print(error)
"""
    paths = (named, hidden, tmp_path / "directory.npz")
    lines = run_limited(code, *paths, more_bytes=2**26).splitlines()
    assert "its header says float64 [805306368], but 8 bytes follow" in lines[0]
    assert "hidden.npz: array 'x' cannot be read" in lines[1]
    assert f"unpack to 6442450944 bytes, more than the {MAX_BYTES} that are allowed" in lines[2] and len(lines) == 3


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"(3,)", b"(2,)", r"its header says float64 \[2\], but 24 bytes follow"),
        (b"(3,)", b"(4,)", r"its header says float64 \[4\], but 24 bytes follow"),
        (b"(3,)", b"(-3, -1)", r"its header says float64 \[-3, -1\], but 24 bytes follow"),
        (b"'<f8'", b"'<f4'", r"its header says float32 \[3\], but 24 bytes follow"),
        (b"'<f8'", b"'|O'", "it holds Python objects, which would have to be unpickled"),
        (b"\x93NUMPY\x01", b"\x93NUMPY\x03", r"its .npy format must be one of \[\(1, 0\), \(2, 0\)\], got \(3, 0\)"),
    ],
)
def test_an_array_that_is_not_what_its_header_says_is_refused(tmp_path: Path, old: bytes, new: bytes, problem: str) -> None:
    content = npy(np.zeros(3))
    end = content.index(b"\n")
    header = content[:end].replace(old, new)
    header = header[:end] if len(header) > end else header.ljust(end)
    path = zipped(tmp_path / "a.npz", [("x.npy", header + content[end:])])
    with pytest.raises(ValueError, match=rf"a\.npz: array 'x' cannot be read \({problem}"):
        load_npz(path)


def header_of(content: bytes) -> tuple[dict, bytes]:
    """The header of a .safetensors file, and its data."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header: dict, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_every_flipped_bit_of_the_content_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"x": torch.arange(5.0), "y": torch.ones((), dtype=torch.bfloat16), "empty": torch.zeros(0, 3)}
    save_safetensors(path, tensors, {"format": "disco-torch 2", "config": '{"size": 3}'})
    content = path.read_bytes()
    assert all(torch.equal(read_file(path).arrays[name], tensor) for name, tensor in tensors.items())
    _, data = header_of(content)
    for i in range(8 * len(data)):
        damaged = bytearray(content)
        damaged[len(content) - len(data) + i // 8] ^= 1 << i % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.safetensors: cannot be read \(its content does not have the checksum"):
            read_file(path)


def test_changed_names_shapes_types_and_metadata_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_safetensors(path, {"x": torch.arange(4.0)}, {"format": "disco-torch 2", "config": '{"size": 3}'})
    for old, new in (('"x"', '"z"'), ("[4]", "[2, 2]"), ('"F32"', '"I32"'), ("size", "cost"), ("3}", "4}")):
        header, data = header_of(path.read_bytes())
        text = json.dumps(header).replace(old, new)
        if old in ("size", "3}"):
            header["__metadata__"]["config"] = header["__metadata__"]["config"].replace(old, new)
            text = json.dumps(header)
        (tmp_path / "b.safetensors").write_bytes(with_header(json.loads(text), data))
        with pytest.raises(ValueError, match=r"b\.safetensors: cannot be read \(its content does not have the checksum"):
            read_file(tmp_path / "b.safetensors")


def test_which_files_need_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_safetensors(path, {"x": torch.ones(2)}, {"format": "disco-torch 2"})
    header, data = header_of(path.read_bytes())
    assert dict(read_file(path).metadata) == {"format": "disco-torch 2"}  # the checksum is the file's own matter
    del header["__metadata__"]["sha256"]
    path.write_bytes(with_header(header, data))
    with pytest.raises(ValueError, match=r"a\.safetensors: cannot be read \(its checksum is missing\)"):
        read_file(path)
    header["__metadata__"]["format"] = "disco-torch 3"
    path.write_bytes(with_header(header, data))
    with pytest.raises(ValueError, match=r"its format must be one of .*, got 'disco-torch 3'; use the version"):
        read_file(path)
    for version in ("disco-torch 1", "pt", None):  # from before, and files of others
        header["__metadata__"] = {} if version is None else {"format": version}
        path.write_bytes(with_header(header, data))
        assert read_file(path).arrays["x"].tolist() == [1.0, 1.0]
