"""Adding to and sampling from the replay: trajectories of 29 rows of 8x8 boards.

    python benchmarks/replay.py --device cuda        2 added and 64 drawn at a time, of 1024
    python benchmarks/replay.py --grow               more of them stored, added, drawn, and longer ones

Memory is that of the first run, without the ring. `mixed` is a sample a tenth of which are the newest trajectories.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from measure import Table, begin, measure, own_works, parser, run
from serve import Work

from disco_torch import Rollout
from disco_torch.data import Replay

A = 3


@dataclass(frozen=True)
class Size:
    capacity: int = 1024
    rows: int = 29
    added: int = 2
    drawn: int = 64

    @property
    def label(self) -> str:
        return f"{self.capacity} of {self.rows} rows, {self.added} in, {self.drawn} out"


GROWTH = [
    Size(),
    *(Size(capacity=capacity) for capacity in (8192, 65536)),
    *(Size(rows=rows) for rows in (8, 116)),
    *(Size(added=added) for added in (64, 256)),
    *(Size(drawn=drawn) for drawn in (256, 1024)),
]


def random_rollout(size: Size, batch: int, device: str) -> Rollout:
    shape = (size.rows, batch)
    return Rollout(
        observations=torch.rand(*shape, 8, 8, device=device),
        actions=torch.randint(A, shape, device=device),
        rewards=torch.randn(shape, device=device),
        discounts=torch.ones(shape, device=device),
        behaviour_logits=torch.randn(*shape, A, device=device),
    )


def make_work(speed: str, device: str, **sizes: Any) -> Work:
    """`speed` is what is done: add, sample or mixed."""
    size = Size(**sizes)
    replay = Replay(size.capacity, size.rows, torch.zeros(8, 8), A, device)
    rollouts = [random_rollout(size, size.added, device) for _ in range(3)]
    filling = random_rollout(size, min(size.capacity, 1024), device)
    while len(replay) < size.capacity:
        replay.add(filling)
    generator = torch.Generator(device).manual_seed(0)
    if speed == "add":
        return lambda i: replay.add(rollouts[i % 3])
    num_fresh = size.drawn // 10 if speed == "mixed" else 0
    return lambda i: replay.sample(size.drawn, generator, num_fresh)


def main() -> None:
    options = parser(__doc__, repeats=99)
    options.add_argument("--grow", action="store_true")
    args = options.parse_args()
    begin(args)
    table = Table("replay", max(len(size.label) for size in GROWTH), "trajectories/s", ratios=())
    for size in GROWTH if args.grow else GROWTH[:1]:
        works = own_works("replay", ("add", "sample", "mixed"), {"device": args.device, **dataclasses.asdict(size)})
        for name, result in measure(works, args.repeats).items():
            table.add(size.label, {name: result}, per_run=size.added if name == "add" else size.drawn)


if __name__ == "__main__":
    run(main)
