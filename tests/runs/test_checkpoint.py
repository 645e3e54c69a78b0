"""Checkpoints: whole or not there, the newest that loads, and nothing but data in them."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from disco_torch.runs.checkpoint import (
    best_path,
    checkpoint_path,
    first_not_finite,
    list_checkpoints,
    load_checkpoint,
    pack,
    save_best,
    save_checkpoint,
    unpack,
)
from disco_torch.types import EmaState


def state(value: float) -> dict[str, Any]:
    scalar = torch.tensor(value)
    return {"average": EmaState(scalar, scalar + 1, scalar + 2), "list": [torch.full((2, 3), value), 7], "none": None}


NAMES = ["average/moment1", "average/moment2", "average/decay_product", "list/0", "list/1", "none"]


def test_leaves_go_by_name_and_back_into_their_structure(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"leaves": pack(state(3.0))}, keep=1)
    leaves = load_checkpoint(tmp_path)["leaves"]
    assert list(leaves) == NAMES
    shuffled = {name: leaves[name] for name in reversed(leaves)}
    again = unpack(shuffled, state(0.0))
    assert isinstance(again["average"], EmaState) and float(again["average"].moment2) == 4.0
    assert torch.equal(again["list"][0], torch.full((2, 3), 3.0)) and again["list"][1] == 7 and again["none"] is None


def test_leaves_carry_no_graph() -> None:
    leaf = torch.ones(2, requires_grad=True) * 2
    assert not pack({"x": leaf})["x"].requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"average/moment2": None}, "`learner/average/moment2` must be [] of float32, got NoneType"),
        ({"list/0": torch.zeros(3, 2)}, "`learner/list/0` must be [2, 3] of float32, got [3, 2] of float32"),
        ({"list/0": torch.zeros(2, 3).double()}, "`learner/list/0` must be [2, 3] of float32, got [2, 3] of float64"),
        ({"list/0": [1.0]}, "`learner/list/0` must be [2, 3] of float32, got list"),
        ({"list/1": 7.0}, "`learner/list/1` must be int, got float"),
        ({"list/2": 7}, "`learner/list/2` is not part of this state"),
    ],
)
def test_the_first_leaf_that_differs_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the checkpoint's {message}; use the settings and the version of")):
        unpack(pack(state(3.0)) | change, state(0.0), "learner")


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_that_is_missing_is_named(name: str) -> None:
    leaves = pack(state(3.0))
    del leaves[name]
    with pytest.raises(ValueError, match=f"the checkpoint's `{name}` is missing; use the settings"):
        unpack(leaves, state(0.0))


def test_leaves_without_names_are_refused() -> None:
    with pytest.raises(ValueError, match="the checkpoint's `learner` must be leaves by name, got list"):
        unpack([torch.ones(1)], [torch.ones(1)], "learner")  # type: ignore[arg-type]


def test_one_number_that_stands_for_many_gets_a_place_for_each() -> None:
    leaf = torch.ones(()).expand(3, 2)
    loaded = unpack({"x": leaf}, {"x": torch.zeros(3, 2)})["x"]
    loaded[0, 0] = 5.0
    assert loaded.flatten().tolist() == [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    kept = torch.arange(6.0).reshape(2, 3).t()
    assert unpack({"x": kept}, {"x": torch.zeros(3, 2)})["x"] is kept  # its layout stays, and with it every rounding


def test_what_is_not_finite_is_named() -> None:
    tree = state(3.0)
    assert first_not_finite(tree) is None
    tree["list"][0][1, 2] = float("inf")
    assert first_not_finite(tree) == "`list/0` must be finite, got inf (1 of 6 values)"
    tree["average"].moment2 = torch.tensor(float("nan"))
    assert first_not_finite(tree) == "`average/moment2` must be finite, got nan (1 of 1 values)"


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for rollouts in range(1, 8):
        path = save_checkpoint(tmp_path, rollouts, {"rollouts": rollouts}, keep=3)
        assert path == checkpoint_path(tmp_path, rollouts) == list_checkpoints(tmp_path)[-1]
        assert len(list_checkpoints(tmp_path)) == min(rollouts, 3)
    assert load_checkpoint(tmp_path)["rollouts"] == 7
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"checkpoint-00000000{i}.pt" for i in (5, 6, 7)]


def test_numbers_of_any_length_sort_right(tmp_path: Path) -> None:
    for rollouts in (9, 10, 123_456_789):
        save_checkpoint(tmp_path, rollouts, {"rollouts": rollouts}, keep=5)
    assert load_checkpoint(tmp_path)["rollouts"] == 123_456_789


def test_what_a_killed_run_left_half_written_is_not_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"rollouts": 1}, keep=2)
    half = tmp_path / ".checkpoint-000000002.pt.0123.partial"
    half.write_bytes(checkpoint_path(tmp_path, 1).read_bytes()[:100])
    (tmp_path / "notes.pt").write_text("not ours")
    assert load_checkpoint(tmp_path)["rollouts"] == 1
    save_checkpoint(tmp_path, 2, {"rollouts": 2}, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-000000002.pt"]
    assert (tmp_path / "notes.pt").exists()


def test_a_failed_write_leaves_the_one_before(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"rollouts": 1}, keep=1)
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(tmp_path, 2, {"rollouts": lambda: 2}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000001.pt"]
    assert load_checkpoint(tmp_path)["rollouts"] == 1


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flip(path: Path) -> None:
    """Changes bytes inside of the first array, which only its checksum shows."""
    content = bytearray(path.read_bytes())
    start = content.index(b"\x55\x55\x55\x55")
    content[start : start + 4] = b"\x00\x00\x00\x00"
    path.write_bytes(bytes(content))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path, damage: Any) -> None:
    for rollouts in (1, 2):
        weights = torch.full((64,), 0x55, dtype=torch.uint8)
        save_checkpoint(tmp_path, rollouts, {"rollouts": rollouts, "weights": weights}, keep=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_checkpoint(tmp_path)["rollouts"] == 2
    damage(checkpoint_path(tmp_path, 2))
    with pytest.warns(UserWarning, match=r"checkpoint-000000002\.pt does not load .*; trying the one before"):
        assert load_checkpoint(tmp_path)["rollouts"] == 1
    damage(checkpoint_path(tmp_path, 1))
    with pytest.warns(UserWarning, match="does not load"), pytest.raises(ValueError, match="no checkpoint that loads in"):
        load_checkpoint(tmp_path)


def test_without_any(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a run can be resumed once it has written one"):
        load_checkpoint(tmp_path / "missing")


@pytest.mark.parametrize(
    ("content", "found"),
    [({"format": 1}, 1), ({"format": 99}, 99), ({}, None), ([2], None), ({"format": torch.zeros(2)}, "Tensor")],
)
def test_another_format_is_named(tmp_path: Path, content: Any, found: Any) -> None:
    torch.save(content, checkpoint_path(tmp_path, 1))
    with pytest.raises(ValueError, match=f"must be of checkpoint format 2, got {found}; resume it with the version of"):
        load_checkpoint(tmp_path)


class Payload:
    """A pickle that would run a command when it is read."""

    def __reduce__(self) -> Any:
        return os.mkdir, (self.target,)

    def __init__(self, target: str) -> None:
        self.target = target


def test_no_code_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    torch.save({"format": 2, "x": Payload(str(target))}, checkpoint_path(tmp_path, 1))
    with pytest.warns(UserWarning, match="does not load"), pytest.raises(ValueError, match="no checkpoint that loads"):
        load_checkpoint(tmp_path)
    assert not target.exists()


class Large:
    """A pickle that would take 8 GiB when it is read; PyTorch's own list of harmless names has it."""

    def __reduce__(self) -> Any:
        return bytearray, (2**33,)


