"""Single games as tensors, by name; the families of levels have a table of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from disco_torch.envs.catch import Catch
from disco_torch.envs.frame_stack import stack_frames
from disco_torch.envs.pure import PureEnvironment
from disco_torch.envs.sokoban import Sokoban

GAMES: dict[str, Callable[..., PureEnvironment]] = {"catch": Catch, "sokoban": Sokoban}
"""What `make_env` finds by name before it looks anywhere else."""
STACKED = ("sokoban",)
"""Games that may be made with a `frame_stack`."""


def make_game(name: str, num_envs: int, device: str | torch.device, arguments: dict[str, Any]) -> PureEnvironment:
    """Makes `num_envs` parallel games; arguments are as a command line gives them."""
    known = [key for key in inspect.signature(GAMES[name]).parameters if key not in ("num_envs", "device")]
    known += ["frame_stack"] if name in STACKED else []
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(f"`{name}` takes {', '.join(known[:-1])} and {known[-1]}, got {unknown[0]!r}.")
    own = {key: value for key, value in arguments.items() if key != "frame_stack"}
    env = stack_frames(GAMES[name](num_envs, device=device, **own), arguments.get("frame_stack", 1))
    assert isinstance(env, PureEnvironment)
    return env
