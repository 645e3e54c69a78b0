"""Checkpoints: whole or not there, the newest that loads, and nothing but data in them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same

from disco_torch.training.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    pack,
    save_checkpoint,
    unpack,
)
from disco_torch.types import EmaState


def state(value: float) -> dict[str, Any]:
    scalar = torch.tensor(value)
    return {"average": EmaState(scalar, scalar + 1, scalar + 2), "list": [torch.full((2, 3), value), 7], "none": None}


def test_leaves_go_back_into_their_structure(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"leaves": pack(state(3.0))}, keep=1)
    again = unpack(load_checkpoint(tmp_path)["leaves"], state(0.0))
    assert isinstance(again["average"], EmaState)
    assert_same(pack(again), pack(state(3.0)))


def test_leaves_carry_no_graph() -> None:
    leaf = torch.ones(2, requires_grad=True) * 2
    assert not pack({"x": leaf})[0].requires_grad


def test_a_state_of_another_structure_is_refused() -> None:
    with pytest.raises(ValueError, match="the checkpoint holds 1 parts of a state, 2 are needed"):
        unpack(pack([torch.ones(1)]), [torch.ones(1), torch.ones(1)])


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


def test_what_a_killed_run_left_half_written_is_neither_read_nor_kept(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"rollouts": 1}, keep=2)
    half = tmp_path / ".checkpoint-000000002.pt.0123.partial"
    half.write_bytes(checkpoint_path(tmp_path, 1).read_bytes()[:100])
    (tmp_path / "notes.pt").write_text("not ours")
    assert load_checkpoint(tmp_path)["rollouts"] == 1
    save_checkpoint(tmp_path, 2, {"rollouts": 2}, keep=2)
    assert not half.exists() and (tmp_path / "notes.pt").exists()


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


def test_another_format_is_named(tmp_path: Path) -> None:
    torch.save({"format": 99}, checkpoint_path(tmp_path, 1))
    with pytest.raises(ValueError, match="must be of checkpoint format 1, got 99; use the matching version"):
        load_checkpoint(tmp_path)


class Payload:
    """A pickle that would run a command when it is read."""

    def __reduce__(self) -> Any:
        return os.mkdir, (self.target,)

    def __init__(self, target: str) -> None:
        self.target = target


def test_no_code_is_run(tmp_path: Path) -> None:
    target = tmp_path / "made"
    torch.save({"format": 1, "x": Payload(str(target))}, checkpoint_path(tmp_path, 1))
    with pytest.warns(UserWarning, match="does not load"), pytest.raises(ValueError, match="no checkpoint that loads"):
        load_checkpoint(tmp_path)
    assert not target.exists()
