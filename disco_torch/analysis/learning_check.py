"""Whether an agent has learned anything yet, from its returns and the entropy of its policy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from disco_torch.analysis.statistics import mean_interval

EPISODES = 100
"""Number of episodes at the beginning and at the end that are compared."""
AT_RANDOM = 0.999
"""Share of the greatest entropy from which a policy counts as uniform; with two actions one has then at most 0.52."""
DETERMINISTIC = 0.01
"""Share of the greatest entropy up to which a policy counts as deterministic."""


def learning_problem(first: Sequence[float], last: Sequence[float], entropy: float | None, num_actions: int) -> str | None:
    """What speaks against learning, in words, or None.

    Either the mean of the last returns is within or below the 95% interval of the first ones; or the policy is still
    uniform; or it is deterministic, unless returns have risen, since a solved task may end so.

    Args:
      first: returns of the first episodes. With fewer than `EPISODES` nothing is said about returns.
      last: returns of the last episodes, none of which is among the first; or empty.
      entropy: mean entropy of the policy in nats, if it is known.
      num_actions: number of actions, A; the greatest entropy is log A.
    """
    enough = len(first) >= EPISODES and len(last) >= EPISODES
    if enough:
        mean, (before, low, high) = float(np.mean(last)), mean_interval(first)
        if mean <= high:
            return (
                f"the mean return of the last {len(last)} episodes, {mean:.4g}, is not above that of the first "
                f"{len(first)}, {before:.4g} (95% interval {low:.4g} to {high:.4g})"
            )
    largest = math.log(num_actions) if num_actions > 1 else 0.0
    if entropy is None or largest == 0.0:
        return None
    if entropy >= AT_RANDOM * largest:
        return f"the entropy of the policy, {entropy:.4g}, is the greatest possible: actions are chosen at random"
    if entropy <= DETERMINISTIC * largest and not enough:
        return f"the entropy of the policy, {entropy:.2g}, is almost 0: it does not explore any more"
    return None
