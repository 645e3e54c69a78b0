"""Where metrics are written: a JSONL file always, TensorBoard, and two services on request."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

Metrics = dict[str, float]
"""A line of metrics: numbers by name."""


class Sink(Protocol):
    """Where the metrics of a run go: a line at a time, until the run is over."""

    def write(self, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a line, in the file as soon as it is written.

    Args:
      path: the file, which is appended to.
      keep_bytes: how much of it to keep, as a checkpoint says: a resumed run writes what came after it again.
    """

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        _trim(path, keep_bytes)
        # Unbuffered: what a full disk has refused must not be written once more when the file is closed.
        self._file = path.open("ab", buffering=0)

    def write(self, metrics: Mapping[str, float]) -> None:
        line = memoryview((json.dumps(metrics) + "\n").encode())
        while line:
            line = line[self._file.write(line) :]

    def position(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def _trim(path: Path, keep_bytes: int | None) -> None:
    """Cuts the file at `keep_bytes`, and where that is not the end of a line, behind the last whole one."""
    content = path.read_bytes() if path.is_file() else b""
    wanted = len(content) if keep_bytes is None else keep_bytes
    whole = content.rfind(b"\n", 0, wanted) + 1
    if whole != wanted:
        warnings.warn(
            f"{path} must hold whole lines up to byte {wanted}, but they end at byte {whole}; lines are missing, "
            "and the run continues behind the last whole one.",
            stacklevel=2,
        )
    if whole < len(content):
        os.truncate(path, whole)


class TensorBoardSink:
    """TensorBoard scalars over environment steps, in the run's folder."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """With `resumed_at`, events after that step are hidden: a resumed run writes them again."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=None if resumed_at is None else resumed_at + 1)

    def write(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name != "steps":
                self._writer.add_scalar(name, value, int(metrics["steps"]))

    def close(self) -> None:
        self._writer.close()


def import_service(module: str) -> Any:
    """The module of a tracking service; one that is not installed is an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"`{module}_project` needs the package {module}; install it with pip install {module}.") from None


class ServiceSink:
    """Weights & Biases or trackio, which share their interface; imported only on request."""

    def __init__(self, module: str, project: str, name: str, config: dict[str, Any]) -> None:
        self._service = import_service(module)
        self._service.init(project=project, name=name, config=config)

    def write(self, metrics: Mapping[str, float]) -> None:
        self._service.log(dict(metrics))

    def close(self) -> None:
        self._service.finish()


def read_metrics(path: Path) -> list[Metrics]:
    """The lines of a metrics file; a last line that a kill left unfinished is left out, and so are damaged ones."""
    metrics = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            continue
        try:
            parsed = json.loads(line)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            metrics.append(parsed)
        else:
            warnings.warn(f"line {number} of {path} is not an object of JSON; it is left out.", stacklevel=2)
    return metrics
