"""The settings of a run from keywords."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from disco_torch.agents import AgentConfig
from disco_torch.optim import AdamConfig
from disco_torch.training.config import TrainConfig

MAY_CHANGE = ("steps", "device", "speed", "replay_device", "target_return")
"""Settings that a run may be resumed with."""


def with_fields(config: TrainConfig | None, fields: Mapping[str, Any]) -> TrainConfig:
    """A configuration with some of its fields changed."""
    known = [field.name for field in dataclasses.fields(TrainConfig) if field.name != "objects"]
    for name in fields:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        inner = {"optimizer": AdamConfig, "agent": AgentConfig}
        for part, kind in inner.items():
            if name in {field.name for field in dataclasses.fields(kind)}:
                raise ValueError(f"`train` has no setting {name!r}; write {part}={kind.__name__}({name}=...).")
        raise ValueError(
            f"`train` has no setting {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}.")
        )
    return dataclasses.replace(config or TrainConfig(), **fields)


def resumed_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keywords for a run that is resumed: those that may change."""
    for name in fields:
        if name not in MAY_CHANGE:
            raise ValueError(f"`{name}` must be left out when a run is resumed, only {', '.join(MAY_CHANGE)} may change.")
    return fields
