"""The command line: one small file a command, each a dataclass whose fields are its options."""

from __future__ import annotations

import sys
from typing import Annotated

import gymnasium
import tyro

from disco_torch.cli.compare import Compare
from disco_torch.cli.demo import Demo
from disco_torch.cli.discover import Discover, DiscoverOptions
from disco_torch.cli.evaluate import Evaluate
from disco_torch.cli.imports import import_named
from disco_torch.cli.inspect import Inspect
from disco_torch.cli.plot import Plot
from disco_torch.cli.presets import take_preset
from disco_torch.cli.push import Push
from disco_torch.cli.report import Report
from disco_torch.cli.rules import Rules
from disco_torch.cli.seeds import run_seeds
from disco_torch.cli.train import Train
from disco_torch.cli.verify import Verify
from disco_torch.envs import EnvironmentFailure
from disco_torch.runs import ProcessLost, RunDiverged
from disco_torch.training import TrainConfig

MISTAKES = (ValueError, OSError, ImportError, gymnasium.error.Error, EnvironmentFailure, RunDiverged, ProcessLost)
"""Errors that are printed as one line, without a traceback."""


Command = Train | Discover | Evaluate | Compare | Plot | Report | Inspect | Push | Demo | Rules | Verify
DESCRIPTION = "Reinforcement learning whose update rule was itself learned. `disco-torch --version` prints the version."


def parse(args: list[str]) -> Command:
    """The command that the arguments stand for; one that cannot be parsed ends the process with status 2."""
    import_named(args)
    preset, args = take_preset(args)
    train, discover = Train(), Discover()
    if isinstance(preset, TrainConfig):
        train = Train(config=preset)
    else:
        discover = Discover(options=DiscoverOptions.of(preset))
    commands = (
        Annotated[Train, tyro.conf.subcommand("train", default=train)]
        | Annotated[Discover, tyro.conf.subcommand("discover", default=discover)]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Compare, tyro.conf.subcommand("compare")]
        | Annotated[Plot, tyro.conf.subcommand("plot")]
        | Annotated[Report, tyro.conf.subcommand("report")]
        | Annotated[Inspect, tyro.conf.subcommand("inspect")]
        | Annotated[Push, tyro.conf.subcommand("push")]
        | Annotated[Demo, tyro.conf.subcommand("demo")]
        | Annotated[Rules, tyro.conf.subcommand("rules")]
        | Annotated[Verify, tyro.conf.subcommand("verify")]
    )
    command: Command = tyro.cli(commands, prog="disco-torch", description=DESCRIPTION, args=args)
    return command


def main(args: list[str] | None = None) -> int:
    """Runs one command and returns its exit status; a mistake of the caller is one line, not a traceback."""
    args = sys.argv[1:] if args is None else args
    if args[:1] == ["--version"]:
        print(f"disco-torch {sys.modules[__name__.partition('.')[0]].__version__}")
        return 0
    try:
        command = parse(args)
        if isinstance(command, Train) and command.seeds:
            return run_seeds(command, args)
        return command.run()
    except KeyboardInterrupt:
        print("disco-torch: interrupted", file=sys.stderr)
        return 130
    except MISTAKES as error:
        print(f"disco-torch: {error}", file=sys.stderr)
        return 2
