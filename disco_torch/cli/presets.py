"""Presets on the command line, and the settings of a run that is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.discovery.presets import PRESETS as DISCOVER_PRESETS
from disco_torch.training.config import TrainConfig
from disco_torch.training.defaults import default_config
from disco_torch.training.folder import RunFolder
from disco_torch.training.presets import PRESETS as TRAIN_PRESETS


def describe_presets(presets: Mapping[str, tuple[str, object]]) -> str:
    return "; ".join(f"{name} ({what})" for name, (what, _) in presets.items())


def take_preset(args: Sequence[str]) -> tuple[TrainConfig | DiscoverConfig, list[str]]:
    """Removes `--preset NAME` from the arguments and returns the settings that it stands for and the rest.

    The names are those of the command, `train` or `discover`. Without a preset, a run has the settings of its rule, as
    `--rule NAME` says. With `--resume RUN` the settings are the run's own, so that it grows longer only where the caller
    says so.
    """
    command = next((arg for arg in args if arg in ("train", "discover")), "train")
    presets: Mapping[str, tuple[str, Any]] = DISCOVER_PRESETS if command == "discover" else TRAIN_PRESETS
    folder: type[RunFolder] | type[DiscoveryFolder] = DiscoveryFolder if command == "discover" else RunFolder
    name: str | None = None
    rest, waiting = [], False
    for arg in args:
        if waiting:
            name, waiting = arg, False
        elif arg == "--preset":
            waiting = True
        elif arg.startswith("--preset="):
            name = arg.removeprefix("--preset=")
        else:
            rest.append(arg)
    if waiting or name not in (None, *presets):
        raise ValueError(f"`--preset` must be one of {sorted(presets)}, got {'nothing' if waiting else repr(name)}.")
    for arg, following in pairwise([*rest, ""]):
        if arg == "--resume" or arg.startswith("--resume="):
            return folder.open(Path(arg.partition("=")[2] or following)).config, rest
    if name is None and command == "train":
        return default_config(_rule_in(rest)), rest
    return presets[name or next(iter(presets))][1], rest


def _rule_in(args: Sequence[str]) -> str:
    """The rule that the arguments name last; `auto` where they name none."""
    rule = "auto"
    for arg, following in pairwise([*args, ""]):
        if arg == "--rule" or arg.startswith("--rule="):
            rule = arg.partition("=")[2] or following
    return rule


def check_settings_of_resumed(given: Any, own: Any, length: str, may_change: Sequence[str]) -> None:
    """Raises where a run that is resumed is given other settings than its own.

    Args:
      given: all settings, of the same class as `own`, the run's.
      length: the setting that may only grow.
      may_change: others that may differ.
    """
    for setting in fields(own):
        old, new = getattr(own, setting.name), getattr(given, setting.name)
        if setting.name not in (length, *may_change) and old != new:
            option = setting.name.replace("_", "-")
            raise ValueError(
                f"`--{option}` must be the run's own when it is resumed, {old!r}, got {new!r}; start a new run for it."
            )
    old, new, option = getattr(own, length), getattr(given, length), length.replace("_", "-")
    if new < old:
        raise ValueError(f"`--{option}` can only lengthen a run that is resumed, beyond {old}, got {new}.")
