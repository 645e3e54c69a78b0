"""`disco-torch train`: an agent for an environment, with a rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.cli.imports import Imports
from disco_torch.cli.presets import check_settings_of_resumed, describe_presets
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
    """Folder of a run to resume. Of the other options only --steps, to lengthen it, --device and --speed can be given."""
    imports: Imports = ()
    """Module to import first, such as one that registers environments or rules; may be given several times."""

    def run(self) -> int:
        if self.resume is not None:
            own = RunFolder.open(self.resume).config
            check_settings_of_resumed(self.config, own, "steps", may_change=("device", "speed"))
        result = train(self.config, resume=self.resume)
        console = Console()
        console.print(f"mean return of the last episodes: {result.final_return:.4g}", highlight=False, soft_wrap=True)
        if result.stopped:
            console.print(
                f"stopped; resume with `disco-torch train --resume {result.folder}`", highlight=False, soft_wrap=True
            )
        else:
            console.print(f"done; evaluate it with `disco-torch evaluate {result.folder}`", highlight=False, soft_wrap=True)
        return 0


assert Train.__doc__ is not None
Train.__doc__ = Train.__doc__.format(presets=describe_presets(PRESETS))
