"""Where metrics go: a JSONL file always, TensorBoard, and two services where they are asked for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

Metrics = dict[str, float]


class Sink(Protocol):
    def write(self, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a line, flushed as it is written."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        """With `keep_bytes`, what was written behind that position is dropped: a resumed run writes it again."""
        if keep_bytes is not None and path.is_file():
            with path.open("r+b") as file:
                file.truncate(min(keep_bytes, path.stat().st_size))  # a longer size would append zeros
        self._file = path.open("a")

    def write(self, metrics: Mapping[str, float]) -> None:
        self._file.write(json.dumps(metrics) + "\n")
        self._file.flush()

    def position(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Scalars over environment steps, in the run's folder."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """With `resumed_at`, events behind that step are hidden: a resumed run writes them again."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=None if resumed_at is None else resumed_at + 1)

    def write(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name != "steps":
                self._writer.add_scalar(name, value, int(metrics["steps"]))

    def close(self) -> None:
        self._writer.close()


def import_service(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"`{module}_project` needs the package {module}; install it with pip install {module}.") from None


class ServiceSink:
    """Weights & Biases or trackio, which share their interface; imported only when asked for."""

    def __init__(self, module: str, project: str, name: str, config: dict[str, Any]) -> None:
        self._service = import_service(module)
        self._service.init(project=project, name=name, config=config)

    def write(self, metrics: Mapping[str, float]) -> None:
        self._service.log(dict(metrics))

    def close(self) -> None:
        self._service.finish()


def read_metrics(path: Path) -> list[Metrics]:
    """The lines of a metrics file; a last line that a kill left unfinished is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
