"""Settings by rule: what a run uses where a user names a rule and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from disco_torch.data import InputConfig
from disco_torch.optim import AdamConfig
from disco_torch.training.config import SMALL_AGENT, TrainConfig
from disco_torch.weights.configuration import config_to_plain, flat_config
from disco_torch.weights.hub import is_hub_name, pin_rule

DEFAULT_RULE = "ppo-replay"
"""The rule of a run that names none, `auto`."""
# Chosen on levels of the tensor families and on validation tasks, see docs/training.md: many small gradient steps, each
# of 64 steps out of the last 8 rollouts, come sooner after what they learn from than one long rollout allows.
MANY_SMALL_STEPS: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 33,
    "batch_size": 0,
    "updates_per_rollout": 1,
    "replay_capacity": 32,
    "replayed_share": 0.0,
    "epochs": 2,
    "minibatches": 16,
    "max_gradient_norm": 0.5,
    "inputs": InputConfig(observations="auto", rewards="normalized", least_deviation=1.0),
    "agent": dataclasses.replace(SMALL_AGENT, activation="tanh"),
    "optimizer": AdamConfig(learning_rate=7e-4, eps=1e-5),
}
"""32 gradient steps after each short rollout, on targets that are computed once."""
DISCOVERED: dict[str, Any] = MANY_SMALL_STEPS | {
    "optimizer": AdamConfig(learning_rate=1.5e-3, eps=1e-5),
    "schedule": "cosine",
}
"""The same at twice the rate, which falls to 0: targets that say how far to go bear it."""
ONE_LARGE_UPDATE: dict[str, Any] = {"batch_size": 64, "updates_per_rollout": 1}
"""One update on half new and half replayed trajectories after each rollout."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo-replay": MANY_SMALL_STEPS,
    "doubly-robust": DISCOVERED,
    # As Stable-Baselines3: 10 epochs in minibatches of 64 steps over 2048 steps, here of 4 parallel environments. With 16 of
    # 128 steps one of two CartPole agents, after training episodes of 500 steps, fell from some first states when evaluated;
    # a likely reason, not tested, is that a rollout then lacks whole phases of episodes that all environments play in step.
    "ppo": {
        "num_envs": 4,
        "rollout_length": 513,
        "batch_size": 0,
        "updates_per_rollout": 1,
        "replay_capacity": 0,
        "replayed_share": 0.0,
        "epochs": 10,
        "minibatches": 32,
        "max_gradient_norm": 0.5,
        "optimizer": AdamConfig(learning_rate=3e-4, eps=1e-5),
        "log_every": 2,
        "checkpoint_every": 50,
    },
    "birch": DISCOVERED,
    "disco103": ONE_LARGE_UPDATE | {"optimizer": AdamConfig(learning_rate=3e-3)},
    "actor-critic": ONE_LARGE_UPDATE | {"optimizer": AdamConfig(learning_rate=2e-3)},
    "policy-gradient": ONE_LARGE_UPDATE | {"optimizer": AdamConfig(learning_rate=2e-3)},
}
"""Fields of `TrainConfig` that a rule learns well with, by its name, where they are not the plain defaults.

Rules that are files or on the Hub, which were discovered, have those of `birch`: see `default_config`."""


def resolve_rule(name: str) -> str:
    """A rule's name, with its commit if it is on the Hub, or the whole path of its file; `auto` is the default one."""
    if name == "auto":
        return DEFAULT_RULE
    if is_hub_name(name):
        return pin_rule(name)
    return str(Path(name).resolve()) if Path(name).is_file() else name


def default_config(rule: str = "auto") -> TrainConfig:
    """The settings of a run with a rule.

    Those of its name in `DEFAULTS`; `DISCOVERED` for a rule that is a `.safetensors` or `.npz` file or on the Hub; the plain
    defaults for any other.
    """
    rule = DEFAULT_RULE if rule == "auto" else rule
    discovered = is_hub_name(rule) or Path(rule).suffix in (".safetensors", ".npz")
    return dataclasses.replace(TrainConfig(rule=rule), **DEFAULTS.get(rule, DISCOVERED if discovered else {}))


def chosen_settings(config: TrainConfig) -> str:
    """The settings of a run that are its rule's own and not the plain defaults, in a line; empty if there are none."""
    plain, own, now = (
        flat_config(config_to_plain(each), "")
        for each in (TrainConfig(rule=config.rule), default_config(config.rule), config)
    )
    chosen = [name for name in own if own[name] != plain[name] and own[name] == now.get(name)]
    texts = [f"{name.removeprefix('.')} {own[name]}" for name in chosen]
    return f"settings of {config.rule}: {', '.join(texts)}" if texts else ""
