"""Discoveries that take a moment, in one process or several, and what is the same between two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from processes import end as end
from processes import start as start
from torch.utils import _pytree as pytree

from disco_torch import AdamConfig, AgentConfig, DiscoConfig, MetaNetConfig, MetaRNNConfig, ValueFunctionConfig
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.run import discover
from disco_torch.runs.checkpoint import load_checkpoint

TIMING = ("seconds", "steps_per_second", "meta_updates_per_second", "minutes_left")
TINY_AGENT = AgentConfig(dense=(8,), lstm_size=4, head_mlp_hiddens=(4,))
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


def small_config(runs: Path, **changes: Any) -> DiscoverConfig:
    """Four meta-updates with three agents, two on 5x5 Catch and one on a chain."""
    habitats = (HabitatConfig("catch", {"rows": 5, "columns": 5}, agents=2), HabitatConfig("chain"))
    settings: dict[str, Any] = {
        "groups": (GroupConfig(habitats, TINY_AGENT, learning_rates=(1e-2, 1e-3)),),
        "rule": TINY_RULE,
        "device": "cpu",
        "dtype": "float64",
        "speed": "plain",
        "meta_updates": 4,
        "rollout_length": 5,
        "valid_length": 6,
        "num_envs": 4,
        "batch_size": 4,
        "optimizer": AdamConfig(learning_rate=1e-2),
        "value_function": ValueFunctionConfig(dense=(8,)),
        "runs": runs,
        "log_every": 2,
        "snapshot_every": 3,
        "checkpoint_every": 3,
        "tensorboard": False,
    }
    return DiscoverConfig(**(settings | changes))


PAPER = {
    "window": 3,
    "stride": 1,
    "fresh_validation": True,
    "replay_capacity": 8,
    "replayed_share": 0.5,
    "lifetimes": (2, 5),
    "adam_per_agent": True,
}
"""Changes that make it the paper's loop."""


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics without what the clock says; every line must be whole."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMING} for line in lines]


def last_state(folder: Path) -> dict[str, Any]:
    """All that the newest checkpoint of a run has of its session."""
    return load_checkpoint(folder / "checkpoints")["session"]


def assert_same(a: Any, b: Any) -> None:
    """Two trees are equal to the last bit, and neither has a part that the other lacks."""
    leaves, others = (pytree.tree_flatten(tree) for tree in (a, b))
    assert leaves[1] == others[1]
    for x, y in zip(leaves[0], others[0], strict=True):
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype and torch.equal(x, y)
        else:
            assert x == y


def run(config: DiscoverConfig | None = None, **kwargs: Any) -> Path:
    return discover(config, view=False, **kwargs).folder
