"""Environment steps a second on Catch: an agent of the default size acts for 29 rows in 1 to 4096 copies.

python benchmarks/acting.py --device cuda --batches 1 64 4096
"""

from __future__ import annotations

import torch
from measure import COLUMNS, Work, begin, measure, parser, print_table, rows_of

from disco_torch import Agent, DiscoUpdateRule
from disco_torch.data import Collector, init_actor
from disco_torch.envs import make_env
from disco_torch.kernels import SPEEDS

ROWS = 29


def make_work(batch: int, speed: str, device: str) -> Work:
    env = make_env("catch", batch, device=device)
    agent = Agent(env.observation_example, env.num_actions, DiscoUpdateRule().outputs(env.num_actions)).to(device)
    generator = torch.Generator(device).manual_seed(0)
    lives = [agent.init(generator) for _ in range(3)]
    collect, actor = Collector(agent, env, SPEEDS[speed]), init_actor(agent, env, generator)

    def work(i: int) -> None:
        nonlocal actor
        _, actor, _ = collect(lives[i % 3], actor, ROWS, generator)

    return work


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--batches", type=int, nargs="+", default=[1, 2, 16, 64, 256, 1024, 4096])
    args = options.parse_args()
    speeds, rows = begin(args), []
    for batch in args.batches:
        results = measure({speed: make_work(batch, speed, args.device) for speed in speeds}, args.repeats, args.device)
        rows += rows_of([str(batch)], results, per_run=ROWS * batch)
    print_table(("copies", *COLUMNS, "steps/s"), rows)


if __name__ == "__main__":
    main()
