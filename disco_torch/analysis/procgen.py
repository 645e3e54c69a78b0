"""Normalised scores of ProcGen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from disco_torch.analysis.aggregates import normalize_scores

PROCGEN_RETURNS: dict[str, dict[str, tuple[float, float]]] = {
    "hard": {
        "coinrun": (5.0, 10.0),
        "starpilot": (1.5, 35.0),
        "caveflyer": (2.0, 13.4),
        "dodgeball": (1.5, 19.0),
        "fruitbot": (-0.5, 27.2),
        "chaser": (0.5, 14.2),
        "miner": (1.5, 20.0),
        "jumper": (1.0, 10.0),
        "leaper": (1.5, 10.0),
        "maze": (4.0, 10.0),
        "bigfish": (0.0, 40.0),
        "heist": (2.0, 10.0),
        "climber": (1.0, 12.6),
        "plunder": (3.0, 30.0),
        "ninja": (2.0, 10.0),
        "bossfight": (0.5, 13.0),
    },
    "easy": {
        "coinrun": (5.0, 10.0),
        "starpilot": (2.5, 64.0),
        "caveflyer": (3.5, 12.0),
        "dodgeball": (1.5, 19.0),
        "fruitbot": (-1.5, 32.4),
        "chaser": (0.5, 13.0),
        "miner": (1.5, 13.0),
        "jumper": (3.0, 10.0),
        "leaper": (3.0, 10.0),
        "maze": (5.0, 10.0),
        "bigfish": (1.0, 40.0),
        "heist": (3.5, 10.0),
        "climber": (2.0, 12.6),
        "plunder": (4.5, 30.0),
        "ninja": (3.5, 10.0),
        "bossfight": (0.5, 13.0),
    },
}
"""Least and largest return of each game, by difficulty: of an agent that sees nothing, and the most that can be had, or that
was reached in long training. Cobbe et al., "Leveraging procedural generation to benchmark reinforcement learning" (2020),
appendix C."""


def procgen_scores(returns: Mapping[str, ArrayLike], difficulty: Literal["easy", "hard"]) -> dict[str, np.ndarray]:
    """(R - R_min) / (R_max - R_min) for each game, about 0 to 1.

    Args:
      returns: mean returns by game, with or without "procgen/"; [seeds] each.
      difficulty: that the games were played in.
    """
    if difficulty not in PROCGEN_RETURNS:
        raise ValueError(f"`difficulty` must be 'easy' or 'hard', got {difficulty!r}; there are no constants for others.")
    table = PROCGEN_RETURNS[difficulty]
    games = {name.removeprefix("procgen/"): np.asarray(values, dtype=np.float64) for name, values in returns.items()}
    for game in games:
        if game not in table:
            raise ValueError(f"`returns` must be of games of ProcGen, {', '.join(sorted(table))}, got {game!r}.")
    low, high = ({game: bounds[i] for game, bounds in table.items()} for i in (0, 1))
    return normalize_scores(games, low, high)
