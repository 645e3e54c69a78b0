"""README's figure: learning curves of the embedded rule, the default and Stable-Baselines3's PPO on six tasks of the suite.

python benchmarks/readme_figure.py --runs benchmarks/suite_results.json --out docs/suite.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from disco_torch.analysis.plots import draw_group, pyplot, style_axes
from disco_torch.analysis.records import RANDOM, RunRecord, read_records
from disco_torch.training.defaults import DEFAULT_RULE

PEERS = Path(__file__).with_name("peer_results.json")
TASKS = ("CartPole", "Acrobot", "MountainCar", "FrozenLake 8x8", "CliffWalking", "Catch 8x8")
SHOWN = {
    "birch": ("disco-torch, discovered (birch)", "C2"),
    DEFAULT_RULE: (f"disco-torch, default ({DEFAULT_RULE})", "C0"),
    "sb3-ppo": ("Stable-Baselines3's PPO", "C1"),
}
FLOOR = {"CliffWalking": -1000.0}
"""Lowest return that is shown, where first episodes would hide the rest."""


def draw(records: Sequence[RunRecord], path: Path) -> None:
    """A panel for each task, with a mean and a 95% interval over seeds for each rule, and one legend below."""
    figure, grid = pyplot().subplots(2, 3, figsize=(11, 6), dpi=120)
    for axes, task in zip(grid.flat, TASKS, strict=True):
        own = [record for record in records if record.task == task]
        for rule, (label, color) in SHOWN.items():
            draw_group(axes, label, [record.curve for record in own if record.rule == rule], color)
        uniform = [record.score for record in own if record.rule == RANDOM]
        axes.axhline(sum(uniform) / len(uniform), color="grey", linewidth=0.8, label="uniform policy")
        axes.set(xlabel="environment steps", ylabel="episode return", title=task)
        axes.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k")
        if task in FLOOR:
            axes.set_ylim(bottom=FLOOR[task], top=50)
        style_axes(axes, legend=False)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, frameon=False)
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path(__file__).with_name("suite_results.json"))
    parser.add_argument("--out", type=Path, required=True, help="PNG file to write")
    args = parser.parse_args()
    draw([*read_records(args.runs), *read_records(PEERS)], args.out)


if __name__ == "__main__":
    main()
