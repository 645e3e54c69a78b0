"""The folder of a run: its whole configuration and all that it writes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_torch.files import replacing
from disco_torch.training.config import TrainConfig
from disco_torch.training.sinks import Metrics, read_metrics
from disco_torch.weights.configuration import config_from_plain, config_to_plain


@dataclass(frozen=True)
class RunFolder:
    path: Path
    config: TrainConfig

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curve(self) -> Path:
        return self.path / "curve.png"

    @classmethod
    def create(cls, config: TrainConfig) -> RunFolder:
        """A new folder under `config.runs`; a name that was given must be free, one that was made up is numbered."""
        rule = Path(config.rule).stem
        name = config.name or f"{config.env.replace('/', '-')}-{rule}-seed{config.seed}"
        path, number = config.runs / name, 2
        while path.exists():
            if config.name:
                raise ValueError(
                    f"`name` must be new, got {name!r}, whose folder {path} exists; resume it with --resume {path}."
                )
            path, number = config.runs / f"{name}-{number}", number + 1
        folder = cls(path, dataclasses.replace(config, name=path.name))
        path.mkdir(parents=True)
        folder._write_json("config.json", folder.plain_config())
        return folder

    @classmethod
    def open(cls, path: Path, extend_to: int | None = None) -> RunFolder:
        """The folder of a run that exists, perhaps with more steps to go."""
        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"`run` must be the folder of a run, with a config.json in it, got {path}.")
        config = config_from_plain(TrainConfig, json.loads(file.read_text()))
        folder = cls(path, config)
        if extend_to is not None and extend_to > config.steps:
            folder = cls(path, dataclasses.replace(config, steps=extend_to))
            folder._write_json("config.json", folder.plain_config())
        return folder

    def plain_config(self) -> dict[str, Any]:
        return config_to_plain(self.config)

    def read_metrics(self) -> list[Metrics]:
        return read_metrics(self.metrics) if self.metrics.is_file() else []

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        with replacing(self.path / name) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())
