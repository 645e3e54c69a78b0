"""Environment steps a second on 8x8 Catch: an agent of the default size acts for 29 rows in parallel
environments.

    python benchmarks/acting.py --batches 2 64 --peer PYTHON --peer-path REFERENCE
    python benchmarks/acting.py --grow               1 to 4096 environments

The peer is the JAX reference in its own Catch, jitted.
"""

from __future__ import annotations

import torch
from measure import Table, add_peer, begin, measure, own_works, parser, peer_works, run
from serve import Work

from disco_torch import Agent, DiscoUpdateRule
from disco_torch.data import Collector, init_actor
from disco_torch.envs import make_env
from disco_torch.kernels import SPEEDS

ROWS = 29
GROWTH = [1, 4, 16, 64, 256, 1024, 4096]


def make_work(speed: str, device: str, batch: int, rows: int) -> Work:
    env = make_env("catch", batch, device=device)
    agent = Agent(env.observation_example, env.num_actions, DiscoUpdateRule().outputs(env.num_actions)).to(device)
    generator = torch.Generator(device).manual_seed(0)
    lives = [agent.init(generator) for _ in range(3)]
    collect, actor = Collector(agent, env, SPEEDS[speed]), init_actor(agent, env, generator)

    def work(i: int) -> None:
        nonlocal actor
        _, actor, _ = collect(lives[i % 3], actor, rows, generator)

    return work


def main() -> None:
    options = parser(__doc__)
    add_peer(options)
    options.add_argument("--batches", type=int, nargs="+", default=[2, 64, 1024])
    options.add_argument("--grow", action="store_true")
    args = options.parse_args()
    speeds = begin(args)
    table = Table("environments", 12, "steps/s")
    for batch in GROWTH if args.grow else args.batches:
        setting = {"device": args.device, "batch": batch, "rows": ROWS}
        works = own_works("acting", speeds, setting) | peer_works(args, "peer_acting.py", setting)
        table.add(str(batch), measure(works, args.repeats), per_run=ROWS * batch)


if __name__ == "__main__":
    run(main)
