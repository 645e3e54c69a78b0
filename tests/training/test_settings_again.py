"""Settings that a config.json could not give back: a run with them would be lost, or would not do what they say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import small_config

from disco_torch import AgentConfig, InputConfig, load_run, train
from disco_torch.discovery import DiscoverConfig
from disco_torch.discovery.run import discover
from disco_torch.training.folder import RunFolder


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 1e2}, r"`config\.steps` must be int, got 100\.0"),
        ({"steps": "120"}, r"`steps` must be at least 1, got '120'"),
        ({"eval_every": True}, r"`config\.eval_every` must be int, got True"),
        ({"seed": 1.5}, r"`config\.seed` must be int, got 1\.5"),
        ({"schedule": "cosin"}, r"`config\.schedule` must be one of \['constant', 'cosine'\], got 'cosin'"),
        ({"speed": "fast"}, r"`config\.speed` must be one of \[.*\], got 'fast'"),
        ({"replayed_share": "half"}, r"`replayed_share` must lie in \[0\.0, 1\.0\], got 'half'"),
        ({"target_return": "5"}, r"`target_return` must be finite, got '5'"),
        ({"name": None}, r"`name` must be the name of one folder, got None; leave it out"),
        ({"device": torch.device("cpu")}, r"`config\.device` must be numbers, texts or sequences of them, got device"),
        ({"inputs": InputConfig(observations="normalize")}, r"`config\.inputs\.observations` must be one of"),  # type: ignore[arg-type]
        ({"agent": AgentConfig(lstm_size=8.0)}, r"`config\.agent\.lstm_size` must be int, got 8\.0"),  # type: ignore[arg-type]
    ],
)
def test_settings_of_another_kind_are_refused_at_the_start(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(small_config(tmp_path), view=False, **fields)
    assert not list(tmp_path.iterdir())


def test_a_run_is_lengthened_by_an_integer_only(tmp_path: Path) -> None:
    folder = train(small_config(tmp_path, steps=24), view=False).folder
    before = (folder / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"`config\.steps` must be int, got 48\.0"):
        train(resume=folder, steps=48.0, view=False)
    with pytest.raises(ValueError, match=r"`config\.steps` must be int, got 48\.0"):
        RunFolder.open(folder, extend_to=48.0)  # type: ignore[arg-type]
    assert (folder / "config.json").read_bytes() == before
    load_run(folder)


def test_numbers_of_numpy_and_texts_for_folders_are_taken(tmp_path: Path) -> None:
    config = dataclasses.replace(small_config(tmp_path, steps=np.int64(24)), runs=str(tmp_path))  # type: ignore[arg-type]
    folder = train(config, view=False).folder
    assert RunFolder.open(folder).config.steps == 24 and load_run(folder).folder.config.runs == tmp_path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"meta_updates": 2.0}, r"`config\.meta_updates` must be int, got 2\.0"),
        ({"meta_updates": "2"}, r"`meta_updates` must be at least 1, got '2'"),
        ({"dtype": "float16"}, r"`config\.dtype` must be one of \[.*\], got 'float16'"),
    ],
)
def test_settings_of_a_discovery_of_another_kind_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        discover(dataclasses.replace(DiscoverConfig(runs=tmp_path), **fields), view=False)
    assert not list(tmp_path.iterdir())
