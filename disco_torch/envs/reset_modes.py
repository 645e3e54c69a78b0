"""When a vector environment begins anew in a copy whose episode ended, by one name for each way."""

from __future__ import annotations

from typing import Any, Literal, get_args

from gymnasium.vector import AutoresetMode, VectorEnv

ResetMode = Literal["same_step", "next_step", "disabled", "envpool"]
"""When a finished copy begins anew: with the step that ended it, with the next one, or never by itself."""
_CHOICES = ", ".join(map(repr, get_args(ResetMode)))


def reset_mode_of(env: VectorEnv[Any, Any, Any], given: str | AutoresetMode | None) -> ResetMode:
    """The mode in which `env` begins anew, from what it says of itself and what the caller says."""
    own = (env.metadata or {}).get("autoreset_mode")
    if given is None and own is None:
        raise ValueError(
            f"`autoreset_mode` must be given, since env.metadata['autoreset_mode'] is missing; "
            f"choose how finished copies begin anew from {_CHOICES}."
        )
    modes = [_named_mode(mode) for mode in (given, own) if mode is not None]
    if len(modes) == 2 and modes[0].replace("envpool", "next_step") != modes[1].replace("envpool", "next_step"):
        raise ValueError(
            f"`autoreset_mode` must agree with env.metadata['autoreset_mode'], {modes[1]!r}, got {modes[0]!r}; "
            "leave it out, or make the environment in that mode."
        )
    return modes[0]


def _named_mode(mode: str | AutoresetMode) -> ResetMode:
    text = mode.value if isinstance(mode, AutoresetMode) else str(mode)
    for choice in get_args(ResetMode):
        if text.lower().replace("_", "") == choice.replace("_", ""):
            return choice
    raise ValueError(f"`autoreset_mode` must be one of {_CHOICES}, got {text!r}.")
