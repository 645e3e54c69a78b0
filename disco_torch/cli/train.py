"""`disco-torch train`: an agent for an environment, with a rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.cli.imports import Imports, import_options
from disco_torch.cli.presets import check_settings_of_resumed, describe_presets
from disco_torch.envs.registered import modules_to_import
from disco_torch.runs import is_first_process
from disco_torch.training import PRESETS, TrainConfig, TrainResult, train
from disco_torch.training.folder import RunFolder
from disco_torch.training.settings import MAY_CHANGE


@dataclass(frozen=True)
class Train:
    """Train an agent, with settings from a preset and changes to them.

    Presets: {presets}.

    On several GPUs: `torchrun --nproc-per-node N -m disco_torch train ...`.
    """

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = next(iter(PRESETS))
    """Named settings to start from, in place of those of the rule; the other options change them."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)
    """All settings of the run."""
    resume: Path | None = None
    """Folder of a run to resume, on any number of processes. Of the other options only --steps, to lengthen it,
    --device, --replay-device, --speed and --target-return can be given."""
    seeds: str = ""
    """Several runs that differ in the seed, such as `0-4` or `0,3,5`, in processes side by side; each has a folder of its
    own, and one summary follows with the mean and its 95% interval."""
    jobs: int = 0
    """Number of runs side by side with --seeds; 0 for as many as there are cores."""
    imports: Imports = ()
    """Module to import first, such as one that registers environments or rules; may be given several times."""

    def run(self) -> int:
        result = self.train()
        if is_first_process():
            config = RunFolder.open(result.folder).config
            named = modules_to_import((config.objects.env, *config.wrappers))
            report(result, list(dict.fromkeys([*self.imports, *named])))
        return 0

    def train(self) -> TrainResult:
        if self.resume is not None:
            own = RunFolder.open(self.resume).config
            check_settings_of_resumed(self.config, own, "steps", may_change=MAY_CHANGE)
        return train(self.config, resume=self.resume)


def report(result: TrainResult, imports: Sequence[str] = ()) -> None:
    """Prints how a run ended and what to do next, with the modules that this needs."""
    lines = [f"mean return of the last episodes: {result.final_return:.4g}"]
    if math.isnan(result.final_return):
        lines = ["no episode has ended in training"]
    options = import_options(imports)
    if not math.isnan(result.best_return):
        lines.append(f"best evaluation: {result.best_return:.4g}, in {result.folder / 'checkpoints' / 'best.pt'}")
    if result.stopped and result.stopped_because:
        lines.append(f"stopped: {result.stopped_because}; evaluate it with `disco-torch evaluate {result.folder}{options}`")
    elif result.stopped:
        lines.append(f"stopped; resume with `disco-torch train --resume {result.folder}{options}`")
    else:
        lines.append(f"done; evaluate it with `disco-torch evaluate {result.folder}{options}`")
    console = Console()
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


assert Train.__doc__ is not None
Train.__doc__ = Train.__doc__.format(presets=describe_presets(PRESETS))
