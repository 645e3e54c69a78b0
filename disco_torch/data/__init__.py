"""Data: acting, keeping what was seen, and turning rows of experience into what a rule sees."""

from disco_torch.data.acting import (
    ActorState,
    Collector,
    Episodes,
    act,
    act_rows,
    agent_step,
    collect,
    init_actor,
)
from disco_torch.data.alignment import (
    Steps,
    check_rollout,
    executed_mean,
    loss_mask,
    masked_mean,
    memory_resets,
    reference_steps,
    rule_inputs,
    steps_of,
)
from disco_torch.data.module_acting import collect_rollout
from disco_torch.data.replay import Replay, ReplayState, add_rollout, empty_replay, forget_agents, sample_rollout

__all__ = [
    "ActorState",
    "Collector",
    "Episodes",
    "Replay",
    "ReplayState",
    "Steps",
    "act",
    "act_rows",
    "add_rollout",
    "agent_step",
    "check_rollout",
    "collect",
    "collect_rollout",
    "empty_replay",
    "executed_mean",
    "forget_agents",
    "init_actor",
    "loss_mask",
    "masked_mean",
    "memory_resets",
    "reference_steps",
    "rule_inputs",
    "sample_rollout",
    "steps_of",
]
