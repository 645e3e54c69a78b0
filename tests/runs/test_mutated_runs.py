"""Thousands of checkpoints, configurations and moments that are almost right: each is refused, or loads as what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import run_mutants
from mutations import report, try_all


@pytest.mark.parametrize("name", run_mutants.SUBJECTS)
def test_a_few_mutated_files(name: str, tmp_path: Path) -> None:
    refused, accepted = try_all(run_mutants, name, 30, 0, tmp_path)
    assert sum(refused.values()) > 10 and (sum(accepted.values()) > 0 or name.startswith("configuration"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("checkpoint of a training run", 700),
        ("checkpoint of an agent", 300),
        ("checkpoint of a discovery", 500),
        ("configuration of a training run", 400),
        ("configuration of a discovery", 300),
        ("moments", 400),
    ],
)
def test_mutated_files(name: str, count: int, tmp_path: Path) -> None:
    report(name, *try_all(run_mutants, name, count, 1, tmp_path))
