"""What a stored configuration may name: classes of trusted modules, and what modules that the user has imported define."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path

import pytest
import torch
from gymnasium.wrappers import FlattenObservation

from disco_torch import TrainConfig
from disco_torch.envs import BinActions, find_named, registered
from disco_torch.training.bring_your_own import bring_again


def test_classes_of_trusted_modules_are_found() -> None:
    name = registered.qualified_name(FlattenObservation)
    assert find_named(name, importing=False) is FlattenObservation
    assert find_named("disco_torch.envs.bin_actions:BinActions", importing=False) is BinActions


@pytest.mark.parametrize(
    "name",
    [
        "gymnasium.wrappers.rendering:os.system",  # what a module has imported itself
        "disco_torch.envs.registered:importlib.import_module",
        "disco_torch.envs.registered:import_modules",  # a function, which would import what its arguments name
        "gymnasium.wrappers:FlattenObservation",  # by another name than its own
        "os:system",
    ],
)
def test_nothing_else_is_found_in_them(name: str) -> None:
    assert find_named(name, importing=False) is None


def test_of_an_imported_module_only_what_it_defines(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("of_a_user")
    exec("import os\ndef make():\n    pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "of_a_user", module)
    assert find_named("of_a_user:make", importing=False) is None
    monkeypatch.setattr(registered, "IMPORTED", {"of_a_user"})
    assert find_named("of_a_user:make", importing=False) is module.make
    assert find_named("of_a_user:os.system", importing=False) is None


def test_a_configuration_cannot_run_a_command(tmp_path: Path) -> None:
    config = TrainConfig(env_args={"command": f"touch {tmp_path / 'ran'}"})
    objects = dataclasses.replace(config.objects, env="gymnasium.wrappers.rendering:os.system", env_kind="factory")
    config = dataclasses.replace(config, objects=objects)
    with pytest.raises(ValueError, match=r"`env` must be given again: the run was given a factory"):
        bring_again(config).make_env(config, 1, torch.device("cpu"))
    assert not (tmp_path / "ran").exists()
