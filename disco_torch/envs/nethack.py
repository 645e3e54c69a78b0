"""NetHack (the NetHack Learning Environment, Kuettler et al., 2020) with observations that an agent can read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from disco_torch.envs.gymnasium_env import GymnasiumEnvironment
from disco_torch.envs.gymnasium_make import Wrapper, make_from_factory

ROWS, COLUMNS, STATS = 21, 79, 27


class NetHackView(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The map as an image, and the numbers of the bottom lines.

    - `screen`, [21, 79, 3] bytes: the character of each cell, its colour times 17, and 255 where the player is.
    - `stats`, [27] float32: NetHack's `blstats` (place, attributes, health, gold, depth, experience, hunger, ...) as
      sign(x) log(1 + |x|) / 10, since some reach millions.

    The message and the inventory are left out.

    NetHack itself does not read the seed of a reset, and reseeds itself while it is played. Here every game gets seeds that
    follow from the last seeded reset, so that runs can be repeated; those of `challenge`, which allows no seeds, cannot.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._seeds = np.random.default_rng()
        self.observation_space = spaces.Dict(
            {
                "screen": spaces.Box(0, 255, (ROWS, COLUMNS, 3), np.uint8),
                "stats": spaces.Box(-np.inf, np.inf, (STATS,), np.float32),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seeds = np.random.default_rng(seed)
        core, display = (int(number) for number in self._seeds.integers(2**31, size=2))
        game: Any = self.unwrapped
        with contextlib.suppress(RuntimeError):  # `challenge` allows none
            game.seed(core, display, reseed=False)
        return super().reset(seed=seed, options=options)

    def observation(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        stats = observation["blstats"].astype(np.float64)
        screen = np.zeros((ROWS, COLUMNS, 3), np.uint8)
        screen[..., 0] = observation["chars"]
        screen[..., 1] = np.minimum(observation["colors"], 15) * 17
        column, row = int(stats[0]), int(stats[1])
        if 0 <= row < ROWS and 0 <= column < COLUMNS:
            screen[row, column, 2] = 255
        return {"screen": screen, "stats": (np.sign(stats) * np.log1p(np.abs(stats)) / 10).astype(np.float32)}


def make_nethack(
    env_id: str, num_envs: int, *, wrappers: Sequence[Wrapper] = (), name: str, render_mode: str = "", **arguments: Any
) -> GymnasiumEnvironment:
    """Parallel games of NetHack behind `NetHackView`. They draw no pictures: `render_mode` is not read."""
    arguments = {"observation_keys": ("chars", "colors", "blstats")} | arguments
    # NetHack writes all observations into the same arrays, which Gymnasium's checker would report; the view copies them.
    factory = partial(gymnasium.make, env_id, disable_env_checker=True)
    env = make_from_factory(factory, num_envs, name=name, wrappers=[NetHackView, *wrappers], **arguments)
    if isinstance(env.observation_kinds, dict) and set(env.observation_kinds) == {"screen", "stats"}:
        env.observation_kinds = {"screen": "image", "stats": "numbers"}  # 21 rows are few for an image, but it is one
    return env
