"""What a run sets for its whole process, and what names of devices and speeds stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from disco_torch.kernels import SPEEDS, Speed
from disco_torch.runs import configure_process, one_cpu_thread, resolve_device, resolve_speed

SOURCES = Path(__file__).parents[2] / "disco_torch"


def test_devices() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ValueError, match="`device` must be `cpu`, `cuda` or `auto`, got 'tpu'"):
        resolve_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ValueError, match="`device` must be one that this machine has, got 'cuda:0' without a GPU; use cpu"):
        resolve_device("cuda:0")


def test_speeds_by_name() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert resolve_speed("auto", cpu) == Speed() and resolve_speed("auto", gpu) == SPEEDS["captured"]
    assert resolve_speed("auto", cpu, on_cpu="traced") == SPEEDS["traced"]
    assert resolve_speed("compiled", cpu) == Speed(trace=True, compile=True, capture=True)


@pytest.mark.parametrize(("device", "precision"), [("cpu", "highest"), ("cuda", "high")])
def test_matmuls_are_in_tf32_on_a_gpu_alone(device: str, precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        configure_process(torch.device(device))
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


def test_only_entry_points_configure_the_process() -> None:
    """Neither a constructor nor a module that is imported changes settings of the whole process."""
    setting = ("set_float32_matmul_precision", "keep_freed_memory(")
    places = {path for path in SOURCES.rglob("*.py") if any(name in path.read_text() for name in setting)}
    rooms = {path.relative_to(SOURCES).parts[0] for path in places}
    assert rooms <= {"runs", "kernels"}
    callers = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if "configure_process(" in path.read_text()}
    assert callers == {"runs/process.py", "training/loop.py", "discovery/run.py"}


@pytest.mark.parametrize(("variable", "inside"), [(None, 1), ("2", 2)])
def test_one_thread_for_many_small_operations(monkeypatch: pytest.MonkeyPatch, variable: str | None, inside: int) -> None:
    """Only within, also where it fails, and not against what the user has set."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)

    def fails() -> None:
        with one_cpu_thread():
            assert torch.get_num_threads() == inside
            raise OSError("broken")

    torch.set_num_threads(2)
    try:
        with pytest.raises(OSError, match="broken"):
            fails()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
