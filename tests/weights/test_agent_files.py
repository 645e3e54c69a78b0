"""Agents and value functions in files, under the reference's names and ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from disco_torch.agents import Agent
from disco_torch.weights import load_agent, load_npz, read_file, save_agent, save_npz, save_rule


def group(path: Path, name: str) -> dict[str, np.ndarray]:
    arrays = load_npz(path)
    return {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}


@pytest.mark.parametrize("of", ["agent", "value function"])
def test_the_reference_s_parameters_come_back_bit_for_bit(
    golden: Path, tmp_path: Path, agent: Agent, value_net: Agent, of: str
) -> None:
    net, root, name = (agent, "mlp", "theta0") if of == "agent" else (value_net, "value_fn", "value_params0")
    reference = group(golden / "meta_gradient_tiny.npz", name)
    assert all(key.startswith(f"{root}/") for key in reference)
    dtype = next(iter(reference.values())).dtype
    net.to(torch.from_numpy(np.zeros(1, dtype)).dtype)
    save_npz(tmp_path / "reference.npz", reference)
    params = load_agent(tmp_path / "reference.npz", net, root=root)
    save_agent(tmp_path / "ours.npz", net, params, root=root)
    ours = load_npz(tmp_path / "ours.npz")
    assert sorted(ours) == sorted(reference)
    for key, array in reference.items():
        assert ours[key].dtype == array.dtype and ours[key].shape == array.shape, key
        assert ours[key].tobytes() == np.ascontiguousarray(array).tobytes(), key


@pytest.mark.parametrize("name", ["agent.npz", "agent.safetensors"])
def test_parameters_come_back_and_the_module_stays(agent: Agent, tmp_path: Path, name: str) -> None:
    own = {key: param.detach().clone() for key, param in agent.named_parameters()}
    fresh = agent.init(torch.Generator().manual_seed(3))
    save_agent(tmp_path / name, agent, fresh)
    loaded = load_agent(tmp_path / name, agent)
    assert sorted(loaded) == sorted(fresh)
    assert all(torch.equal(loaded[key], param) and loaded[key].dtype == torch.float64 for key, param in fresh.items())
    assert all(torch.equal(param, own[key]) for key, param in agent.named_parameters())
    save_agent(tmp_path / name, agent, dtype=torch.float32)
    assert all(torch.equal(param, own[key].float().double()) for key, param in load_agent(tmp_path / name, agent).items())


def test_the_file_says_which_network_it_is_of(agent: Agent, tmp_path: Path) -> None:
    save_agent(tmp_path / "agent.safetensors", agent, provenance={"environment": "catch"})
    metadata = read_file(tmp_path / "agent.safetensors").metadata
    config = json.loads(metadata["config"])
    assert metadata["kind"] == "agent" and json.loads(metadata["provenance"]) == {"environment": "catch"}
    assert config["network"]["dense"] == [32, 24] and config["num_actions"] == 4 and config["observation_shapes"] == [[10]]
    assert config["outputs"]["per_action"] == {"z": 24, "aux_pi": 4, "q": 31}


def test_another_network_s_file_is_refused(agent: Agent, value_net: Agent, tiny_rule: nn.Module, tmp_path: Path) -> None:
    save_agent(tmp_path / "value.npz", value_net, root="value_fn")
    with pytest.raises(ValueError, match=r"value\.npz: array 'mlp/.*' is missing and array 'value_fn/.*' is not expected"):
        load_agent(tmp_path / "value.npz", agent)
    save_rule(tmp_path / "rule.safetensors", tiny_rule)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rule\.safetensors: must hold .* the kind 'agent', got those of the kind 'rule'"):
        load_agent(tmp_path / "rule.safetensors", agent)


def test_a_network_the_reference_does_not_have_goes_into_safetensors_only(value_net: Agent, tmp_path: Path) -> None:
    value_net.extra = nn.Linear(2, 3).double()
    with pytest.raises(ValueError, match=r"parameter 'extra.bias' has no name in Haiku; use a \.safetensors file"):
        save_agent(tmp_path / "agent.npz", value_net, root="value_fn")
    value_net.torso = nn.Linear(10, 16).double()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"`agent` must have an MLP for a torso, .*, got Linear"):
        save_agent(tmp_path / "agent.npz", value_net, root="value_fn")
    save_agent(tmp_path / "agent.safetensors", value_net)
    loaded = load_agent(tmp_path / "agent.safetensors", value_net)
    assert all(torch.equal(loaded[name], param) for name, param in value_net.named_parameters())


def test_agents_with_memory_have_files_of_ours_alone(agent: Agent, tmp_path: Path) -> None:
    config = replace(agent.config, core="lstm", core_size=3)
    recurrent = Agent(torch.zeros(10), 4, agent.outputs, config)
    save_agent(tmp_path / "agent.safetensors", recurrent)
    loaded = load_agent(tmp_path / "agent.safetensors", recurrent)
    assert all(torch.equal(loaded[name], param) for name, param in recurrent.named_parameters())
    with pytest.raises(ValueError, match=r"parameter 'core.lstm.linear.bias' has no name in Haiku; use a .safetensors file"):
        save_agent(tmp_path / "agent.npz", recurrent)
