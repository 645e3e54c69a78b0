"""Time and memory of one update of an agent with a rule of Disco103's sizes, on batches that are there already.

    python benchmarks/learner.py                     the two sizes that are compared
    python benchmarks/learner.py --sizes small --peer /path/to/python --peer-path /path/to/reference
    python benchmarks/learner.py --grow              how it grows with T, B, A and the agent

The peer is the JAX reference, jitted; its updates take turns with these.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from measure import COLUMNS, Measured, Peer, Work, add_peer, begin, measure, parser, print_table, rows_of

from disco_torch import AdamConfig, Agent, AgentConfig, DiscoUpdateRule, Learner, Rollout
from disco_torch.kernels import SPEEDS, Recorded
from disco_torch.types import tree_map


@dataclass(frozen=True)
class Size:
    T: int = 29
    B: int = 64
    A: int = 3
    observation: int = 64
    dense: tuple[int, ...] = (512, 512)
    lstm_size: int = 128
    head_mlp_hiddens: tuple[int, ...] = (128,)

    @property
    def label(self) -> str:
        agent = f"{'x'.join(map(str, self.dense))}, LSTM {self.lstm_size}"
        return f"T {self.T}, B {self.B}, A {self.A}, obs {self.observation}, {agent}"


SMALL = Size()
LARGE = Size(B=96, A=18, observation=512, dense=(768, 768), lstm_size=1024, head_mlp_hiddens=(1024,))
GROWTH = [
    SMALL,
    *(dataclasses.replace(SMALL, T=T) for T in (8, 58, 116)),
    *(dataclasses.replace(SMALL, B=B) for B in (16, 128, 256)),
    *(dataclasses.replace(SMALL, A=A) for A in (6, 18)),
    dataclasses.replace(SMALL, dense=(128, 128), lstm_size=64, head_mlp_hiddens=(64,)),
    dataclasses.replace(SMALL, dense=(1024, 1024), lstm_size=256, head_mlp_hiddens=(256,)),
]


def random_rollout(size: Size, device: str) -> Rollout:
    rows = (size.T + 1, size.B)
    return Rollout(
        observations=torch.rand(*rows, size.observation, device=device),
        actions=torch.randint(size.A, rows, device=device),
        rewards=torch.randn(rows, device=device),
        discounts=(torch.rand(rows, device=device) > 0.1).float(),
        behaviour_logits=torch.randn(*rows, size.A, device=device),
    )


def make_work(size: Size, speed: str, device: str) -> Work:
    """Updates of one life, on three batches in turn."""
    torch.manual_seed(0)
    rule = DiscoUpdateRule().to(device)
    sizes = AgentConfig(size.dense, size.lstm_size, size.head_mlp_hiddens)
    agent = Agent(torch.zeros(size.observation), size.A, rule.outputs(size.A), sizes).to(device)
    learner = Learner(agent, rule, AdamConfig(3e-4))
    state = tree_map(lambda x: x.to(device), learner.init())
    rollouts = [random_rollout(size, device) for _ in range(3)]
    rate = torch.full((), 3e-4, device=device)

    def update(state, rollout, rate):  # type: ignore[no-untyped-def]
        after, logs = learner.update(state, rollout, learning_rate=rate)
        return after, logs["total_loss"]

    recorded = Recorded(update, SPEEDS[speed], "the update")

    def work(i: int) -> None:
        nonlocal state
        state, _ = recorded(state, rollouts[i % 3], rate)

    return work


def main() -> None:
    options = parser(__doc__)
    add_peer(options)
    options.add_argument("--sizes", nargs="+", choices=("small", "large"), default=["small", "large"])
    options.add_argument("--grow", action="store_true")
    args = options.parse_args()
    speeds = begin(args)
    sizes = GROWTH if args.grow else [{"small": SMALL, "large": LARGE}[name] for name in args.sizes]
    rows = []
    for size in sizes:
        works = {speed: make_work(size, speed, args.device) for speed in speeds}
        if args.peer:
            works["peer"] = Peer(args.peer, args.peer_path, "peer_learner.py", dataclasses.asdict(size))
        results: dict[str, Measured] = measure(works, args.repeats, args.device)
        rows += rows_of([size.label], results)
        if args.peer:
            works["peer"].close()  # type: ignore[attr-defined]
    print_table(("learner update", *COLUMNS), rows)


if __name__ == "__main__":
    main()
