"""The tasks of the suite: other people's environments, a contextual bandit and Catch, each with its number of steps.

Importing this module registers `suite/Bandit-v0`, `disco_torch/Catch-v0` and, where it is installed, MinAtar. An id such as
`suite_tasks:suite/Bandit-v0` imports it first, so that every library can make these environments, given that this folder is
on the path of Python.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from disco_torch.envs.catch_gym import register_catch

HERE = "suite_tasks"
SHORT = 300_000
"""Tasks of up to so many steps are those that Stable-Baselines3 is run on; on the others our own PPO stands in."""
IMAGE_ALONE = {"wrappers": ["minigrid.wrappers:ImgObsWrapper"]}
"""Of MiniGrid's observation the view of the agent; its mission, a text, and its direction are left out."""
GUARD = {"env_args.max_episode_steps": 10_000}
"""MinAtar has no time limit; few episodes reach this one, but an evaluation must end."""


@dataclass(frozen=True)
class SuiteTask:
    """A task of the suite.

    Attributes:
      name: for tables.
      env: id of Gymnasium.
      steps: environment steps of training.
      package: package that it needs besides Gymnasium's own dependencies, as it is imported.
      settings: settings of `TrainConfig` that belong to the task, by dotted name.
      flatten: whether Stable-Baselines3 plays it behind `FlattenObservation`: it knows no tuples, and takes a small board of
        bytes for a picture.
      quick: whether it is in the subset for iteration.
    """

    name: str
    env: str
    steps: int
    package: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    flatten: bool = False
    quick: bool = False


SUITE = [
    SuiteTask("CartPole", "CartPole-v1", 100_000, quick=True),
    SuiteTask("Acrobot", "Acrobot-v1", 256_000, quick=True),
    SuiteTask("MountainCar", "MountainCar-v0", 256_000, quick=True),
    SuiteTask("LunarLander", "LunarLander-v3", 500_000, "Box2D", quick=True),
    SuiteTask("FrozenLake 4x4", "FrozenLake-v1", 200_000, quick=True),
    SuiteTask("FrozenLake 8x8", "FrozenLake8x8-v1", 200_000, quick=True),
    # Gymnasium gives it no time limit, so that a policy that walks into a wall would never end an episode.
    SuiteTask("CliffWalking", "CliffWalking-v1", 200_000, settings={"env_args.max_episode_steps": 500}, quick=True),
    SuiteTask("Blackjack", "Blackjack-v1", 100_000, flatten=True, quick=True),
    SuiteTask("Taxi", "Taxi-v4", 500_000),
    SuiteTask("MiniGrid Empty 5x5", "minigrid:MiniGrid-Empty-5x5-v0", 500_000, "minigrid", IMAGE_ALONE, flatten=True),
    SuiteTask(
        "MiniGrid DoorKey 5x5",
        "minigrid:MiniGrid-DoorKey-5x5-v0",
        500_000,
        "minigrid",
        IMAGE_ALONE,
        flatten=True,
        quick=True,
    ),
    SuiteTask("MiniGrid FourRooms", "minigrid:MiniGrid-FourRooms-v0", 500_000, "minigrid", IMAGE_ALONE, flatten=True),
    SuiteTask("MinAtar Breakout", f"{HERE}:MinAtar/Breakout-v1", 1_000_000, "minatar", GUARD, flatten=True, quick=True),
    SuiteTask("MinAtar Freeway", f"{HERE}:MinAtar/Freeway-v1", 1_000_000, "minatar", GUARD, flatten=True),
    SuiteTask("MinAtar Asterix", f"{HERE}:MinAtar/Asterix-v1", 1_000_000, "minatar", GUARD, flatten=True, quick=True),
    SuiteTask("MinAtar SpaceInvaders", f"{HERE}:MinAtar/SpaceInvaders-v1", 1_000_000, "minatar", GUARD, flatten=True),
    SuiteTask("MinAtar Seaquest", f"{HERE}:MinAtar/Seaquest-v1", 1_000_000, "minatar", GUARD, flatten=True),
    SuiteTask("bandit", f"{HERE}:suite/Bandit-v0", 20_000, quick=True),
    SuiteTask("Catch 8x8", f"{HERE}:disco_torch/Catch-v0", 64_000, quick=True),
]


def installed(task: SuiteTask) -> bool:
    """Whether the package that a task needs is there."""
    return not task.package or importlib.util.find_spec(task.package) is not None


class Bandit(gymnasium.Env):
    """10 contexts, 4 arms, episodes of one step: reward 1 for the context's own arm, else 0."""

    observation_space = gymnasium.spaces.Discrete(10)
    action_space = gymnasium.spaces.Discrete(4)
    arms = (2, 0, 3, 1, 1, 0, 2, 3, 0, 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.context = self.np_random.integers(10)
        return self.context, {}

    def step(self, action: int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        return self.context, float(action == self.arms[self.context]), True, False, {}


register_catch()
if "suite/Bandit-v0" not in gymnasium.registry:
    gymnasium.register("suite/Bandit-v0", entry_point=Bandit)
if importlib.util.find_spec("minatar") is not None and "MinAtar/Breakout-v1" not in gymnasium.registry:
    importlib.import_module("minatar.gym").register_envs()
