"""Data: from rows of experience to what a rule sees."""

from disco_torch.data.alignment import (
    check_rollout,
    loss_mask,
    masked_mean,
    memory_resets,
    rule_inputs,
)

__all__ = ["check_rollout", "loss_mask", "masked_mean", "memory_resets", "rule_inputs"]