def test_a_checkpoint_goes_through_the_checks_of_tensor_files(tmp_path: Path) -> None:
    """`tests/test_files.py` has them one by one."""
    torch.save({"format": 2, "x": Large()}, checkpoint_path(tmp_path, 1))
    with pytest.warns(UserWarning, match="does not load.*bytearray"), pytest.raises(ValueError, match="no checkpoint that"):
        load_checkpoint(tmp_path)


def test_the_best_is_kept_beside_the_newest(tmp_path: Path) -> None:
    save_best(tmp_path, {"x": 3})
    for count in range(1, 5):
        save_checkpoint(tmp_path, count, {"x": 10 * count}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.pt",
        "checkpoint-000000003.pt",
        "checkpoint-000000004.pt",
    ]
    assert best_path(tmp_path) == tmp_path / "best.pt" and best_path(tmp_path) not in list_checkpoints(tmp_path)
    assert [load_checkpoint(tmp_path, which)["x"] for which in ("best", "newest", 3)] == [3, 40, 30]
    with pytest.raises(ValueError, match=r"`which` must be 'newest', 'best' or the number of .*, \[3, 4\], got 1\."):
        load_checkpoint(tmp_path, 1)
    with pytest.raises(ValueError, match=r"\[3, 4\], got 'oldest'\."):
        load_checkpoint(tmp_path, "oldest")
    save_best(tmp_path, {"x": 5})
    assert load_checkpoint(tmp_path, "best") == {"format": 2, "x": 5}
    best_path(tmp_path).unlink()
    with pytest.raises(
        ValueError, match=r"`which` is 'best', but .* has no best.pt; a run writes it with `eval_every` above 0"
    ):
        load_checkpoint(tmp_path, "best")


def test_a_best_that_is_damaged_or_of_another_format_is_refused(tmp_path: Path) -> None:
    save_best(tmp_path, {"x": 3})
    torch.save({"format": 1}, best_path(tmp_path))
    with pytest.raises(ValueError, match=r"best.pt must be of checkpoint format 2, got 1"):
        load_checkpoint(tmp_path, "best")
    best_path(tmp_path).write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"best.pt: cannot be read"):
        load_checkpoint(tmp_path, "best")
