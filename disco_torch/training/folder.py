"""The folder of a training run."""

from __future__ import annotations

import re
from pathlib import Path

from disco_torch.runs.folder import ConfiguredFolder
from disco_torch.training.config import TrainConfig
from disco_torch.weights.hub import is_hub_name


class RunFolder(ConfiguredFolder[TrainConfig]):
    """The folder of a training run."""

    kind = TrainConfig
    length = "steps"
    counter = "rollouts"
    run = "training run"

    @classmethod
    def made_up_name(cls, config: TrainConfig) -> str:
        rule = config.rule.partition("@")[0] if is_hub_name(config.rule) else config.rule
        return re.sub(r"[^\w.+-]", "-", f"{config.env}-{Path(rule).stem}-seed{config.seed}")
