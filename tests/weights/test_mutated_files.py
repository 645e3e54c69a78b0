"""Thousands of rule files that are almost right: each is refused by name, or loads as what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import rule_mutants
from mutations import report, try_all


@pytest.mark.parametrize("name", ["rule", "npz"])
def test_a_few_mutated_files(name: str, tmp_path: Path) -> None:
    refused, accepted = try_all(rule_mutants, name, 60, 0, tmp_path)
    assert sum(refused.values()) > 30 and sum(accepted.values()) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rule", "npz"])
def test_mutated_files(name: str, tmp_path: Path) -> None:
    report(name, *try_all(rule_mutants, name, 2500, 1, tmp_path))
