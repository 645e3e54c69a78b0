"""An environment whose every number is known: it counts its episodes and steps and ends by a script."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

# How each copy's episodes end and after how many steps; the script repeats.
TERMINATED, TRUNCATED, BOTH = "terminated", "truncated", "both"
SCRIPTS = [
    [(3, TERMINATED), (2, TRUNCATED), (1, TRUNCATED), (4, TRUNCATED), (1, TERMINATED), (2, BOTH)],
    [(1, TRUNCATED), (1, TERMINATED), (5, TRUNCATED), (3, TRUNCATED), (2, TERMINATED)],
    [(4, BOTH), (4, TRUNCATED), (2, TERMINATED), (2, TERMINATED), (1, TRUNCATED)],
]
NUM_ACTIONS = 4


def reward_of(episode: int, step: int, action: int) -> float:
    """Of the step that leaves `step`; names the action, so that a row with another action shows."""
    return 100.0 * episode + 10.0 * step + action


class CountingEnv(gymnasium.Env):
    """Observes [copy, episode, step]. Episodes count over the environment's whole life."""

    observation_space = spaces.Box(-1.0, 1000.0, (3,), np.float32)
    action_space = spaces.Discrete(NUM_ACTIONS)

    def __init__(self, copy: int) -> None:
        self.copy, self.episode, self.now = copy, -1, 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.now = self.episode + 1, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.copy, self.episode, self.now], np.float32)

    def step(self, action):
        length, way = SCRIPTS[self.copy][self.episode % len(SCRIPTS[self.copy])]
        assert self.now < length, "stepped after the end"
        reward = reward_of(self.episode, self.now, int(action))
        self.now += 1
        ends = self.now == length
        return self.observe(), reward, ends and way != TRUNCATED, ends and way != TERMINATED, {}


class CountingPool:
    """The same copies as EnvPool would run them.

    It names the spaces of one copy, tells its size by `len`, takes no seed at reset and says nothing of its autoreset mode.
    A finished copy resets with the next step, whatever the action, with a reward that means nothing. The arrays that it
    hands out are overwritten by the next step.
    """

    metadata: dict = {}  # noqa: RUF012
    spec = None
    observation_space = CountingEnv.observation_space
    action_space = CountingEnv.action_space

    def __init__(self) -> None:
        self.envs = [CountingEnv(copy) for copy in range(len(SCRIPTS))]
        self.done = np.zeros(len(self), bool)
        self.batch = np.zeros((len(self), 3), np.float32)

    @property
    def unwrapped(self):
        return self

    def __len__(self) -> int:
        return len(SCRIPTS)

    def reset(self, env_id=None):
        self.batch[:] = [env.reset()[0] for env in self.envs]
        self.done[:] = False
        return self.batch, {}

    def step(self, actions):
        results = [
            (env.reset()[0], 77.0, False, False) if done else env.step(action)[:4]
            for env, done, action in zip(self.envs, self.done, actions, strict=True)
        ]
        batch, rewards, terminated, truncated = (np.array(column) for column in zip(*results, strict=True))
        self.batch[:], self.done = batch, terminated | truncated
        return self.batch, rewards.astype(np.float32), terminated, truncated, {}
