"""The folder of a training run."""

from __future__ import annotations

import re
from pathlib import Path

from disco_torch.runs.folder import ConfiguredFolder
from disco_torch.training.config import TrainConfig


class RunFolder(ConfiguredFolder[TrainConfig]):
    """The folder of a training run."""

    kind = TrainConfig
    length = "steps"
    counter = "rollouts"
    run = "training run"

    @classmethod
    def made_up_name(cls, config: TrainConfig) -> str:
        return re.sub(r"[^\w.+-]", "-", f"{config.env}-{Path(config.rule).stem}-seed{config.seed}")
