"""What the tests of weight files share: small networks, and a machine without weights and without a network."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from disco_torch.agents import Agent, AgentConfig
from disco_torch.rules import DiscoConfig, DiscoUpdateRule, MetaNetConfig, MetaRNNConfig
from disco_torch.types import OutputSpec


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; connections beyond this machine fail, whatever tries to make one."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if address[0] != "127.0.0.1":
            raise OSError("no network")
        connect(self, address)

    def local_names(host: str, *args: Any, **kwargs: Any) -> list[Any]:
        if host != "127.0.0.1":
            raise OSError("no network")
        return resolve(host, *args, **kwargs)

    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", local_only)
    monkeypatch.setattr(socket, "getaddrinfo", local_names)
    monkeypatch.delenv("DISCO_TORCH_DISCO103", raising=False)
    monkeypatch.setenv("DISCO_TORCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny_config(golden: Path) -> DiscoConfig:
    """Of the small rule in the reference files."""
    sizes = json.loads((golden / "config.json").read_text())["rules"]["tiny"]
    rnn = MetaRNNConfig(**sizes.pop("meta_rnn_kwargs"))
    rule = {name: sizes.pop(name) for name in ("num_bins", "max_abs_value", "value_discount")}
    return DiscoConfig(net=MetaNetConfig(**sizes, meta_rnn=rnn), **rule)


@pytest.fixture
def tiny_rule(tiny_config: DiscoConfig) -> DiscoUpdateRule:
    torch.manual_seed(0)
    return DiscoUpdateRule(tiny_config)


@pytest.fixture(scope="session")
def golden_sizes(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "config.json").read_text())


@pytest.fixture
def agent(tiny_rule: DiscoUpdateRule, golden_sizes: dict[str, Any]) -> Agent:
    """The agent of the reference files, in float64."""
    sizes = golden_sizes["agent"]
    config = AgentConfig(dense=sizes["dense"], lstm_size=sizes["lstm_size"], head_mlp_hiddens=sizes["head_mlp_hiddens"])
    actions = golden_sizes["A"]
    return Agent(torch.zeros(sizes["observation_size"]), actions, tiny_rule.outputs(actions), config).double()


@pytest.fixture
def value_net(golden_sizes: dict[str, Any]) -> Agent:
    """The value function's network of the reference files, in float64."""
    config = AgentConfig(dense=golden_sizes["meta"]["value_fn"]["dense"])
    example = torch.zeros(golden_sizes["agent"]["observation_size"])
    return Agent(example, golden_sizes["A"], OutputSpec(flat={"value": 1}), config).double()
