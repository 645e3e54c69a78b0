"""Thousands of rule files that are almost right: each is refused by name, or loads as what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from limits import run_limited
from mutations import MAIN, report

MODULE = "rule_mutants"


def try_all(name: str, count: int, seed: int, folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Counts of the mutants that were refused and accepted, by kind; fails with the first that were neither."""
    code = f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n" + MAIN.format(module=MODULE)
    refused, accepted, failures = json.loads(run_limited(code, name, count, seed, folder, timeout=3600).splitlines()[-1])
    assert not failures, f"{len(failures)} of {count}:\n" + "\n".join(failures[:10])
    assert sum(refused.values()) + sum(accepted.values()) == count
    return refused, accepted


@pytest.mark.parametrize("name", ["rule", "npz"])
def test_a_few_mutated_files(name: str, tmp_path: Path) -> None:
    refused, accepted = try_all(name, 120, 0, tmp_path)
    assert sum(refused.values()) > 60 and sum(accepted.values()) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rule", "npz"])
def test_mutated_files(name: str, tmp_path: Path) -> None:
    report(name, *try_all(name, 2500, 1, tmp_path))
