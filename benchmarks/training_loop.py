"""Loops a second of training on 8x8 Catch: collect 29 rows in 2 parallel environments, add them to
the replay, and learn from 64.

    python benchmarks/training_loop.py --device cuda --speeds captured compiled
    python benchmarks/training_loop.py --peer PYTHON --peer-path REFERENCE
    python benchmarks/training_loop.py --grow        more environments

One piece of work is as many loops as lie between two lines of metrics, logs and finished episodes read at its end as a run
does. The rule has Disco103's sizes and random weights unless one is named. The peer is the JAX reference in its own Catch.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from measure import Table, add_peer, begin, measure, own_works, parser, peer_works, run
from serve import Work

from disco_torch import DiscoUpdateRule
from disco_torch.runs import configure_process, resolve_device
from disco_torch.training import PRESETS
from disco_torch.training.session import TrainingSession
from disco_torch.weights import save_rule

GROWTH = [1, 2, 8, 32, 128, 512]


def make_work(speed: str, device: str, num_envs: int, loops: int, rule: str) -> Work:
    config = PRESETS["catch"][1]
    changes = {"rule": rule, "device": device, "speed": speed, "num_envs": num_envs, "log_every": loops, "steps": 10**9}
    configure_process(resolve_device(device))
    session = TrainingSession(dataclasses.replace(config, **changes))  # type: ignore[arg-type]

    def work(i: int) -> None:
        while session.counters.updates == 0:  # the replay is filled in the first run
            session.advance()
        for _ in range(loops):
            session.advance()
        session.read_episodes()
        [float(value) for value in session.logs.values()]

    return work


def main() -> None:
    options = parser(__doc__, repeats=5)
    add_peer(options)
    options.add_argument("--rule", default="")
    options.add_argument("--num-envs", type=int, nargs="+", default=[2])
    options.add_argument("--loops", type=int, default=20)
    options.add_argument("--grow", action="store_true")
    args = options.parse_args()
    speeds = begin(args)
    table = Table("environments", 12, "loops/s")
    with tempfile.TemporaryDirectory() as folder:
        rule = args.rule
        if not rule:
            rule = str(Path(folder) / "random.safetensors")
            save_rule(rule, DiscoUpdateRule())
        for num_envs in GROWTH if args.grow else args.num_envs:
            setting = {"device": args.device, "num_envs": num_envs, "loops": args.loops, "rule": rule}
            works = own_works("training_loop", speeds, setting) | peer_works(args, "peer_training_loop.py", setting)
            table.add(str(num_envs), measure(works, args.repeats), per_run=args.loops)


if __name__ == "__main__":
    run(main)
