"""The folder of a training run."""

from __future__ import annotations

import re
from pathlib import Path

from disco_torch.runs.folder import ConfiguredFolder
from disco_torch.training.config import TrainConfig
from disco_torch.weights.hub import is_hub_name

RULE_COPY = "rule"
"""Name of a run's copy of its rule, before the suffix."""


class RunFolder(ConfiguredFolder[TrainConfig]):
    """The folder of a training run."""

    kind = TrainConfig
    length = "steps"
    counter = "rollouts"
    run = "training run"

    @property
    def rule_file(self) -> Path | None:
        """The run's copy of the file of its rule: the run goes on with it, whatever becomes of the rule's name or file."""
        paths = [self.path / f"{RULE_COPY}{suffix}" for suffix in (".safetensors", ".npz")]
        return next((path for path in paths if path.is_file()), None)

    @classmethod
    def made_up_name(cls, config: TrainConfig) -> str:
        rule = config.rule.partition("@")[0] if is_hub_name(config.rule) else config.rule
        return re.sub(r"[^\w.+-]", "-", f"{config.env}-{Path(rule).stem}-seed{config.seed}")
