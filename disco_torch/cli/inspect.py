"""`disco-torch inspect`: a page that shows what is in a rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from disco_torch.cli.imports import Imports
from disco_torch.cli.seeds import say
from disco_torch.inspection import inspect_rule
from disco_torch.training.config import Setting


@dataclass(frozen=True)
class Inspect:
    """Look into a rule: what it reads, how far it looks, what its predictions mean, in words.

    Writes one HTML page, and beside it a folder of the same name with the figures as PNG and all numbers as JSON.
    """

    rule: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RULE")]
    """Name or file of the rule; `auto` is the default one."""
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run", metavar="RUN")] = None
    """Folder of a run that has learned with the rule; without one, an agent is trained first."""
    checkpoint: str = "newest"
    """Checkpoint of the run to look at: `newest`, `best` by the evaluations during training, or its number of rollouts."""
    env: str | None = None
    """Environment to train an agent in; defaults to `catch`."""
    env_args: dict[str, Setting] = field(default_factory=dict)
    """Arguments of the environment, such as `rows 5 columns 5`."""
    steps: int | None = None
    """Environment steps to train; defaults to those of the rule's settings."""
    seed: int = 0
    """Random seed of the agent, of the rollouts to look at and of the rule with random weights."""
    out: Path = Path("inspection.html")
    """Page to write, an .html file."""
    device: str = "cpu"
    """Device to compute on."""
    imports: Imports = ()
    """Module to import first, such as one that registers the environment; may be given several times."""

    def run(self) -> int:
        fields: dict[str, Any] = {"env_args": self.env_args} if self.env_args else {}
        if self.steps is not None:
            fields["steps"] = self.steps
        if self.run_folder is not None and (given := [name for name in ("env", *fields) if getattr(self, name) is not None]):
            option = given[0].replace("_", "-")
            raise ValueError(
                f"`--{option}` is for an agent that is trained here and cannot be given with `--run`; leave it out."
            )
        console = Console()
        inspect_rule(
            self.rule,
            run=self.run_folder,
            checkpoint=int(self.checkpoint) if self.checkpoint.isdecimal() else self.checkpoint,
            env=self.env,
            out=self.out,
            device=self.device,
            say=lambda line: say(console, line),
            seed=self.seed,
            **fields,
        )
        say(console, f"page in {self.out}, figures and numbers in {self.out.with_suffix('')}")
        return 0
