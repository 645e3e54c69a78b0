"""Time and memory of one update of an agent with a rule of Disco103's sizes, on batches in memory.

    python benchmarks/learner.py                     the two sizes that are compared
    python benchmarks/learner.py --sizes small --peer PYTHON --peer-path REFERENCE --port PYTHON
    python benchmarks/learner.py --device cuda --sizes large --bfloat16
    python benchmarks/learner.py --grow              how it grows with T, B, A and the agent

The peer, `jax`, is the JAX reference, jitted. `port` is disco-torch 0.4.0, another port to PyTorch, in an environment of its
own, as it has this package's name; with an agent such as its project's example, and with a faster one. Their updates take
turns with these.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from measure import HERE, Table, Worker, add_peer, begin, measure, own_works, parser, peer_works, run
from serve import Work

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


def make_work(speed: str, device: str, bfloat16: bool = False, **sizes: Any) -> Work:
    """Updates of one life, on three batches in turn."""
    torch.manual_seed(0)
    size = Size(**sizes)
    rule = DiscoUpdateRule().to(device)
    network = AgentConfig(size.dense, size.lstm_size, size.head_mlp_hiddens, bfloat16=bfloat16)
    agent = Agent(torch.zeros(size.observation), size.A, rule.outputs(size.A), network).to(device)
    learner = Learner(agent, rule, AdamConfig(3e-4))
    state = tree_map(lambda x: x.to(device), learner.init())
    rollouts = [random_rollout(size, device) for _ in range(3)]
    rate = torch.full((), 3e-4, device=device)

    def update(state, rollout, rate):  # type: ignore[no-untyped-def]
        after, logs = learner.update(state, rollout, learning_rate=rate)
        return after, logs["total_loss"]

    recorded = Recorded(update, SPEEDS[speed], "the update", carry=True, by_parameter=True)

    def work(i: int) -> None:
        nonlocal state
        state, _ = recorded(state, rollouts[i % 3], rate)

    return work


def main() -> None:
    options = parser(__doc__)
    add_peer(options)
    options.add_argument("--port", default="", help="Python interpreter of an environment with disco-torch 0.4.0")
    options.add_argument("--sizes", nargs="+", choices=("small", "large"), default=["small", "large"])
    options.add_argument("--grow", action="store_true")
    options.add_argument("--bfloat16", action="store_true", help="compute the agent's matmuls in bfloat16, on a GPU")
    args = options.parse_args()
    speeds = begin(args)
    table = Table("learner update", max(len(size.label) for size in (LARGE, *GROWTH)), ratios=("plain", "jax", "port"))
    for size in GROWTH if args.grow else [{"small": SMALL, "large": LARGE}[name] for name in args.sizes]:
        setting = {"device": args.device, **dataclasses.asdict(size)}
        works = own_works("learner", speeds, {**setting, "bfloat16": args.bfloat16}) | peer_works(
            args, "peer_learner.py", setting
        )
        for name in ("port", "port batched") if args.port else ():
            port_setting = {**setting, "batched": name == "port batched"}
            works[name] = Worker([args.port, str(HERE / "port_learner.py")], port_setting, PYTHONPATH="")
        table.add(size.label, measure(works, args.repeats))


if __name__ == "__main__":
    run(main)
