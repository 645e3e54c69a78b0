"""The examples run: each for a few steps with a small rule."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from disco_torch import DiscoConfig, DiscoUpdateRule, MetaNetConfig, save_rule

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small_rule() -> DiscoUpdateRule:
    return DiscoUpdateRule(DiscoConfig(net=MetaNetConfig(prediction_size=12, hidden_size=8), num_bins=11, max_abs_value=5.0))


def test_train_catch(small_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    save_rule(tmp_path / "small.safetensors", small_rule)
    share = example("train_catch").main(str(tmp_path / "small.safetensors"), rollouts=34)
    assert 0.0 <= share <= 1.0


def test_train_catch_learns_with_a_rule_by_hand() -> None:
    """The front door's loop, with actor-critic, is well above chance (about 1 in 8) after 400 rollouts."""
    assert example("train_catch").main("actor-critic", rollouts=400) > 0.3


def test_cartpole(small_rule: DiscoUpdateRule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_rule(tmp_path / "small.safetensors", small_rule)
    monkeypatch.chdir(tmp_path)
    assert example("cartpole").main(steps=2400, rule=str(tmp_path / "small.safetensors")) > 5
    assert (tmp_path / "runs" / "CartPole-v1-small-seed0" / "curve.png").is_file()


def test_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert 1 <= example("own_environment").main(steps=2560) <= 200
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["CartPole-v1-ppo-replay-seed0"]


def test_custom_agent(small_rule: DiscoUpdateRule) -> None:
    assert 0.0 <= example("custom_agent").main(steps=34, rule=small_rule) <= 1.0


def test_tiny_lm(small_rule: DiscoUpdateRule) -> None:
    shares = example("tiny_lm").main(updates=2, rule=small_rule)
    assert list(shares) == [4, 6, 8] and all(0.0 <= share <= 1.0 for share in shares.values())


def test_notebook(disco103_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cells run from top to bottom, with fewer rollouts."""
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "evaluate_disco103.ipynb").read_text())["cells"]
    namespace: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace("num_rollouts = 1000", "num_rollouts = 35"), namespace)
    assert len(namespace["losses"]) == 4  # type: ignore[arg-type]
