"""A torso that the user brings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from disco_torch import Agent, load_rule
from disco_torch.agents.own_torso import OwnTorso


def test_the_number_of_features_is_found() -> None:
    rule = load_rule("actor-critic")
    torso = nn.Linear(4, 7)
    agent = Agent(torch.zeros(4), 3, rule.outputs(3), torso=torso)
    params = agent.init(torch.Generator().manual_seed(0))
    assert torch.equal(params["torso.module.weight"], torso.weight), "its own weights are the first ones"
    observations = torch.randn(5, 2, 4)
    out, _ = agent.unroll(params, observations)
    features = torso(observations)
    assert torch.allclose(out["logits"], features @ params["heads.logits.0.weight"].T + params["heads.logits.0.bias"])


def test_bytes_become_numbers() -> None:
    seen = OwnTorso(nn.Flatten(2), torch.zeros(2, 2, dtype=torch.uint8))(torch.full((1, 1, 2, 2), 51, dtype=torch.uint8))
    assert seen.tolist() == [[[pytest.approx(0.2)] * 4]]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Linear(3, 2),
            r"`torso` must take observations \[T, B, ...\], here \[2, 3, 4\], got RuntimeError: .*; flatten",
        ),
        (nn.Flatten(0), r"`torso` must return features \[T, B, F\], here \[2, 3, F\], got \[24\]"),
        (nn.LSTM(4, 5), r"must return features \[T, B, F\], here \[2, 3, F\], got tuple"),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout()), "must be a function of its parameters .*, got Dropout in '1', which"),
        (nn.BatchNorm1d(3), "got BatchNorm1d in 'it', which keeps or draws something of its own; use nn.LayerNorm"),
    ],
)
def test_refused_torsos(module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OwnTorso(module, torch.zeros(4))
