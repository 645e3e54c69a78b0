"""Agents' parameters in files, and those of value functions, which have the same networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from disco_torch.agents import Agent
from disco_torch.types import Params
from disco_torch.weights.configuration import config_to_plain
from disco_torch.weights.files import read_file
from disco_torch.weights.haiku import agent_layers
from disco_torch.weights.parameters import max_file_bytes, metadata_of, params_from, save_params


def save_agent(
    path: str | Path,
    agent: Agent,
    params: Params | None = None,
    *,
    root: str = "mlp",
    provenance: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Writes parameters of an agent; the file appears complete or not at all.

    Args:
      path: `.safetensors`, which carries the agent's sizes too, or `.npz`, which the reference harness reads.
      agent: the architecture.
      params: to write; defaults to the module's own.
      root: of Haiku's names, for an `.npz`: "mlp" for an agent, "value_fn" for a value function's network.
      provenance: where they come from, as JSON can hold it; `.safetensors` only.
      dtype: to store in; defaults to that of the parameters.
    """
    description = {
        "network": agent.config,
        "num_actions": agent.num_actions,
        "outputs": agent.outputs,
        "observation_shapes": agent.observation_shapes,
    }
    config = config_to_plain(description) if Path(path).suffix == ".safetensors" else None
    save_params(path, agent, lambda: agent_layers(agent, root), params, metadata_of("agent", config, provenance), dtype)


def load_agent(path: str | Path, agent: Agent, *, root: str = "mlp") -> Params:
    """Parameters for an agent from a file, on its device and in its dtype; the module's own stay as they are.

    Every array is checked against the agent: a file of another network, or a damaged one, is refused.

    Args:
      path: as `save_agent` or the reference harness wrote it.
      agent: the architecture that the parameters are for.
      root: of Haiku's names, for an `.npz`: "mlp" for an agent, "value_fn" for a value function's network.
    """
    return params_from(read_file(path, max_file_bytes(agent)), agent, lambda: agent_layers(agent, root), "agent")
