"""Updates of a rule in discovery: the released notebook's work, with more inner updates and larger populations.

    python benchmarks/meta_update.py --device cuda --work 2x2 2x20 64x20

`PxN` is P agents and N inner updates. Memory and warm-up are those of the first meta-update. `meta_gradient.py` compares the
two ways to differentiate through the updates.
"""

from __future__ import annotations

import dataclasses

from measure import COLUMNS, Work, begin, measure, parser, print_table, rows_of

from disco_torch.discovery import PRESETS, DiscoverConfig, DiscoverySession


def config_of(agents: int, updates: int, device: str, speed: str) -> DiscoverConfig:
    config = PRESETS["notebook"][1]
    group = config.groups[0]
    habitats = (dataclasses.replace(group.habitats[0], agents=agents),)
    groups = (dataclasses.replace(group, habitats=habitats),)
    return dataclasses.replace(config, groups=groups, window=updates, device=device, speed=speed)  # type: ignore[arg-type]


def make_work(agents: int, updates: int, device: str, speed: str) -> Work:
    session = DiscoverySession(config_of(agents, updates, device, speed))
    return lambda i: session.advance()


def main() -> None:
    options = parser(__doc__, repeats=5)
    options.add_argument("--work", nargs="+", default=["2x2"], metavar="PxN")
    args = options.parse_args()
    speeds, rows = begin(args), []
    for name in args.work:
        agents, updates = map(int, name.split("x"))
        works = {speed: make_work(agents, updates, args.device, speed) for speed in speeds}
        results = measure(works, args.repeats, args.device)
        rows += rows_of([f"{agents} agents, {updates} inner updates"], results, per_run=agents * updates)
    print_table(("meta-update", *COLUMNS, "agent-updates/s"), rows)


if __name__ == "__main__":
    main()
