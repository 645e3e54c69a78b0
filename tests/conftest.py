"""Where tests find the reference outputs and the released weights, and the small cases that they share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from disco_torch.rules import (
    DiscoConfig,
    DiscoUpdateRule,
    MetaNetConfig,
    MetaRNNConfig,
)
from disco_torch.types import AgentOutput, OutputSpec, Rollout, UpdateRuleInputs

# The same few examples in every run, on however slow a machine.
settings.register_profile("disco", max_examples=20, deadline=None, derandomize=True, database=None)
settings.load_profile("disco")

GOLDEN = Path(__file__).parent / "golden"
SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The small reference files that live with the tests."""
    return GOLDEN


@pytest.fixture(scope="session")
def disco103_path() -> Path:
    """The released weights, where they are at hand; tests never download them."""
    cache = Path(os.environ.get("DISCO_TORCH_CACHE", Path.home() / ".cache" / "disco-torch"))
    for path in (SHARED / "weights" / "disco_103.npz", cache / "disco_103.npz"):
        if path.is_file():
            return path
    pytest.skip("the released Disco103 weights are neither in ../shared/weights nor in the user's cache")


@pytest.fixture(scope="session")
def shared_golden() -> Path:
    """The full set of reference files, which is too large to live with the tests."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("the full reference files (../shared/golden) are not at hand")
    return SHARED / "golden"


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Each test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage of a recording that fails raises, instead of leaving the plain path in its place."""
    monkeypatch.setenv("DISCO_TORCH_STRICT", "1")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Small tensors are slower on several threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden_config() -> dict[str, Any]:
    """Sizes and hyper-parameters of the reference files."""
    return json.loads((GOLDEN / "config.json").read_text())


@pytest.fixture(scope="session")
def tiny_config(golden_config: dict[str, Any]) -> DiscoConfig:
    """The small rule of the reference files."""
    sizes = dict(golden_config["rules"]["tiny"])
    rule = {name: sizes.pop(name) for name in ("num_bins", "max_abs_value", "value_discount")}
    return DiscoConfig(net=MetaNetConfig(meta_rnn=MetaRNNConfig(**sizes.pop("meta_rnn_kwargs")), **sizes), **rule)


def _randomize(module: nn.Module, seed: int = 0, scale: float = 0.3) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in module.parameters():
            param.copy_(scale * torch.randn(param.shape, generator=generator, dtype=param.dtype))


@pytest.fixture(scope="session")
def randomize() -> Callable[..., None]:
    """Fills a module's parameters, biases too: at a fresh rule's biases of 0 its first targets are all 0."""
    return _randomize


@pytest.fixture
def tiny_rule(tiny_config: DiscoConfig) -> DiscoUpdateRule:
    """A small rule with random parameters, in float64."""
    rule = DiscoUpdateRule(tiny_config).double()
    _randomize(rule)
    return rule


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return 2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0


def _make_outputs(spec: OutputSpec, generator: torch.Generator, T: int, B: int) -> AgentOutput:
    A = spec.flat["logits"]
    out = {name: _uniform(generator, T + 1, B, size) for name, size in spec.flat.items()}
    return out | {name: _uniform(generator, T + 1, B, A, size) for name, size in spec.per_action.items()}


def _make_inputs(
    spec: OutputSpec, T: int = 6, B: int = 3, seed: int = 0, terminals: tuple[tuple[int, int], ...] = ((2, 0), (4, 1))
) -> UpdateRuleInputs:
    generator = torch.Generator().manual_seed(seed)
    A = spec.flat["logits"]
    is_terminal = torch.zeros(T, B, dtype=torch.bool)
    for t, b in terminals:
        is_terminal[t, b] = True
    extra: dict[str, Any] = {
        "v_scalar": _uniform(generator, T + 1, B),
        "adv": _uniform(generator, T, B),
        "normalized_adv": _uniform(generator, T, B),
        "q": _uniform(generator, T + 1, B, A),
        "qv_adv": _uniform(generator, T + 1, B, A),
        "normalized_qv_adv": _uniform(generator, T + 1, B, A),
        "target_out": _make_outputs(spec, generator, T, B),
    }
    return UpdateRuleInputs(
        observations=_uniform(generator, T + 1, B, 10),
        actions=torch.randint(A, (T + 1, B), generator=generator),
        rewards=_uniform(generator, T, B),
        is_terminal=is_terminal,
        agent_out=_make_outputs(spec, generator, T, B),
        behaviour_agent_out=_make_outputs(spec, generator, T, B),
        extra_from_rule=extra,
    )


@pytest.fixture(scope="session")
def make_inputs() -> Callable[..., UpdateRuleInputs]:
    """`make_inputs(spec, T, B, seed, terminals)`: random inputs of a rule, the extras of the Disco rule included."""
    return _make_inputs


def _make_rollout(
    T: int = 6, B: int = 3, A: int = 4, seed: int = 0, ends: tuple[tuple[int, int], ...] = ((2, 0), (4, 1))
) -> Rollout:
    generator = torch.Generator().manual_seed(seed)
    discounts = torch.ones(T + 1, B, dtype=torch.float64)
    for t, b in ends:
        discounts[t, b] = 0.0
    return Rollout(
        observations=_uniform(generator, T + 1, B, 10),
        actions=torch.randint(A, (T + 1, B), generator=generator),
        rewards=_uniform(generator, T + 1, B),
        discounts=discounts,
        behaviour_logits=_uniform(generator, T + 1, B, A),
    )


@pytest.fixture(scope="session")
def make_rollout() -> Callable[..., Rollout]:
    """`make_rollout(T, B, A, seed, ends)`: random rows with observations of 10 numbers."""
    return _make_rollout
