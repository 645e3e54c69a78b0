"""Environments by name."""

from __future__ import annotations

from typing import Any

import torch

from disco_torch.envs.base import Environment
from disco_torch.envs.catch import Catch
from disco_torch.envs.families import FAMILIES, make_family
from disco_torch.envs.gymnasium_env import make_gymnasium


def make_env(name: str, num_envs: int, *, device: str | torch.device = "cpu", **kwargs: Any) -> Environment:
    """Makes `num_envs` parallel environments.

    "catch" and the families are tensors on `device`; any other name is an id of Gymnasium.

    `kwargs` go to `Catch` (rows, columns), to the family (split, level_seed, and what it takes itself) or to
    `make_gymnasium` (vectorization_mode, and what the environment takes).
    """
    if name == "catch":
        unknown = sorted(set(kwargs) - {"rows", "columns"})
        if unknown:
            raise ValueError(f"`catch` takes rows and columns, got {unknown[0]!r}.")
        return Catch(num_envs, device=device, **kwargs)
    if name in FAMILIES:
        return make_family(name, num_envs, device, kwargs)
    return make_gymnasium(name, num_envs, device=device, **kwargs)
