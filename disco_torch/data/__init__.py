"""Data: acting, keeping what was seen, and turning rows of experience into what a rule sees."""

from disco_torch.data.alignment import check_rollout, loss_mask, masked_mean, memory_resets, rule_inputs
from disco_torch.data.collection import ActorState, Collector, Episodes, collect, collect_rollout, init_actor
from disco_torch.data.replay import Replay

__all__ = [
    "ActorState",
    "Collector",
    "Episodes",
    "Replay",
    "check_rollout",
    "collect",
    "collect_rollout",
    "init_actor",
    "loss_mask",
    "masked_mean",
    "memory_resets",
    "rule_inputs",
]
