"""The command line that repeats a training run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from disco_torch.runs.folder import FREE_SETTINGS
from disco_torch.training import TrainConfig, default_config
from disco_torch.weights.configuration import config_to_plain

KEPT = ("eval_every", "eval_episodes", "eval_policy", "target_return")
"""Settings that do not change what is learned, but what is known about it."""
LEFT_OUT = {"objects", "env", "rule", "seed", "steps", *FREE_SETTINGS} - set(KEPT)


def train_command(config: TrainConfig, rule: str) -> str:
    """`disco-torch train` with every option in which a run differs from the settings of its rule.

    Args:
      config: of the run.
      rule: what the rule is called in the command.
    """
    default, own = config_to_plain(default_config(rule)), config_to_plain(config)
    words = ["disco-torch", "train", "--env", config.env, "--rule", rule]
    words += ["--seed", str(config.seed), "--steps", str(config.steps)]
    for name in [name for name in own if name not in LEFT_OUT]:
        words += _options(name, own[name], default[name])
    return shlex.join(words)


def _options(name: str, own: Any, default: Any) -> list[str]:
    """The options of a setting, and of those within it, where they differ."""
    flag = f"--{name.replace('_', '-')}"
    if own == default or own is None:
        return []
    if name in ("env_args", "hyper_params"):
        return [flag, *(str(part) for item in own.items() for part in item)]
    if isinstance(own, Mapping) and isinstance(default, Mapping):
        return [word for key in own for word in _options(f"{name}.{key}", own[key], default.get(key))]
    if isinstance(own, bool):
        *path, last = name.replace("_", "-").split(".")
        return [flag] if own else [f"--{'.'.join([*path, f'no-{last}'])}"]
    return [flag, *map(str, own)] if isinstance(own, list) else [flag, str(own)]
