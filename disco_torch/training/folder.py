"""The folder of a run: its whole configuration and all that it writes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from disco_torch.files import replacing
from disco_torch.training.config import TrainConfig
from disco_torch.training.sinks import Metrics, read_metrics
from disco_torch.weights.configuration import config_from_plain, config_to_plain


class RunConfig(Protocol):
    """What every run's configuration says: its name, empty if one is to be made up, and the folder of all runs."""

    @property
    def name(self) -> str: ...

    @property
    def runs(self) -> Path: ...


C = TypeVar("C", bound=RunConfig)


@dataclass(frozen=True)
class ConfiguredFolder(Generic[C]):
    """A folder whose `config.json` is all that a run was asked for; each kind of run has its own kind of it."""

    path: Path
    config: C

    kind: ClassVar[type]
    """Of the configuration."""
    length: ClassVar[str]
    """The setting that says how long the run is."""
    run: ClassVar[str]
    """What the run is called in a sentence."""

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
    def made_up_name(cls, config: C) -> str:
        raise NotImplementedError

    @classmethod
    def create(cls, config: C) -> Self:
        """A new folder under `config.runs`; a name that was given must be free, one that was made up is numbered."""
        name = config.name or cls.made_up_name(config)
        path, number = config.runs / name, 2
        while path.exists():
            if config.name:
                raise ValueError(
                    f"`name` must be new, got {name!r}, whose folder {path} exists; resume it with --resume {path}."
                )
            path, number = config.runs / f"{name}-{number}", number + 1
        folder = cls(path, cls._changed(config, name=path.name))
        path.mkdir(parents=True)
        folder._write_json("config.json", folder.plain_config())
        return folder

    @classmethod
    def open(cls, path: Path, extend_to: int | None = None) -> Self:
        """The folder of a run that exists, perhaps with a longer way to go."""
        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"`run` must be the folder of a run, with a config.json in it, got {path}.")
        plain = json.loads(file.read_text())
        if cls.length not in plain:
            raise ValueError(f"`run` must be the folder of a {cls.run}, got {path}, which is of another kind.")
        folder = cls(path, config_from_plain(cls.kind, plain))
        if extend_to is not None and extend_to > plain[cls.length]:
            folder = cls(path, cls._changed(folder.config, **{cls.length: extend_to}))
            folder._write_json("config.json", folder.plain_config())
        return folder

    def with_settings(self, **changes: object) -> Self:
        """The same folder for a run that goes on with other settings than those that it was begun with."""
        return type(self)(self.path, self._changed(self.config, **changes))

    def plain_config(self) -> dict[str, Any]:
        return config_to_plain(self.config)

    def read_metrics(self) -> list[Metrics]:
        return read_metrics(self.metrics) if self.metrics.is_file() else []

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    @staticmethod
    def _changed(config: C, **changes: object) -> C:
        return dataclasses.replace(config, **changes)  # type: ignore[type-var]

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        with replacing(self.path / name) as file:
            file.write((json.dumps(content, indent=2) + "\n").encode())


class RunFolder(ConfiguredFolder[TrainConfig]):
    """The folder of a training run."""

    kind = TrainConfig
    length = "steps"
    run = "training run"

    @classmethod
    def made_up_name(cls, config: TrainConfig) -> str:
        return f"{config.env.replace('/', '-')}-{Path(config.rule).stem}-seed{config.seed}"
