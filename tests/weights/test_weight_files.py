"""Files as such: what is read is what was written, half a file is never seen, nothing is unpickled."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from disco_torch.files import replacing
from disco_torch.weights import load_npz, read_file, save_npz
from disco_torch.weights.files import format_of_name, save_safetensors, sha256_of


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
