"""When a vector environment resets an environment whose episode ended, under one name for each autoreset mode."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from disco_torch.envs.spaces import BadOutput

ResetMode = Literal["same_step", "next_step", "disabled", "envpool"]
"""When an environment is reset after its episode: with the step that ended it, with the next one, or never by itself."""
_CHOICES = ", ".join(map(repr, get_args(ResetMode)))


def reset_mode_of(env: VectorEnv[Any, Any, Any], given: str | AutoresetMode | None) -> tuple[ResetMode, bool]:
    """The autoreset mode of `env`, from what it says of itself and what the caller says, and whether that is certain.

    The instance is asked first. Its `metadata` may be a dictionary that all instances of a class share, and then holds the
    mode of whichever was made last (ale-py's does). The caller's word counts more than such a dictionary; neither is
    certain, and `check_mode` looks more closely.
    """
    own, is_shared = _own_mode(env)
    if given is None and own is None:
        raise ValueError(
            f"`autoreset_mode` must be given, since env.metadata['autoreset_mode'] is missing; "
            f"choose when environments are reset from {_CHOICES}."
        )
    modes = [_named_mode(mode) for mode in (given, own) if mode is not None]
    differ = len(modes) == 2 and modes[0].replace("envpool", "next_step") != modes[1].replace("envpool", "next_step")
    if differ and not is_shared:
        raise ValueError(
            f"`autoreset_mode` must agree with that of the environment itself, {modes[1]!r}, got {modes[0]!r}; "
            "leave it out, or make the environment in that mode."
        )
    return modes[0], own is not None and not is_shared


def _own_mode(env: Any) -> tuple[str | AutoresetMode | None, bool]:
    """What the environment says of its mode, and whether it says so in a dictionary of its class."""
    vector = env.unwrapped
    for instance in (env, vector):
        if (mode := getattr(instance, "autoreset_mode", None)) is not None:
            return mode, False
    is_shared = any(vars(kind).get("metadata") is vector.metadata for kind in type(vector).__mro__)
    return (env.metadata or {}).get("autoreset_mode"), is_shared


def check_mode(mode: ResetMode, infos: dict[str, Any], needs_final: np.ndarray) -> None:
    """Raises where a step shows that the environments are reset in another mode.

    Gymnasium hands over final observations in same_step alone.

    Args:
      mode: the mode that is assumed.
      infos: of a step.
      needs_final: [B] bool, which environments must have a final observation in same_step.
    """
    shows_final = infos.get("final_obs") is not None
    if mode == "same_step" and needs_final.any() and not shows_final:
        raise BadOutput(
            "info['final_obs'] must hold the last observation of an episode that ended, as in autoreset mode 'same_step'; "
            "if the environment is reset by the next step, give `autoreset_mode`",
            int(np.flatnonzero(needs_final)[0]),
        )
    if mode != "same_step" and shows_final:
        raise BadOutput(
            f"info['final_obs'] came in autoreset mode {mode!r}, but the environment is reset by the step that ends an "
            "episode; give `autoreset_mode='same_step'`"
        )


def _named_mode(mode: str | AutoresetMode) -> ResetMode:
    text = mode.value if isinstance(mode, AutoresetMode) else str(mode)
    for choice in get_args(ResetMode):
        if text.lower().replace("_", "") == choice.replace("_", ""):
            return choice
    raise ValueError(f"`autoreset_mode` must be one of {_CHOICES}, got {text!r}.")
