"""`verify` on the reference files: that it agrees, and that it would say so if it did not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from disco_torch.cli import main
from disco_torch.verification import Verdict, verify
from disco_torch.verification.verify import quantity_of, relative_error, verdicts_of


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


Change = Callable[[dict[str, np.ndarray]], object]


def changed(golden: Path, folder: Path, file: str, change: Change) -> list[Verdict]:
    """The verdicts on one of the reference files, changed in place; the others are left out."""
    folder.mkdir()
    shutil.copy(golden / "config.json", folder)
    arrays = dict(np.load(golden / file))
    change(arrays)
    np.savez(folder / file, **arrays)
    return verify(folder)


def put(name: str, value: float, index: int) -> Change:
    return lambda arrays: np.put(arrays[name], index, value)


NON_FINITE = [
    # The first array that is compared of its quantity, and a later one: either must be seen.
    ("values.npz", "vtrace/adv"),
    ("learner_tiny.npz", "step0_log/q_loss"),
    ("learner_tiny.npz", "step4_log/q_loss"),
    ("learner_tiny.npz", "nu5/mlp/linear/w"),
    ("rule_tiny.npz", "call2_out/pi"),
    ("rule_tiny.npz", "call1_in/rewards"),
    ("meta_gradient_tiny.npz", "grads/lstm/linear_4/b"),
    ("meta_gradient_tiny.npz", "aux/value"),
]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("file", "key"), NON_FINITE)
def test_a_reference_that_is_not_finite_is_refused_by_name(
    golden: Path, tmp_path: Path, file: str, key: str, value: float
) -> None:
    verdicts = changed(golden, tmp_path / "cases", file, put(key, value, index=0))
    assert [(v.quantity, v.worst, v.verdict) for v in verdicts] == [
        ("content", f"array {key!r} must be finite, got 1 values that are not", "FAIL")
    ]


def test_a_nan_fails_wherever_it_comes_in_the_order() -> None:
    good, bad = ("theta/a", np.ones(2), np.ones(2)), ("theta/b", np.ones(2), np.array([1.0, np.nan]))
    for order in ((good, bad), (bad, good)):
        (verdict,) = verdicts_of("file", iter(order), 1e-9, torch.float64)
        assert verdict.failed and verdict.worst == "theta/b"


MISSING = [
    ("values.npz", "input/rho"),
    ("values.npz", "vtrace/td"),
    ("values.npz", "transforms/two_hot"),
    ("rule_tiny.npz", "call1_in/actions"),
    ("rule_tiny.npz", "call0_in/agent_out/z"),
    ("rule_tiny.npz", "call2_out/log/td"),
    ("learner_tiny.npz", "step3_log/total_loss"),
    ("learner_tiny.npz", "mu5/mlp/linear/b"),
    ("actor_critic.npz", "step2_in/rewards"),
    ("actor_critic.npz", "theta3/mlp/~_embedding_pass/torso/~/linear_0/w"),
    ("meta_gradient_tiny.npz", "grads/lstm/linear/w"),
    ("meta_gradient_tiny.npz", "aux/reg_loss"),
    ("meta_gradient_tiny.npz", "aux/value_params/value_fn/~_head_pass/torso_head/~/linear_0/w"),
    ("meta_gradient_tiny.npz", "valid/discounts"),
]


@pytest.mark.parametrize(("file", "key"), MISSING)
def test_a_missing_array_is_named(golden: Path, tmp_path: Path, file: str, key: str) -> None:
    (verdict,) = changed(golden, tmp_path / "cases", file, lambda arrays: arrays.pop(key))
    assert verdict.failed and verdict.worst == f"array {key!r} is missing"


@pytest.mark.parametrize(
    "group", ["call2_in/", "call2_out/", "step4_in/", "step4_log/", "nu5/", "train2/", "eta/lstm/linear/"]
)
def test_fewer_comparisons_are_a_failure(golden: Path, tmp_path: Path, group: str) -> None:
    """Whole groups that are gone leave nothing to differ, so what must be there is known by name."""
    files = {"call": "rule", "trai": "meta_gradient"}
    file = f"{files.get(group[:4], 'learner')}_tiny.npz"

    def drop(arrays: dict[str, np.ndarray]) -> None:
        gone = [name for name in arrays if name.startswith(group)]
        assert gone
        for name in gone:
            del arrays[name]

    (verdict,) = changed(golden, tmp_path / "cases", file, drop)
    assert verdict.failed and "is missing" in verdict.worst


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("values.npz", "vtrace/unknown"),
        ("rule_tiny.npz", "call3_in/rewards"),
        ("rule_tiny.npz", "call1_in/more"),
        ("learner_tiny.npz", "step4_log/loss"),
        ("meta_gradient_tiny.npz", "other"),
    ],
)
def test_an_unexpected_array_is_named(golden: Path, tmp_path: Path, file: str, key: str) -> None:
    (verdict,) = changed(golden, tmp_path / "cases", file, lambda arrays: arrays.update({key: np.zeros(2)}))
    assert verdict.failed and verdict.worst.startswith(f"array {key!r} is not expected (1 such of ")


def test_arrays_of_other_sizes_and_kinds_fail_with_a_reason(golden: Path, tmp_path: Path) -> None:
    changes: list[tuple[str, Change, str]] = [
        ("values.npz", lambda arrays: arrays.update({"input/rho": arrays["input/rho"][1:]}), ""),
        ("values.npz", lambda arrays: arrays.update({"vtrace/td": np.array(["a"])}), "'vtrace/td' must hold numbers"),
        ("rule_tiny.npz", lambda arrays: arrays.update({"call0_in/actions": arrays["call0_in/actions"] + 9}), "action"),
        ("learner_tiny.npz", lambda arrays: arrays.update({"eta/extra": np.zeros(1)}), "'extra' is not expected"),
    ]
    for i, (file, change, reason) in enumerate(changes):
        (verdict,) = changed(golden, tmp_path / str(i), file, change)
        assert verdict.failed and verdict.quantity == "content" and reason in verdict.worst


def test_settings_that_are_missing_are_named(golden: Path, tmp_path: Path) -> None:
    for name, file in (("values", "values.npz"), ("agent", "rule_tiny.npz"), ("rules", "rule_tiny.npz")):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(golden / file, folder)
        config = json.loads((golden / "config.json").read_text())
        del config[name]
        (folder / "config.json").write_text(json.dumps(config))
        (verdict,) = verify(folder)
        assert verdict.failed and f"config.json must hold {name!r}" in verdict.worst
    for text, problem in (("{", "must be JSON"), ("[]", "must hold settings by name, got list")):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=rf"config\.json: {problem}"):
            verify(folder)


def test_a_tolerance_that_accepts_everything_is_refused(golden: Path) -> None:
    for tolerance in (float("inf"), float("nan"), -1.0):
        with pytest.raises(ValueError, match="`tolerance` must be a finite number of at least 0"):
            verify(golden, tolerance=tolerance)


def test_exit_status(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(golden)]) == 0
    assert "quantities agree in float64" in capsys.readouterr().out
    changed = copy_with(golden, tmp_path / "cases", "values.npz", "vtrace/adv", 1.01)
    assert main(["verify", str(changed)]) == 1
    assert main(["verify", str(changed), "--tolerance", "0.1"]) == 0
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert "config.json" in capsys.readouterr().err


def test_float32_has_its_own_tolerance(golden: Path) -> None:
    verdicts = verify(golden, dtype=torch.float32)
    with_tolerance = [verdict for verdict in verdicts if verdict.verdict != "no tolerance in float32"]
    assert all(verdict.verdict == "ok" for verdict in with_tolerance)
    assert {verdict.quantity for verdict in verdicts} - {verdict.quantity for verdict in with_tolerance} == {
        "meta-gradient",
        "meta-gradient, mixed mode",
    }
    assert max(verdict.error or 0.0 for verdict in with_tolerance) > 1e-9


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
    for bad in (np.nan, np.inf):
        assert relative_error(torch.tensor([1.0, bad]), np.array([1.0, bad])) == float("inf")


def test_the_lines_of_the_table() -> None:
    assert quantity_of("call1/log/td") == quantity_of("step3/log/q_loss") == "logs"
    assert quantity_of("aux/value_params/value_fn/~/w") == "value function's parameters"
    assert quantity_of("call2/agent_out/z") == "agent_out z"


def test_a_meta_gradient_that_is_not_finite_fails_in_float32_too() -> None:
    reference = np.ones(3)
    for ours, expected in (
        (torch.zeros(3), "no tolerance in float32"),
        (torch.tensor([1.0, 1.0, np.nan]), "FAIL"),
        (None, "FAIL"),
    ):
        (verdict,) = verdicts_of("file", iter([("gradients/w", ours, reference)]), 2e-2, torch.float32)
        assert verdict.verdict == expected
