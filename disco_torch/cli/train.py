"""`disco-torch train`: an agent for an environment, with a rule."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.training import PRESETS, TrainConfig, train
from disco_torch.training.folder import RunFolder


@dataclass(frozen=True)
class Train:
    """Train an agent, with settings from a preset and changes to them.

    Presets, given first as `--preset NAME`: {presets}.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)
    """All settings of the run."""
    resume: Path | None = None
    """The folder of a run to go on with; besides it only --steps, to lengthen it, and --device can be given."""

    def run(self) -> int:
        if self.resume is not None:
            check_only_steps(self.config, RunFolder.open(self.resume).config)
        result = train(self.config, resume=self.resume)
        console = Console()
        console.print(f"mean return of the last episodes: {result.final_return:.4g}", highlight=False, soft_wrap=True)
        if result.stopped:
            console.print(
                f"stopped; go on with `disco-torch train --resume {result.folder}`", highlight=False, soft_wrap=True
            )
        else:
            console.print(f"done; look at it with `disco-torch evaluate {result.folder}`", highlight=False, soft_wrap=True)
        return 0


assert Train.__doc__ is not None
Train.__doc__ = Train.__doc__.format(presets="; ".join(f"{name} ({what})" for name, (what, _) in PRESETS.items()))


def take_preset(args: list[str]) -> tuple[TrainConfig, list[str]]:
    """Removes `--preset NAME` from the arguments and returns the settings it stands for and the rest.

    With `--resume RUN` they are the run's own, so that its number of steps grows only where `--steps` says so.
    """
    name, rest, waiting = "default", [], False
    for arg in args:
        if waiting:
            name, waiting = arg, False
        elif arg == "--preset":
            waiting = True
        elif arg.startswith("--preset="):
            name = arg.removeprefix("--preset=")
        else:
            rest.append(arg)
    if waiting or name not in PRESETS:
        raise ValueError(f"`--preset` must be one of {sorted(PRESETS)}, got {'nothing' if waiting else repr(name)}.")
    for arg, following in pairwise([*rest, ""]):
        if arg == "--resume" or arg.startswith("--resume="):
            return RunFolder.open(Path(arg.partition("=")[2] or following)).config, rest
    return PRESETS[name][1], rest


def check_only_steps(given: TrainConfig, own: TrainConfig) -> None:
    """Raises where a run that is resumed is given other settings than its own."""
    for setting in fields(TrainConfig):
        old, new = getattr(own, setting.name), getattr(given, setting.name)
        if setting.name not in ("steps", "device") and old != new:
            option = setting.name.replace("_", "-")
            raise ValueError(
                f"`--{option}` must be the run's own when it is resumed, {old!r}, got {new!r}; begin another run for it."
            )
    if given.steps < own.steps:
        raise ValueError(f"`--steps` can only lengthen a run that is resumed, beyond {own.steps}, got {given.steps}.")
