"""The presets with the paper's settings against its table, written out; and what happens where a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from disco_torch import PRESETS
from disco_torch.agents import Agent
from disco_torch.agents.config import PAPER_ATARI_AGENT
from disco_torch.agents.convolutions import NETWORKS
from disco_torch.cli import main
from disco_torch.envs import PACKAGES
from disco_torch.rules import DiscoUpdateRule
from disco_torch.training import PAPER_SETTINGS

# Extended Data Table 6: its rows, for Atari, Crafter, DMLab, NetHack, ProcGen and Sokoban.
BENCHMARKS = ("atari", "crafter", "dmlab", "nethack", "procgen", "sokoban")
TABLE = {
    "learning_rate": (3e-4, 3e-4, 5e-4, 1e-4, 3e-4, 3e-4),
    "schedule": ("cosine", "constant", "cosine", "cosine", "cosine", "cosine"),
    "warmup_steps": (5e6, 0, 1e6, 1e7, 1e6, 0),
    "weight_decay": (0.1, 0.3, 0.01, 0.03, 0.1, 0.1),
    "max_abs_update": (1, 1, 1, 0.3, 1, 1),
    "discount": (0.997, 0.997, 0.99, 0.997, 0.997, 0.997),
    "frame_stack": (4, 32, None, 4, 4, 4),
    "batch_size": (96, 24, 96, 96, 192, 96),
    "unroll_length": (29, 29, 100, 29, 29, 29),
    "replayed_share": (0.95, 0.99, 0.9, 0.95, 0.9, 0.9),
    "replay_steps": (1.76e6, 0.4e6, 0.22e6, 1.76e6, 0.88e6, 0.88e6),
    "steps": (2e8, 5e7, 1e9, 2e8, 2e8, 2e8),
}
ENVIRONMENTS = {"atari": "atari/pong", "crafter": "crafter/reward", "nethack": "nethack/score"}
ENVIRONMENTS |= {"procgen": "procgen/coinrun", "sokoban": "sokoban"}
CAPACITY = {"atari": 60_690, "crafter": 13_793, "nethack": 60_690, "procgen": 30_345, "sokoban": 30_345}
NEW = {"atari": (5, 5, 1), "crafter": (1, 0, 4), "nethack": (5, 5, 1), "procgen": (19, 19, 1), "sokoban": (10, 10, 1)}
"""Parallel environments, new trajectories of a batch, updates a rollout."""


def test_the_table() -> None:
    assert tuple(PAPER_SETTINGS) == BENCHMARKS
    for row, values in TABLE.items():
        assert tuple(getattr(PAPER_SETTINGS[name], row) for name in BENCHMARKS) == values, row


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_preset_is_its_column(name: str) -> None:
    table = {row: values[BENCHMARKS.index(name)] for row, values in TABLE.items()}
    config = PRESETS[f"{name}-paper"][1]
    assert config.rule == "disco103" and config.env == ENVIRONMENTS[name]
    for row in ("schedule", "warmup_steps", "batch_size", "replayed_share", "steps"):
        assert getattr(config, row) == table[row]
    for row in ("learning_rate", "weight_decay", "max_abs_update"):
        assert getattr(config.optimizer, row) == table[row]
    assert config.rollout_length == table["unroll_length"] and config.replay_capacity == CAPACITY[name]
    assert abs(config.replay_capacity * 29 - table["replay_steps"]) < 29
    # Atari's own environment stacks four frames.
    assert config.env_args.get("frame_stack", 4) == table["frame_stack"]
    assert (config.num_envs, config.num_fresh, config.updates_per_rollout) == NEW[name]
    replayed = config.updates_per_rollout * config.batch_size / config.num_envs
    assert replayed == pytest.approx(1 / (1 - table["replayed_share"]), rel=0.05), "samples for each new trajectory"


def test_networks() -> None:
    for name in ENVIRONMENTS:
        agent = PRESETS[f"{name}-paper"][1].agent
        assert (agent.dense, agent.lstm_size, agent.head_mlp_hiddens) == ((768,), 1024, (1024,))
        assert agent.channels == (256, 384, 384, 256) and agent.torso == ("board" if name == "sokoban" else "impala")
    assert PRESETS["atari-paper"][1].agent == PAPER_ATARI_AGENT


def test_the_discount_is_the_rules_own() -> None:
    own = DiscoUpdateRule().config.value_discount
    assert all(own == PAPER_SETTINGS[name].discount for name in ENVIRONMENTS) and PAPER_SETTINGS["dmlab"].discount != own


def test_the_network_reads_the_stacks() -> None:
    """On tensors without data: sizes are compared, nothing is computed."""
    outputs = DiscoUpdateRule().outputs(4)
    stacks = {"atari": (4, 84, 84), "crafter": (32, 64, 64, 3), "nethack": (4, 21, 79, 3), "procgen": (4, 64, 64, 3)}
    stacks["sokoban"] = (4, 4, 10, 10)
    planes = {"atari": 4, "crafter": 96, "nethack": 12, "procgen": 12, "sokoban": 16}
    for name, shape in stacks.items():
        config = PRESETS[f"{name}-paper"][1].agent
        with torch.device("meta"):
            images = torch.zeros(shape, dtype=torch.uint8)
            example = {"screen": images, "stats": torch.zeros(4, 27)} if name == "nethack" else images
            agent = Agent(example, 4, outputs, config)
        assert agent.torso.planes[0].channels == planes[name]
        assert type(agent.torso.networks["0"]) is NETWORKS[config.torso]


@pytest.mark.parametrize(
    "preset", [name for name, (_, config) in PRESETS.items() if config.env.partition("/")[0] in PACKAGES]
)
def test_a_missing_package_is_one_line_and_leaves_no_folder(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = PRESETS[preset][1].env.partition("/")[0]
    module = {"minatar": "minatar.gym", "nethack": "nle"}.get(package, package)
    monkeypatch.setitem(sys.modules, module, None)
    arguments = ["train", "--preset", preset, "--rule", "actor-critic", "--runs", str(tmp_path / "runs"), "--device", "cpu"]
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"needs the package {package}" in line and PACKAGES[package].install in line
    assert not (tmp_path / "runs").exists()
