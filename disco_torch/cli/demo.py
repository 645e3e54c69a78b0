"""`disco-torch demo`: a first run, from nothing to a learned agent in a few minutes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rich.console import Console

from disco_torch.runs.sinks import Metrics
from disco_torch.training import PRESETS, train

BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Demo:
    """Train an agent to play Catch with the embedded rule, and show how it learned."""

    seed: int = 0
    """Random seed."""
    steps: int = 64_000
    """Environment steps to take; a quarter of the preset's 256,000."""

    def run(self) -> int:
        config = dataclasses.replace(PRESETS["catch-birch"][1], seed=self.seed, steps=self.steps)
        result = train(config)
        console = Console()
        console.print(f"caught  {curve(result.metrics)}", highlight=False, soft_wrap=True)
        console.print(
            f"the last episodes: {(result.final_return + 1) / 2:.0%} of the balls caught", highlight=False, soft_wrap=True
        )
        console.print(f"the learning curve: {result.folder / 'curve.png'}", highlight=False, soft_wrap=True)
        return 0


def curve(metrics: list[Metrics], width: int = 60) -> str:
    """The share of balls caught over the run, from 0 to 100%, in one line of text."""
    shares = [(line["interval_return"] + 1) / 2 for line in metrics if "interval_return" in line]
    picked = [shares[i * len(shares) // width] for i in range(width)] if len(shares) > width else shares
    return "".join(BLOCKS[round(share * (len(BLOCKS) - 1))] for share in picked)
