"""Runs of both kinds that take a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from disco_torch import AdamConfig, AgentConfig, DiscoConfig, MetaNetConfig, MetaRNNConfig, TrainConfig, ValueFunctionConfig
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig

TINY_AGENT = AgentConfig(dense=(8,), lstm_size=8, head_mlp_hiddens=(8,))
TINY_RULE = DiscoConfig(
    net=MetaNetConfig(
        hidden_size=8,
        embedding_size=(4, 2),
        prediction_size=8,
        meta_rnn=MetaRNNConfig(policy_channels=(4,), embedding_size=(4,), pred_embedding_size=(4, 1), hidden_size=4),
        policy_channels=(4,),
        policy_target_channels=(4,),
    ),
    num_bins=11,
)


def small_training(runs: Path, **changes: Any) -> TrainConfig:
    """Twenty rollouts of 12 steps on a 4x3 board, where an episode takes 3."""
    settings: dict[str, Any] = {
        "env_args": {"rows": 4, "columns": 3},
        "rule": "actor-critic",
        "device": "cpu",
        "steps": 240,
        "num_envs": 2,
        "rollout_length": 6,
        "batch_size": 4,
        "updates_per_rollout": 1,
        "replay_capacity": 8,
        "agent": TINY_AGENT,
        "optimizer": AdamConfig(learning_rate=1e-2),
        "runs": runs,
        "log_every": 2,
        "tensorboard": False,
    }
    return TrainConfig(**(settings | changes))


def small_discovery(runs: Path, **changes: Any) -> DiscoverConfig:
    """Four meta-updates with three agents, two on 5x5 Catch and one on a chain."""
    habitats = (HabitatConfig("catch", {"rows": 5, "columns": 5}, agents=2), HabitatConfig("chain"))
    settings: dict[str, Any] = {
        "groups": (GroupConfig(habitats, AgentConfig(dense=(8,), lstm_size=4, head_mlp_hiddens=(4,))),),
        "rule": TINY_RULE,
        "device": "cpu",
        "speed": "plain",
        "meta_updates": 4,
        "rollout_length": 5,
        "valid_length": 6,
        "num_envs": 4,
        "batch_size": 4,
        "value_function": ValueFunctionConfig(dense=(8,)),
        "runs": runs,
        "log_every": 2,
        "snapshot_every": 3,
        "tensorboard": False,
    }
    return DiscoverConfig(**(settings | changes))
