"""Mutants of rule files, in both formats; see tests/mutations.py."""

from __future__ import annotations

import contextlib
import io
import json
import random
import struct
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mutations import Mutant, Subject, change_plain
from torch import Tensor

from disco_torch.rules import DiscoConfig, DiscoUpdateRule, MetaNetConfig, MetaRNNConfig
from disco_torch.weights import load_rule_file, read_file, save_rule
from disco_torch.weights.configuration import config_to_plain
from disco_torch.weights.files import save_safetensors
from disco_torch.weights.haiku import rule_layers, to_haiku

warnings.simplefilter("ignore")  # of zipfile about duplicates, of numpy about casts: the mutants are meant to be odd

LATER = {"improvement": 0.0, "advantage_push": 0.0}
"""Fields that files from before do not have, with the value that stands for what was done then."""


def tiny_rule() -> DiscoUpdateRule:
    torch.manual_seed(0)
    rnn = MetaRNNConfig(policy_channels=(3, 2), embedding_size=(4,), pred_embedding_size=(3, 1), hidden_size=5)
    net = MetaNetConfig(8, 6, (3, 1), (4,), (3, 2), meta_rnn=rnn)
    return DiscoUpdateRule(DiscoConfig(net=net, num_bins=11, max_abs_value=10.0))


def same_numbers(x: Any, y: Any) -> bool:
    """Whether two arrays have the same shape and the same numbers, whatever type they are stored in."""
    a, b = torch.as_tensor(x).double(), torch.as_tensor(y).double()
    return a.shape == b.shape and torch.equal(a, b)


def odd_array(x: Tensor, rng: random.Random) -> tuple[str, Tensor]:
    """One array changed in its values, its shape or its type."""
    kind = rng.choice(["value", "nan", "shape", "dtype"])
    x = x.detach().clone()
    if kind in ("value", "nan"):
        value = rng.choice([0.0, -0.0, 1.0, 1e38] if kind == "value" else [float("nan"), float("inf"), float("-inf")])
        x.view(-1)[rng.randrange(x.numel())] = value
    elif kind == "shape":
        shapes = [x[None], x.flatten(), x.t() if x.ndim == 2 else x[:-1], x.new_zeros(0), x.new_zeros(()), torch.cat([x, x])]
        x = rng.choice(shapes).contiguous()
    else:
        dtypes = [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool]
        x = x.to(rng.choice(dtypes))
    return f"array: {kind}", x


