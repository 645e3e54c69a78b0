"""`disco-torch plot`: learning curves of runs in one figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.analysis import Curve, plot_curves
from disco_torch.training.folder import RunFolder


@dataclass(frozen=True)
class Plot:
    """Plot learning curves. Runs that differ in the seed alone are one curve, their mean with its 95% interval."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of the runs to compare."""
    out: Path = Path("curves.png")
    """Image file to write."""

    def run(self) -> int:
        folders = [RunFolder.open(path) for path in self.runs]
        if not folders:
            raise ValueError("`runs` must name at least one run, got none.")
        groups: dict[str, list[Curve]] = {}
        for folder in folders:
            lines = [line for line in folder.read_metrics() if "return" in line]
            label = f"{folder.config.env}, {Path(folder.config.rule).stem}"
            variant = variant_of(folder, folders)
            curve = ([line["steps"] for line in lines], [line["return"] for line in lines])
            groups.setdefault(f"{label}{variant}", []).append(curve)
        plot_curves(groups, self.out)
        number = "1 run" if len(folders) == 1 else f"{len(folders)} runs"
        Console().print(f"{number} in {self.out}", highlight=False, soft_wrap=True)
        return 0


UNIMPORTANT = ("seed", "name", "runs", "device", "log_every", "checkpoint_every", "keep_checkpoints", "steps")


def variant_of(folder: RunFolder, folders: list[RunFolder]) -> str:
    """The settings, seed and names aside, in which runs of the same environment and rule differ, as part of a label."""
    own = folder.plain_config()
    plain = [other.plain_config() for other in folders]
    alike = [other for other in plain if (other["env"], other["rule"]) == (own["env"], own["rule"])]
    differing = [key for key in own if key not in UNIMPORTANT and any(other[key] != own[key] for other in alike)]
    return "".join(f", {key} {own[key]}" for key in differing)
