"""Loops a second of training on 8x8 Catch: collect 29 rows in 2 copies, add them to the replay, and learn from 64.

    python benchmarks/training_loop.py --device cuda --speeds captured compiled

One piece of work is as many loops as lie between two lines of metrics, logs and finished episodes read at its end as a run
does. The rule has Disco103's sizes and random weights unless one is named.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from measure import COLUMNS, Work, begin, measure, parser, print_table, rows_of

from disco_torch import DiscoUpdateRule
from disco_torch.training import PRESETS
from disco_torch.training.session import TrainingSession
from disco_torch.weights import save_rule


def make_work(rule: str, speed: str, num_envs: int, device: str, loops: int) -> Work:
    config = PRESETS["catch"][1]
    changes = {"rule": rule, "device": device, "speed": speed, "num_envs": num_envs, "log_every": loops, "steps": 10**9}
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
    options.add_argument("--rule", default="")
    options.add_argument("--num-envs", type=int, nargs="+", default=[2])
    options.add_argument("--loops", type=int, default=20)
    args = options.parse_args()
    speeds, rows = begin(args), []
    with tempfile.TemporaryDirectory() as folder:
        rule = args.rule
        if not rule:
            rule = str(Path(folder) / "random.safetensors")
            save_rule(rule, DiscoUpdateRule())
        for num_envs in args.num_envs:
            works = {speed: make_work(rule, speed, num_envs, args.device, args.loops) for speed in speeds}
            rows += rows_of([str(num_envs)], measure(works, args.repeats, args.device), per_run=args.loops)
    print_table(("copies", *COLUMNS, "loops/s"), rows)


if __name__ == "__main__":
    main()
