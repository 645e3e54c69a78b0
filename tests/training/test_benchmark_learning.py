"""Sokoban, and games of other packages where they are installed, are learned: returns rise above a random player's.

They train for minutes, and only show that nothing stands in the way of learning; none comes near what the games allow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disco_torch import AdamConfig, AgentConfig, train
from disco_torch.envs import PACKAGES, make_env

PPO: dict[str, Any] = {"rule": "ppo", "hyper_params": {"entropy_cost": 0.01}, "optimizer": AdamConfig(1e-3, eps=1e-5)}


def needs(package: str) -> None:
    try:
        PACKAGES[package].load()
    except ImportError as error:
        pytest.skip(f"{package} is not installed ({error}); {PACKAGES[package].install}")


def random_return(name: str, num_envs: int, steps: int, **arguments: Any) -> float:
    """The mean return of the episodes that a random player ends."""
    env, generator = make_env(name, num_envs, **arguments), torch.Generator().manual_seed(0)
    state, _ = env.reset(generator)
    running, returns = torch.zeros(num_envs), []
    for _ in range(steps):
        state, row = env.step(state, torch.randint(env.num_actions, (num_envs,), generator=generator), generator)
        running = running + row.rewards
        returns += running[row.episode_ends].tolist()
        running = running.masked_fill(row.episode_ends, 0.0)
    env.close()
    return sum(returns) / len(returns)


def learned_return(tmp_path: Path, **settings: Any) -> float:
    """The mean return of the last 100 episodes of training."""
    settings = PPO | {"device": "cpu", "tensorboard": False, "checkpoint_every": 0, "log_every": 4} | settings
    return train(runs=tmp_path, view=False, **settings).final_return


@pytest.mark.slow
def test_sokoban(tmp_path: Path) -> None:
    """32 levels of 6x6 with one box, about three minutes. A solution pays 10 less its steps."""
    arguments: dict[str, Any] = {"size": 6, "boxes": 1, "num_levels": 32, "limit": 60}
    assert random_return("sokoban", 64, 600, **arguments) < -2
    settings: dict[str, Any] = {"num_envs": 64, "rollout_length": 33, "epochs": 4, "minibatches": 8}
    settings["agent"] = AgentConfig((128,), 64, (64,), torso="board", channels=(32, 32))
    learned = learned_return(tmp_path, env="sokoban", env_args=arguments, steps=500_000, target_return=2.5, **settings)
    assert learned > 2


@pytest.mark.slow
def test_minigrid_memory(tmp_path: Path) -> None:
    """Half of the episodes are won by walking to the end of the corridor and guessing; a random player wins a fifth."""
    needs("minigrid")
    name = "minigrid/memory-s7"
    assert random_return(name, 32, 600) < 0.3
    settings: dict[str, Any] = {"num_envs": 32, "rollout_length": 65, "epochs": 4, "minibatches": 4}
    settings["agent"] = AgentConfig((64,), 64, (64,), torso="board", core="lstm", core_size=64)
    assert learned_return(tmp_path, env=name, steps=100_000, **settings) > 0.4


@pytest.mark.slow
def test_crafter(tmp_path: Path) -> None:
    """Two to three minutes: a step takes 7 ms. A random player gets about 1.0."""
    needs("crafter")
    name = "crafter/reward"
    assert random_return(name, 4, 800) < 1.5
    settings: dict[str, Any] = {"num_envs": 8, "rollout_length": 65, "epochs": 4, "minibatches": 8}
    settings |= {"agent": AgentConfig((128,), 64, (64,), torso="nature"), "optimizer": AdamConfig(5e-4, eps=1e-5)}
    assert learned_return(tmp_path, env=name, steps=16_000, **settings) > 1.8