def odd_arrays(arrays: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Names, order and number of arrays changed, or one of them."""
    arrays, names = dict(arrays), list(arrays)
    name, other = rng.sample(names, 2)
    choice = rng.randrange(9)
    if choice == 0:
        for gone in rng.sample(names, rng.choice([1, 2, len(names)])):
            del arrays[gone]
        return "arrays: missing", arrays
    if choice == 1:
        arrays[rng.choice(["extra", "", name + "x", name.upper(), "ü"])] = arrays[name].clone()
        return "arrays: one more", arrays
    if choice == 2:
        arrays[rng.choice([name + "x", name.upper(), name[:-1]])] = arrays.pop(name)
        return "arrays: renamed", arrays
    if choice == 3:
        arrays[name], arrays[other] = arrays[other], arrays[name]
        return "arrays: exchanged", arrays
    if choice == 4:
        rng.shuffle(names)
        return "arrays: order", {name: arrays[name] for name in names}
    kind, arrays[name] = odd_array(arrays[name], rng)
    return kind, arrays


class RuleFile(Subject):
    """`.safetensors`: arrays, metadata with the configuration, and a checksum of both."""

    suffix = ".safetensors"

    def __init__(self) -> None:
        self.rule = tiny_rule()
        self.folder = Path(tempfile.mkdtemp())
        save_rule(self.folder / "original.safetensors", self.rule, provenance={"seed": 1})
        stored = read_file(self.folder / "original.safetensors")
        self.tensors: dict[str, Any] = dict(stored.arrays)
        self.metadata = dict(stored.metadata)

    def file(self, kind: str, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Mutant:
        path = self.folder / "made.safetensors"
        save_safetensors(path, tensors, metadata)  # makes the checksum right
        return Mutant(kind, path.read_bytes(), (tensors, metadata.get("config")))

    def original(self) -> Mutant:
        return self.file("original", self.tensors, self.metadata)

    def structural(self, rng: random.Random) -> Mutant:
        choice = rng.random()
        if choice < 0.35:
            kind, tensors = odd_arrays(self.tensors, rng)
            return self.file(kind, tensors, self.metadata)
        if choice < 0.75:
            config = json.dumps(change_plain(json.loads(self.metadata["config"]), rng))
            return self.file("metadata: configuration", self.tensors, self.metadata | {"config": config})
        if choice < 0.85:
            odd = ["", "{", "null", "[]", "0", "[" * 5000, "1e999", "agent", "rule", "disco-torch 2", "disco-torch 9"]
            key = rng.choice([*self.metadata, "more"])
            return self.file("metadata: other", self.tensors, self.metadata | {key: rng.choice(odd)})
        return self.layout(rng)

    def layout(self, rng: random.Random) -> Mutant:
        """The header of the original changed: offsets, shapes, types, order, lengths."""
        original = self.original()
        (length,) = struct.unpack("<Q", original.content[:8])
        header, data = json.loads(original.content[8 : 8 + length]), original.content[8 + length :]
        name = rng.choice([name for name in header if name != "__metadata__"])
        choice = rng.randrange(6)
        if choice == 0:
            header[name]["data_offsets"] = rng.choice([[0, 0], [0, 2**62], [8, 4], [-4, 0], [0, len(data)], [2**64, 2**64]])
        elif choice == 1:
            header[name]["shape"] = rng.choice([[2**40], [2**40, 2**40], [-1], [0], [1.5], ["x"], header[name]["shape"] * 9])
        elif choice == 2:
            header[name]["dtype"] = rng.choice(["F64", "BF16", "I8", "F8_E4M3", "F4", "C64", "X", "", 3])
        elif choice == 3:
            items = list(header.items())
            rng.shuffle(items)
            header = dict(items)
        elif choice == 4:
            data += b"\0" * rng.choice([1, 8, 4096])
        text = json.dumps(header).encode()
        if choice == 5:
            text = text.replace(b'"__metadata__"', b'"__metadata__": {"config": "1"}, "__metadata__"', 1)
        length = rng.choice([len(text), len(text), len(text), len(text) + 1, 2**40, 2**63])
        return Mutant("layout", struct.pack("<Q", length) + text + data, original.expected)

    def load(self, path: Path) -> DiscoUpdateRule:
        return load_rule_file(path)

    def holds(self, loaded: DiscoUpdateRule, expected: Any) -> bool:
        tensors, config = expected
        params = dict(loaded.named_parameters())
        return (
            sorted(params) == sorted(tensors)
            and all(same_numbers(params[name].detach(), tensor) for name, tensor in tensors.items())
            and config_to_plain(loaded.config) == LATER | json.loads(config)
        )


class NpzRuleFile(Subject):
    """`.npz` under the reference's names; the zip archive has the checksums."""

    suffix = ".npz"

    def __init__(self) -> None:
        self.rule = tiny_rule()
        arrays = to_haiku(self.rule, rule_layers(self.rule))
        self.arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}

    def original(self) -> Mutant:
        return Mutant("original", self.zipped([(f"{name}.npy", npy(x)) for name, x in self.arrays.items()]), self.arrays)

    def zipped(self, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, content in members:
                archive.writestr(name, content)
        return buffer.getvalue()

    def structural(self, rng: random.Random) -> Mutant:
        if rng.random() < 0.5:
            kind, arrays = odd_arrays(self.arrays, rng)
            if any(x.dtype == torch.bfloat16 for x in arrays.values()):
                arrays = {name: x.float() if x.dtype == torch.bfloat16 else x for name, x in arrays.items()}
            members = [(f"{name}.npy", npy(x, rng)) for name, x in arrays.items()]
            return Mutant(kind, self.zipped(members, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])), arrays)
        members = [(f"{name}.npy", npy(x)) for name, x in self.arrays.items()]
        index = rng.randrange(len(members))
        name, content = members[index]
        choice = rng.randrange(5)
        if choice == 0:
            members.insert(rng.randrange(len(members)), rng.choice([members[index], (name.upper(), content), (name, b"")]))
            return Mutant("archive: duplicate", self.zipped(members), self.arrays)
        if choice == 1:
            members.append((rng.choice(["readme.txt", "x", "../x.npy", "/x.npy", ".npy"]), content))
            return Mutant("archive: other member", self.zipped(members), self.arrays)
        if choice == 2:
            return Mutant("archive: method", self.zipped(members, zipfile.ZIP_LZMA), self.arrays)
        if choice == 3:
            return Mutant("archive: declared sizes", self.with_sizes(members, index, rng), self.arrays)
        members[index] = (name, odd_header(content, rng))
        arrays = dict(self.arrays)
        with contextlib.suppress(Exception):  # by columns, or in the other byte order, it is another array
            changed = np.lib.format.read_array(io.BytesIO(members[index][1]))
            arrays[name.removesuffix(".npy")] = torch.from_numpy(changed.astype(np.float64))
        return Mutant("archive: .npy header", self.zipped(members), arrays)

    def with_sizes(self, members: list[tuple[str, bytes]], index: int, rng: random.Random) -> bytes:
        """The directory says another size, or another checksum, than a member has."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                archive.writestr(name, content)
            member = archive.getinfo(members[index][0])
            wrong = rng.choice([0, 1, member.file_size - 1, member.file_size + 1, 2**20, 2**31, 6 * 2**30, 2**60])
            setattr(member, rng.choice(["file_size", "compress_size", "header_offset"]), wrong)
        return buffer.getvalue()

    def load(self, path: Path) -> DiscoUpdateRule:
        return load_rule_file(path, config=self.rule.config)

    def holds(self, loaded: DiscoUpdateRule, expected: Any) -> bool:
        arrays = to_haiku(loaded, rule_layers(loaded))
        return sorted(arrays) == sorted(expected) and all(same_numbers(arrays[name], x) for name, x in expected.items())


def npy(x: Tensor, rng: random.Random | None = None) -> bytes:
    """An array in numpy's format; with `rng` perhaps by columns or in the other byte order, which mean the same."""
    array = x.numpy()
    if rng is not None and rng.random() < 0.2:
        array = np.array(array, order="F")
    if rng is not None and rng.random() < 0.2:
        array = array.astype(array.dtype.newbyteorder(">"))
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def odd_header(content: bytes, rng: random.Random) -> bytes:
    """An array in numpy's format whose header says another shape, type or version."""
    end = content.index(b"\n")
    text = content[10:end].decode()
    shape = text[text.index("(") : text.index(")") + 1]
    shapes = ["()", "(0,)", "(1,)", "(-1,)", "(1099511627776,)", "(2, 2)", "(1.5,)", "'x'", "(10**9,)", "(None,)"]
    types = ["'<f8'", "'>f4'", "'|O'", "'<i4'", "'V0'", "'U99'", "'x'", "[('a', '<f4')]", "3", "'M8[s]'"]
    old, new = rng.choice([(shape, rng.choice(shapes)), ("'<f4'", rng.choice(types)), ("False", "True"), ("descr", "desc")])
    text = text.replace(old, new).rstrip().ljust(end - 10)
    version = rng.choice([b"\x01\x00", b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"])
    return content[:6] + version + struct.pack("<H", len(text) + 1) + text.encode() + content[end:]


SUBJECTS = {"rule": RuleFile, "npz": NpzRuleFile}
