"""`disco-torch plot`: learning curves of runs in one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.analysis import Curve, plot_curve_panels
from disco_torch.runs.folder import FREE_SETTINGS
from disco_torch.training.folder import RunFolder
from disco_torch.weights.configuration import flat_config


@dataclass(frozen=True)
class Plot:
    """Plot learning curves, with a panel for each environment.

    Runs that differ in the seed alone are one curve, their mean with its 95% interval.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of the runs to compare."""
    out: Path = Path("curves.png")
    """Image file to write."""

    def run(self) -> int:
        folders = [RunFolder.open(path) for path in self.runs]
        if not folders:
            raise ValueError("`runs` must name at least one run, got none.")
        curves = {folder.path: curve_of(folder) for folder in folders}
        empty = [folder for folder in folders if not curves[folder.path][0]]
        drawn = [folder for folder in folders if folder not in empty]
        panels: dict[str, dict[str, list[Curve]]] = {}
        for folder, (panel, label) in zip(drawn, labels(drawn), strict=True):
            panels.setdefault(panel, {}).setdefault(label, []).append(curves[folder.path])
        console = Console()
        for folder in empty:
            say = f"{folder.path} is left out: no episode has ended in it before a line of metrics"
            console.print(say, highlight=False, soft_wrap=True, markup=False)
        if not drawn:
            raise ValueError("`runs` must name at least one run with a return in its metrics, got none.")
        plot_curve_panels(panels, self.out)
        number = "1 run" if len(drawn) == 1 else f"{len(drawn)} runs"
        console.print(f"{number} in {self.out}", highlight=False, soft_wrap=True, markup=False)
        return 0


def curve_of(folder: RunFolder) -> Curve:
    lines = [line for line in folder.read_metrics() if "return" in line]
    return [line["steps"] for line in lines], [line["return"] for line in lines]


def labels(folders: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """For each run its panel, the environment, and its label there: the rule, and the settings in which runs differ.

    Two runs have the same label if they differ in nothing but the seed and what does not change what is computed.
    """
    plain = [folder.plain_config() for folder in folders]
    settings = [{key: leaf for key, leaf in flat_config(own).items() if _matters(key)} for own in plain]
    panels = [" ".join([own["env"], *(f"{key} {value}" for key, value in own["env_args"].items())]) for own in plain]
    rules = [_rule_names([own["rule"] for own in plain])[own["rule"]] for own in plain]
    named = []
    for i, own in enumerate(settings):
        alike = [settings[j] for j in range(len(folders)) if (panels[j], rules[j]) == (panels[i], rules[i])]
        keys = dict.fromkeys(key for other in alike for key in other)
        differing = [key for key in keys if any(other.get(key) != own.get(key) for other in alike)]
        shown = [f"{key.removeprefix('config.')} {own.get(key, 'default')}" for key in differing]
        named.append((panels[i], ", ".join([rules[i], *shown])))
    return named


def _matters(key: str) -> bool:
    """Whether a setting changes what is computed; the environment and the rule are named anyway."""
    setting = key.split(".")[1]
    return setting not in ("seed", "env", "env_args", "rule", *FREE_SETTINGS)


def _rule_names(rules: Sequence[str]) -> dict[str, str]:
    """A short name for each rule: of a file its name alone, unless two files have the same."""
    stems = {rule: Path(rule).stem for rule in rules}
    return {rule: stem if list(stems.values()).count(stem) == 1 else rule for rule, stem in stems.items()}
