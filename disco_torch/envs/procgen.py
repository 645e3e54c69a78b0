"""ProcGen (Cobbe et al., 2020): its games step together in C++ and speak the interface of gym3."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.checks import check_actions, check_least, check_positive, check_shape
from disco_torch.envs.base import Environment, EnvStep
from disco_torch.envs.pure import row_of

PROCGEN_GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot"),
    *("heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
MODES = ("easy", "hard", "extreme", "memory", "exploration")
SWITCHES = (
    *("use_backgrounds", "center_agent", "restrict_themes", "use_monochrome_assets", "use_generated_assets"),
    *("paint_vel_info", "use_sequential_levels"),
)
"""Further options of the package, each true or false."""
GYM = ("gym", "gym.envs", "gym.envs.registration")


def import_procgen() -> Any:
    """The package. It registers its games with `gym`, which is not needed otherwise: an empty one stands in meanwhile."""
    if sys.modules.get("procgen") is not None:
        return sys.modules["procgen"]
    kept = {name: sys.modules.get(name) for name in GYM}
    stubs = {name: ModuleType(name) for name in GYM}
    stubs["gym.envs.registration"].register = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    sys.modules.update(stubs)
    try:
        return importlib.import_module("procgen")
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class ProcgenEnvironment(Environment):
    """`num_envs` games of ProcGen: images of [64, 64, 3] bytes, 15 actions.

    The games are reset by themselves: a row whose `first` is set shows a new episode, and its reward belongs to the old one.
    So the row that ends an episode shows the next one's first observation; the last one is never seen. ProcGen does not say
    whether a time limit cut an episode: all count as ends.

    gym3 has no reset. `reset` makes new games with a seed from its generator, so that runs can be repeated.

    Args:
      num_envs: number of parallel games.
      game: one of `PROCGEN_GAMES`.
      distribution_mode: "easy", "hard" and so on; the package's own is "hard".
      num_levels: number of levels; 0 for all.
      start_level: seed of the first of them.
      num_threads: threads that step the games.
      device: where the tensors shall lie.
      render_mode, vector_kwargs: not read; the frame of a game is its picture.
      switches: further options of the package, see `SWITCHES`.
    """

    num_actions = 15

    def __init__(
        self,
        num_envs: int,
        game: str,
        *,
        distribution_mode: str = "hard",
        num_levels: int = 0,
        start_level: int = 0,
        num_threads: int = 4,
        device: str | torch.device = "cpu",
        render_mode: str | None = None,
        vector_kwargs: dict[str, Any] | None = None,
        **switches: bool,
    ) -> None:
        check_positive("num_envs", num_envs, "it is the number of parallel environments")
        if distribution_mode not in MODES:
            raise ValueError(f"`distribution_mode` must be one of {', '.join(map(repr, MODES))}, got {distribution_mode!r}.")
        for name, value in (("num_levels", num_levels), ("start_level", start_level), ("num_threads", num_threads)):
            check_least(name, value, 0)
        if unknown := sorted(set(switches) - set(SWITCHES)):
            known = "distribution_mode, num_levels, start_level, num_threads, frame_stack"
            raise ValueError(f"procgen/{game} takes {known}, {', '.join(SWITCHES)}, got {unknown[0]!r}.")
        self.name, self.num_envs, self.game, self.device = f"procgen/{game}", num_envs, game, torch.device(device)
        self._options: dict[str, Any] = {"distribution_mode": distribution_mode, "num_threads": num_threads, **switches}
        if distribution_mode != "exploration":  # which has one level of its own
            self._options |= {"num_levels": num_levels, "start_level": start_level}
        self.observation_example = torch.zeros(64, 64, 3, dtype=torch.uint8, device=self.device)
        self.observation_kinds = "image"
        self._games: Any = None
        self._frame: np.ndarray | None = None

    def reset(self, generator: torch.Generator) -> tuple[None, EnvStep]:
        seed = int(torch.randint(2**31 - 1, (), generator=generator, device=generator.device))
        self.close()
        self._games = import_procgen().ProcgenGym3Env(num=self.num_envs, env_name=self.game, rand_seed=seed, **self._options)
        _, observations, _ = self._games.observe()
        no = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        return None, row_of(self._tensor(observations), no.float(), no, is_first=~no)

    def step(self, state: None, actions: Tensor, generator: torch.Generator) -> tuple[None, EnvStep]:
        """Takes a step in every game. They drew their seeds at reset; `generator` is not read."""
        if self._games is None:
            raise ValueError("`reset` must come before `step`, got a step first; it starts the first episodes.")
        check_shape("actions", actions, (self.num_envs,), "it needs one action for each environment")
        check_actions("actions", actions, self.num_actions)
        self._games.act(actions.cpu().numpy().astype(np.int32))
        rewards, observations, first = self._games.observe()
        ends = torch.tensor(np.asarray(first, dtype=bool), device=self.device)
        paid = torch.tensor(np.asarray(rewards, dtype=np.float32), device=self.device)
        return None, row_of(self._tensor(observations), paid, ends, is_first=ends)

    def _tensor(self, observations: dict[str, np.ndarray]) -> Tensor:
        images = observations["rgb"]
        self._frame = images[0].copy()
        return torch.tensor(images, device=self.device)  # [B, 64, 64, 3]

    def render(self, state: None = None) -> np.ndarray | None:
        """The last frame of game 0."""
        return self._frame

    def close(self) -> None:
        if self._games is not None:
            self._games.close()
            self._games = None
