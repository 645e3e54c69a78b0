"""`verify` on the reference files: that it agrees, and that it would say so if it did not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from disco_torch.cli import main
from disco_torch.verification import verify
from disco_torch.verification.verify import quantity_of, relative_error


def test_every_tiny_case_agrees(golden: Path) -> None:
    verdicts = verify(golden)
    assert {verdict.file for verdict in verdicts} == {path.name for path in golden.glob("*.npz")}
    assert all(verdict.verdict == "ok" for verdict in verdicts)
    quantities = {verdict.quantity for verdict in verdicts}
    assert {"vtrace adv", "retrace q_target", "pi", "rnn_h", "logs", "parameters", "target parameters"} <= quantities
    assert {"first moments", "second moments", "meta-gradient", "value function's parameters"} <= quantities


def test_every_case_with_the_released_rule_agrees(shared_golden: Path, disco103_path: Path) -> None:
    verdicts = verify(shared_golden, disco103_path)
    assert all(verdict.verdict == "ok" for verdict in verdicts)
    assert {"rule_disco103.npz", "learner_disco103.npz", "meta_gradient_disco103.npz"} <= {v.file for v in verdicts}


def copy_with(golden: Path, folder: Path, file: str, key: str, factor: float) -> Path:
    """The reference files with one array of one of them changed."""
    shutil.copytree(golden, folder)
    arrays = dict(np.load(folder / file))
    arrays[key] = arrays[key] * factor
    np.savez(folder / file, **arrays)
    return folder


@pytest.mark.parametrize(
    ("file", "key", "quantity"),
    [
        ("values.npz", "retrace/q_target", "retrace q_target"),
        ("rule_tiny.npz", "call2_out/rnn_c", "rnn_c"),
        ("learner_tiny.npz", "step4_log/q_loss", "logs"),
        ("learner_tiny.npz", "nu5/mlp/linear/w", "second moments"),
        ("meta_gradient_tiny.npz", "aux/pg_loss", "pg_loss"),
    ],
)
def test_a_difference_is_found(golden: Path, tmp_path: Path, file: str, key: str, quantity: str) -> None:
    verdicts = verify(copy_with(golden, tmp_path / "cases", file, key, 1 + 1e-7))
    failed = [(verdict.file, verdict.quantity) for verdict in verdicts if verdict.failed]
    assert failed == [(file, quantity)]


def test_exit_status(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(golden)]) == 0
    assert "quantities agree in float64" in capsys.readouterr().out
    changed = copy_with(golden, tmp_path / "cases", "values.npz", "vtrace/adv", 1.01)
    assert main(["verify", str(changed)]) == 1
    assert main(["verify", str(changed), "--tolerance", "0.1"]) == 0
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert "config.json" in capsys.readouterr().err


def test_float32_is_judged_by_its_own_tolerance(golden: Path) -> None:
    verdicts = verify(golden, dtype=torch.float32)
    judged = [verdict for verdict in verdicts if verdict.verdict != "not judged in float32"]
    assert all(verdict.verdict == "ok" for verdict in judged)
    assert {verdict.quantity for verdict in verdicts} - {verdict.quantity for verdict in judged} == {
        "meta-gradient",
        "meta-gradient, mixed mode",
    }
    assert max(verdict.error or 0.0 for verdict in judged) > 1e-9


def test_cases_that_need_weights_are_skipped_aloud(golden: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    shutil.copytree(golden, folder)
    arrays = {key: value for key, value in np.load(folder / "rule_tiny.npz").items() if not key.startswith("eta/")}
    np.savez(folder / "rule_tiny.npz", **arrays)
    verdicts = {verdict.file: verdict for verdict in verify(folder)}
    assert verdicts["rule_tiny.npz"].verdict == "skipped: rule 'tiny' needs --weights"


def test_a_folder_without_cases(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold reference files and their config\.json"):
        verify(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="got none that could be"):
        verify(tmp_path)


def test_the_relative_error() -> None:
    reference = np.array([1.0, -4.0])
    assert relative_error(torch.tensor([1.0, -4.4]), reference) == pytest.approx(0.1)
    assert relative_error(torch.tensor([0.5]), np.array([0.0])) == 0.5  # nothing to be relative to
    for wrong in (None, torch.zeros(3), torch.tensor([1.0, float("nan")])):
        assert relative_error(wrong, reference) == float("inf")


def test_the_lines_of_the_table() -> None:
    assert quantity_of("call1/log/td") == quantity_of("step3/log/q_loss") == "logs"
    assert quantity_of("aux/value_params/value_fn/~/w") == "value function's parameters"
    assert quantity_of("call2/agent_out/z") == "agent_out z"
