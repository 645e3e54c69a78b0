"""The learning rate over a run."""

from __future__ import annotations

import math

from disco_torch.training.config import TrainConfig


def learning_rate(config: TrainConfig, steps: int) -> float:
    """Linear warm-up, then constant or a half cosine to 0, as a function of environment steps.

    lr(s) = lr min(1, s / warmup) (1 + cos(pi s / steps)) / 2
    """
    rate = config.optimizer.learning_rate
    if config.warmup_steps:
        rate *= min(1.0, steps / config.warmup_steps)
    if config.schedule == "cosine":
        rate *= 0.5 * (1.0 + math.cos(math.pi * min(1.0, steps / config.steps)))
    return rate
