"""Crafter's score: how many of its 22 achievements an agent unlocks, and how often."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

ACHIEVEMENTS = (
    *(
        "collect_coal",
        "collect_diamond",
        "collect_drink",
        "collect_iron",
        "collect_sapling",
        "collect_stone",
        "collect_wood",
    ),
    *("defeat_skeleton", "defeat_zombie", "eat_cow", "eat_plant", "make_iron_pickaxe", "make_iron_sword"),
    *("make_stone_pickaxe", "make_stone_sword", "make_wood_pickaxe", "make_wood_sword", "place_furnace", "place_plant"),
    *("place_stone", "place_table", "wake_up"),
)
"""The 22 achievements."""


def crafter_score(success_rates: Mapping[str, float]) -> float:
    """The geometric mean of success rates in percent, which counts rare achievements for more than a mean would:

        S = exp(1/22 sum_i log(1 + s_i)) - 1

    Hafner, "Benchmarking the spectrum of agent capabilities" (2021).

    Args:
      success_rates: share of episodes that unlock each achievement, 0 to 1.

    Returns:
      The score in percent, 0 to 100.
    """
    if set(success_rates) != set(ACHIEVEMENTS):
        wrong = sorted(set(success_rates) ^ set(ACHIEVEMENTS))
        raise ValueError(
            f"`success_rates` must name the 22 achievements of Crafter, got others or none for {', '.join(wrong)}."
        )
    rates = np.array([success_rates[name] for name in ACHIEVEMENTS], dtype=np.float64)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(f"`success_rates` must lie in [0, 1], got {rates.min()} to {rates.max()}; divide percents by 100.")
    return float(np.expm1(np.log1p(100.0 * rates).mean()))


def crafter_success_rates(folder: str | Path) -> dict[str, float]:
    """The share of episodes that unlocked each achievement, from the files *.jsonl that an environment's `stats` wrote.

    Args:
      folder: that of the files, as `--env-args stats FOLDER` and `crafter.Recorder` write them.
    """
    lines = [line for path in sorted(Path(folder).glob("*.jsonl")) for line in path.read_text().splitlines()]
    if not lines:
        raise ValueError(f"`folder` must hold files *.jsonl with at least one episode, got {folder}, which has none.")
    episodes = [json.loads(line) for line in lines]
    return {name: float(np.mean([each[f"achievement_{name}"] > 0 for each in episodes])) for name in ACHIEVEMENTS}
