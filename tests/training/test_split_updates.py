"""An update of a batch that two processes share is the update of one process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from processes import end, start
from split_updates import (
    SIZE,
    TRIED,
    UPDATES,
    B,
    alone,
    compare_all,
    make_batch,
    make_normalizer,
    part_of,
)

from disco_torch.data import loss_mask
from disco_torch.types import tree_items

TOLERANCE = 1e-10
EXACT_LOGS = ("total_loss", "global_gradient_norm", "global_update_norm")
"""Logs of the whole batch; the others are of each process's own part."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of each case in each process."""
    folder = tmp_path_factory.mktemp("processes")
    codes = end(start(compare_all, folder, size=SIZE, errors=folder), 120)
    assert codes == [0] * SIZE, (folder / "0.txt").read_text() + (folder / "1.txt").read_text()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]


def test_the_parts_count_different_numbers_of_steps() -> None:
    """Else a mean of means would do."""
    for memory in (False, True):
        counts = [float(loss_mask(part_of(make_batch(0, memory), rank)).sum()) for rank in range(SIZE)]
        assert len(set(counts)) == SIZE


@pytest.mark.parametrize(("case", "speed"), TRIED)
def test_a_split_update_is_that_of_one_process(results: list[dict[str, Any]], case: str, speed: str) -> None:
    wanted, wanted_logs = alone(case)
    (first, first_logs), *others = [result[f"{case}, {speed}"] for result in results]
    for (name, x), (_, y) in zip(tree_items(first), tree_items(wanted), strict=True):
        torch.testing.assert_close(x, y, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text, name=name: f"{name}: {text}")
    for name in EXACT_LOGS:
        torch.testing.assert_close(first_logs[name], wanted_logs[name], rtol=TOLERANCE, atol=TOLERANCE)
    for other, logs in others:
        for (name, x), (_, y) in zip(tree_items(first), tree_items(other), strict=True):
            assert torch.equal(x, y), f"{name} differs between the processes"
        assert all(torch.equal(first_logs[name], logs[name]) for name in EXACT_LOGS)


def test_the_statistics_of_inputs_are_those_of_one_process(results: list[dict[str, Any]]) -> None:
    normalizer = make_normalizer()
    wanted = normalizer.init(torch.zeros(5, dtype=torch.float64), B)
    for seed in range(UPDATES):
        wanted = normalizer.update(wanted, make_batch(seed, False))
    wanted = dataclasses.replace(wanted, returns=None, executed=None)
    (first, _), (second, _) = (result["inputs"] for result in results)
    for (name, x), (_, y), (_, z) in zip(tree_items(first), tree_items(second), tree_items(wanted), strict=True):
        assert torch.equal(x, y), name
        torch.testing.assert_close(x, z, rtol=TOLERANCE, atol=TOLERANCE)
