"""Updates of a rule in discovery: the released notebook's work, with more inner updates and larger populations.

    python benchmarks/meta_update.py --device cuda --work 2x2 2x20 64x20
    python benchmarks/meta_update.py --peer PYTHON --peer-path REFERENCE
    python benchmarks/meta_update.py --grow          how it grows with agents and inner updates

`PxN` is P agents and N inner updates; acting, validation and the rule's Adam step are part of it. Memory and warm-up are
those of the first meta-update. The peer is the JAX reference, jitted. `meta_gradient.py` compares the two ways to
differentiate through the updates.
"""

from __future__ import annotations

import dataclasses

from measure import Table, add_peer, begin, measure, own_works, parser, peer_works, run
from serve import Work

from disco_torch.discovery import PRESETS, DiscoverConfig, DiscoverySession
from disco_torch.runs import configure_process, resolve_device

GROWTH = ["2x2", "1x2", "4x2", "8x2", "16x2", "2x1", "2x5", "2x10", "2x20"]


def config_of(agents: int, updates: int, device: str, speed: str) -> DiscoverConfig:
    config = PRESETS["notebook"][1]
    group = config.groups[0]
    habitats = (dataclasses.replace(group.habitats[0], agents=agents),)
    groups = (dataclasses.replace(group, habitats=habitats),)
    return dataclasses.replace(config, groups=groups, window=updates, device=device, speed=speed)  # type: ignore[arg-type]


def make_work(speed: str, device: str, agents: int, updates: int) -> Work:
    configure_process(resolve_device(device))
    session = DiscoverySession(config_of(agents, updates, device, speed))
    return lambda i: session.advance()


def main() -> None:
    options = parser(__doc__, repeats=5)
    add_peer(options)
    options.add_argument("--work", nargs="+", default=["2x2"], metavar="PxN")
    options.add_argument("--grow", action="store_true")
    args = options.parse_args()
    speeds = begin(args)
    table = Table("meta-update", len("64 agents, 20 inner updates"), "agent-updates/s")
    for name in GROWTH if args.grow else args.work:
        agents, updates = map(int, name.split("x"))
        setting = {"device": args.device, "agents": agents, "updates": updates}
        works = own_works("meta_update", speeds, setting) | peer_works(args, "peer_meta_update.py", setting)
        results = measure(works, args.repeats)
        table.add(f"{agents} agents, {updates} inner updates", results, per_run=agents * updates)


if __name__ == "__main__":
    run(main)
