"""Services that metrics are logged to on request."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from small_runs import small_config

from disco_torch import train
from disco_torch.runs import ServiceSink


def service(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[str, Any]]:
    """A package of that name that writes down how it is called."""
    calls: list[tuple[str, Any]] = []
    module: Any = ModuleType(name)
    module.init = lambda **kwargs: calls.append(("init", kwargs))
    module.log = lambda metrics: calls.append(("log", metrics))
    module.finish = lambda: calls.append(("finish", None))
    monkeypatch.setitem(sys.modules, name, module)
    return calls


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_services(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls = service(monkeypatch, name)
    sink = ServiceSink(name, "project", "run", {"seed": 1})
    sink.write({"steps": 3})
    sink.close()
    assert calls == [
        ("init", {"project": "project", "name": "run", "config": {"seed": 1}}),
        ("log", {"steps": 3}),
        ("finish", None),
    ]


def test_a_run_logs_to_the_services_it_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = service(monkeypatch, "trackio")
    result = train(small_config(tmp_path, trackio_project="mine", steps=48), view=False)
    assert calls[0][1]["project"] == "mine" and calls[0][1]["config"]["steps"] == 48
    assert [metrics for kind, metrics in calls if kind == "log"] == result.metrics
    assert calls[-1] == ("finish", None)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_is_named_and_no_folder_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(ValueError, match=f"`{name}_project` needs the package {name}; install it with pip install {name}"):
        train(small_config(tmp_path / "runs", **{f"{name}_project": "mine"}), view=False)
    assert not (tmp_path / "runs").exists()
