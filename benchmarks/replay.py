"""Adding to and sampling from the replay: trajectories of 29 rows of 8x8 boards, 2 added and 64 drawn at a time.

python benchmarks/replay.py --device cuda
"""

from __future__ import annotations

import torch
from measure import Work, begin, measure, parser, print_table

from disco_torch import Rollout
from disco_torch.data import Replay

ROWS, A = 29, 3


def random_rollout(batch: int, device: str) -> Rollout:
    shape = (ROWS, batch)
    return Rollout(
        observations=torch.rand(*shape, 8, 8, device=device),
        actions=torch.randint(A, shape, device=device),
        rewards=torch.randn(shape, device=device),
        discounts=torch.ones(shape, device=device),
        behaviour_logits=torch.randn(*shape, A, device=device),
    )


def make_works(capacity: int, added: int, drawn: int, device: str) -> dict[str, Work]:
    replay = Replay(capacity, ROWS, torch.zeros(8, 8), A, device)
    rollouts, full = [random_rollout(added, device) for _ in range(3)], random_rollout(min(capacity, 1024), device)
    while len(replay) < capacity:
        replay.add(full)
    generator = torch.Generator(device).manual_seed(0)
    return {
        "add": lambda i: replay.add(rollouts[i % 3]),
        "sample": lambda i: replay.sample(drawn, generator),
        "sample, a tenth of it new": lambda i: replay.sample(drawn, generator, drawn // 10),
    }


def main() -> None:
    args = parser(__doc__, repeats=99).parse_args()
    begin(args)
    rows = []
    for capacity, added, drawn in ((1024, 2, 64), (65536, 2, 64), (1024, 64, 64), (1024, 256, 1024)):
        works = make_works(capacity, added, drawn, args.device)
        for name, result in measure(works, args.repeats, args.device).items():
            moved = added if name == "add" else drawn
            rows.append([capacity, added, drawn, name, 1e6 * result.seconds, moved / result.seconds])
    print_table(("capacity", "added", "drawn", "work", "us", "trajectories/s"), rows)


if __name__ == "__main__":
    main()
