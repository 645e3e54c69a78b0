"""The folder of a run: its whole configuration and everything that it writes."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from disco_torch.files import reason_of, replacing
from disco_torch.runs.checkpoint import (
    MAX_COUNT,
    best_path,
    check_range,
    checkpoint_path,
    find_checkpoint,
    list_checkpoints,
    restoring,
    typed,
)
from disco_torch.runs.sinks import Metrics, read_metrics
from disco_torch.weights.configuration import check_plain, config_from_plain, config_to_plain, flat_config
from disco_torch.weights.hub import fetch_run, is_hub_name

FREE_SETTINGS = (
    *("name", "runs", "device", "speed", "minutes", "log_every", "checkpoint_every", "snapshot_every", "keep_checkpoints"),
    *("checkpoint_replay", "tensorboard", "wandb_project", "trackio_project"),
    *("eval_every", "eval_episodes", "eval_policy", "target_return"),
)
"""Settings that may change in the middle of a run: they decide what is written, where the run is
computed and when it stops, not what it computes."""
MAX_NAME_LENGTH = 200
MAX_CONFIG_BYTES = 2**24
"""Of a config.json: lists of as many factors as an observation has numbers fit in, and no allocation hurts."""


class RunConfig(Protocol):
    """What every configuration of a run says; see `TrainConfig` for the meaning of each."""

    @property
    def name(self) -> str: ...

    @property
    def runs(self) -> Path: ...

    @property
    def log_every(self) -> int: ...

    @property
    def checkpoint_every(self) -> int: ...

    @property
    def keep_checkpoints(self) -> int: ...

    @property
    def tensorboard(self) -> bool: ...


C = TypeVar("C", bound=RunConfig)


def check_run_name(name: str) -> None:
    """Raises unless a name is that of one folder on every system; an empty name is made up later."""
    if not isinstance(name, str):
        raise ValueError(f"`name` must be the name of one folder, got {name!r}; leave it out to have one made up.")
    if name in (".", "..") or any(letter in '/\\:*?"<>|' or not letter.isprintable() for letter in name):
        raise ValueError(
            f'`name` must be the name of one folder, without / \\ : * ? " < > |, got {name!r}; `runs` is the folder that '
            "it is made in."
        )
    if (length := len(name.encode())) > MAX_NAME_LENGTH:
        raise ValueError(f"`name` must have at most {MAX_NAME_LENGTH} bytes, got {length}.")


@dataclass(frozen=True)
class ConfiguredFolder(Generic[C]):
    """A folder with the configuration of a run in its `config.json`; each kind of run has a class of its own."""

    path: Path
    config: C

    kind: ClassVar[type]
    """Class of the configuration."""
    length: ClassVar[str]
    """Setting that says how long the run is; also the counter that it is compared with."""
    counter: ClassVar[str]
    """Counter that checkpoints are named after."""
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
    def create(cls, config: C, fill: Callable[[Path], None] | None = None) -> Self:
        """A new folder under `config.runs`; a given name must be free, a made-up one gets a number.

        It takes its name with its configuration in it, so that a kill leaves no folder that can be neither used nor made;
        and with whatever `fill` writes into the folder that it is given.
        """
        check_run_name(config.name)
        name = config.name or cls.made_up_name(config)
        path, number = config.runs / name, 2
        begun = config.runs / f".{name}.{uuid.uuid4().hex}.partial"
        begun.mkdir(parents=True)
        try:
            if fill is not None:
                fill(begun)
            while True:
                folder = cls(path, cls._changed(config, name=path.name))
                write_json(begun / "config.json", folder.plain_config())
                if _rename_to_free(begun, path):
                    return folder
                if config.name:
                    raise ValueError(
                        f"`name` must be new, got {name!r}, whose folder {path} exists; resume it with --resume {path}."
                    )
                path, number = config.runs / f"{name}-{number}", number + 1
        finally:
            shutil.rmtree(begun, ignore_errors=True)

    @classmethod
    def open(cls, path: Path, extend_to: int | None = None) -> Self:
        """The folder of a run that exists, or `hf:ORG/NAME` for one on the Hub; with `extend_to` it is lengthened."""
        if is_hub_name(path):
            path = fetch_run(path)
        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"`run` must be the folder of a run, with a config.json in it, got {path}.")
        plain = _read_config(file)
        if isinstance(plain, Mapping) and cls.length not in plain:
            raise ValueError(f"`run` must be the folder of a {cls.run}, got {path}, which is of another kind.")
        try:
            check_config(plain)
            folder = cls(path, config_from_plain(cls.kind, plain))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{file} is not the configuration of a {cls.run}: {error}") from error
        if extend_to is not None and extend_to > plain[cls.length]:
            folder = cls(path, cls._changed(folder.config, **{cls.length: extend_to}))
            write_json(file, folder.plain_config())
        return folder

    def with_settings(self, **changes: object) -> Self:
        """The same folder for a run that continues with other settings than those that it was started with."""
        return type(self)(self.path, self._changed(self.config, **changes))

    def plain_config(self) -> dict[str, Any]:
        return config_to_plain(self.config)

    def content_to_resume(self) -> dict[str, Any]:
        """What the newest checkpoint holds; nothing where the run was killed before it wrote anything."""
        if not list_checkpoints(self.checkpoints) and not self.read_metrics():
            return {}
        return self.load_checkpoint()

    def load_checkpoint(self, which: str | int = "newest") -> dict[str, Any]:
        """A checkpoint, which must be of a run with this configuration: `newest`, `best` or a number."""
        path, content = find_checkpoint(self.checkpoints, which)
        with restoring(self.checkpoints):
            check_range("metrics_bytes", [typed(content, "metrics_bytes", int)], 0, MAX_COUNT)
            check_range("seconds", [typed(content, "seconds", float)], 0.0, MAX_COUNT)
            counters = typed(typed(content, "session", dict), "counters", dict, "session")
            own_path = checkpoint_path(self.checkpoints, typed(counters, self.counter, int, "session/counters"))
            if path not in (own_path, best_path(self.checkpoints)):
                raise ValueError(f"{path.name} holds the state after {counters[self.counter]} {self.counter}")
            plain = json.loads(typed(content, "config", str))
            check_config(plain)
            started = flat_config(config_to_plain(config_from_plain(self.kind, plain)))
        own = flat_config(self.plain_config())
        for name in sorted({*own, *started}):
            free = name.split(".")[1].partition("[")[0] in (*FREE_SETTINGS, self.length)
            if not free and own.get(name) != started.get(name):
                raise ValueError(
                    f"`{name}` in {self.path / 'config.json'} must be {started.get(name)!r}, as in the checkpoint, got "
                    f"{own.get(name)!r}; undo the change, or start a new run."
                )
        return content

    def remove_partial_files(self) -> None:
        """Removes what a killed process had begun to write."""
        for leftover in self.path.rglob(".*.partial"):
            leftover.unlink(missing_ok=True)

    def check_exists(self) -> None:
        """Raises where the folder was removed while the run was going on."""
        if not (self.path / "config.json").is_file():
            raise FileNotFoundError(
                f"the folder {self.path} must stay while its run is going on, but its config.json is gone; the run ends "
                "here, and nothing is written."
            )

    def read_metrics(self) -> list[Metrics]:
        return read_metrics(self.metrics) if self.metrics.is_file() else []

    def write_summary(self, summary: dict[str, Any]) -> None:
        self.check_exists()
        write_json(self.path / "summary.json", summary)

    @staticmethod
    def _changed(config: C, **changes: object) -> C:
        return checked_config(dataclasses.replace(config, **changes))  # type: ignore[type-var]


def checked_config(config: C) -> C:
    """A configuration as its config.json will give it back: what could not be read again is not begun.

    Numbers of NumPy become Python's, texts for folders paths, lists tuples. Anything else that a field does not take is
    refused by name, such as 1e6 for a count, or a choice that there is not.
    """
    plain = config_to_plain(config)
    check_config(plain)
    return config_from_plain(type(config), plain)


def check_config(plain: object) -> None:
    """Raises where a plain configuration is not one that a config.json can hold."""
    check_plain(plain, max_entries=MAX_CONFIG_BYTES, max_values=MAX_CONFIG_BYTES)


def _read_config(file: Path) -> Any:
    if (size := file.stat().st_size) > MAX_CONFIG_BYTES:
        raise ValueError(f"{file} must have at most {MAX_CONFIG_BYTES} bytes, got {size}.")
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} must be JSON, as the run wrote it: {reason_of(error)}") from error


def write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def _rename_to_free(folder: Path, path: Path) -> bool:
    """Gives a folder another name, unless something is there already."""
    try:
        folder.rename(path)  # an empty folder is replaced, on systems that can
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EACCES) and path.exists():
            return False
        raise
    return True
