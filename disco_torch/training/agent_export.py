"""The agent of a run in one safetensors file: all that it needs to act, and nothing that it learned with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from disco_torch.training.folder import RunFolder
from disco_torch.weights.files import naming, read_file, save_safetensors
from disco_torch.weights.hub import AGENT_FILE
from disco_torch.weights.parameters import metadata_of, plain_metadata

KIND = "trained agent"
PARAMS, INPUTS = "learner/params/", "inputs/"


def export_agent(session: Mapping[str, Any], path: Path, provenance: Mapping[str, Any] | None = None) -> None:
    """Writes the agent of a checkpoint: its parameters, and the statistics of its inputs.

    Args:
      session: a checkpoint's state of the session.
      path: file to write, .safetensors.
      provenance: where it comes from, as JSON can hold it.
    """
    tensors = {name: x for name, x in session["learning"].items() if name.startswith(PARAMS)}
    inputs = session["inputs"] or {}
    tensors |= {f"{INPUTS}{name}": x for name, x in inputs.items() if isinstance(x, Tensor)}
    others = {name: x for name, x in inputs.items() if not isinstance(x, Tensor)}
    description = {"outputs": session["outputs"], "inputs": None if session["inputs"] is None else others}
    save_safetensors(path, tensors, metadata_of(KIND, description, provenance))


def has_export(folder: RunFolder) -> bool:
    """Whether a run has its agent in a file of its own, and no checkpoints."""
    return (folder.path / AGENT_FILE).is_file() and not folder.checkpoints.is_dir()


def read_export(folder: RunFolder) -> dict[str, Any]:
    """The part of a session's state that an agent acts with, from the file of `export_agent`."""
    path = folder.path / AGENT_FILE
    stored = read_file(path)
    with naming(path):
        kind = stored.metadata.get("kind")
        description = plain_metadata(stored, "config")
        if kind != KIND or not isinstance(description, dict) or set(description) != {"outputs", "inputs"}:
            raise ValueError(f"it must be the file of a {KIND}, got {kind or 'one of another kind'}")
        others = description["inputs"]
        if not isinstance(others, dict | None) or not isinstance(description["outputs"], dict):
            raise ValueError(f"its configuration must hold sizes by name, got {json.dumps(description)[:200]}")
    tensors = dict(stored.arrays)
    inputs = {name.removeprefix(INPUTS): x for name, x in tensors.items() if name.startswith(INPUTS)}
    return {
        "outputs": description["outputs"],
        "learning": {name: x for name, x in tensors.items() if name.startswith(PARAMS)},
        "inputs": None if others is None else inputs | others,
    }
