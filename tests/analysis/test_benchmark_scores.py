"""Scores of ProcGen and Crafter, by their definitions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from disco_torch.analysis import ACHIEVEMENTS, PROCGEN_RETURNS, crafter_score, crafter_success_rates, procgen_scores
from disco_torch.envs.procgen import PROCGEN_GAMES


def test_procgen_from_the_least_to_the_largest_return() -> None:
    for difficulty, table in PROCGEN_RETURNS.items():
        assert set(table) == set(PROCGEN_GAMES) and all(low < high for low, high in table.values())
        scores = procgen_scores({game: [low, high, (low + high) / 2] for game, (low, high) in table.items()}, difficulty)
        assert all(np.allclose(score, [0, 1, 0.5], atol=1e-12) for score in scores.values())
    assert procgen_scores({"procgen/starpilot": [64.0]}, "easy")["starpilot"] == 1
    assert procgen_scores({"starpilot": [35.0]}, "hard")["starpilot"] == 1
    assert procgen_scores({"fruitbot": [0.0]}, "easy")["fruitbot"] == pytest.approx(1.5 / 33.9)
    assert procgen_scores({"jumper": [3.0]}, "easy")["jumper"] == 0 != procgen_scores({"jumper": [3.0]}, "hard")["jumper"]
    means = {mode: np.mean(list(table.values()), axis=0) for mode, table in PROCGEN_RETURNS.items()}
    assert means["hard"] == pytest.approx((26.5 / 16, 284.4 / 16)) and means["easy"] == pytest.approx(
        (39.0 / 16, 309.0 / 16)
    )


def test_what_is_no_game_of_procgen() -> None:
    with pytest.raises(ValueError, match=r"`difficulty` must be 'easy' or 'hard', got 'memory'"):
        procgen_scores({}, "memory")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`returns` must be of games of ProcGen, bigfish, .*got 'pong'"):
        procgen_scores({"pong": [1.0]}, "easy")


def test_crafters_score() -> None:
    assert len(ACHIEVEMENTS) == len(set(ACHIEVEMENTS)) == 22
    none = dict.fromkeys(ACHIEVEMENTS, 0.0)
    assert crafter_score(none) == 0 and crafter_score(dict.fromkeys(ACHIEVEMENTS, 1.0)) == pytest.approx(100)
    assert crafter_score(none | {"wake_up": 0.5}) == pytest.approx(math.exp(math.log(51) / 22) - 1)
    rare, often = crafter_score(none | {"eat_cow": 0.01, "wake_up": 0.5}), crafter_score(none | {"wake_up": 0.51})
    assert rare > often, "a new achievement counts for more than one a little more often"


def test_crafters_rates_from_files(tmp_path: Path) -> None:
    for file, counts in (("a", [0, 2]), ("b", [1, 0])):
        lines = [
            {"length": 5} | {f"achievement_{name}": 0 for name in ACHIEVEMENTS} | {"achievement_eat_cow": n} for n in counts
        ]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rates = crafter_success_rates(tmp_path)
    assert rates["eat_cow"] == 0.5 and sum(rates.values()) == 0.5
    with pytest.raises(ValueError, match=r"`folder` must hold files \*.jsonl with at least one episode"):
        crafter_success_rates(tmp_path / "none")
    with pytest.raises(ValueError, match=r"`success_rates` must name the 22 achievements .* for wake_up"):
        crafter_score({name: 0.0 for name in ACHIEVEMENTS if name != "wake_up"})
    with pytest.raises(ValueError, match=r"`success_rates` must lie in \[0, 1\], got 0.0 to 50.0; divide percents by 100"):
        crafter_score(dict.fromkeys(ACHIEVEMENTS, 0.0) | {"wake_up": 50.0})
