"""Agents that see images: time and memory of an update on random frames, and steps/s of training on an Atari game.

    python benchmarks/atari.py update --device cuda --presets atari-small atari-paper --bfloat16
    python benchmarks/atari.py loop --device cuda --presets atari-small --num-envs 10 30 --speeds captured
    python benchmarks/atari.py collect --device cuda           acting alone

The rule has Disco103's sizes and random weights. `update` also counts floating-point operations. A piece of `loop` is ten
rollouts with their updates; `--no-overlap` collects and learns one after the other.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import torch
from measure import Table, begin, measure, own_works, parser, run
from serve import Work
from torch.utils.flop_counter import FlopCounterMode

from disco_torch import Agent, DiscoUpdateRule, Learner, Rollout, TrainConfig
from disco_torch.kernels import SPEEDS
from disco_torch.runs import configure_process, resolve_device
from disco_torch.training import PRESETS
from disco_torch.training.recorded_update import Learning, RecordedUpdate
from disco_torch.training.session import TrainingSession
from disco_torch.types import tree_map
from disco_torch.weights import save_rule

FRAMES, NUM_ACTIONS = (4, 84, 84), 6
LOOPS = 10


def config_of(preset: str, bfloat16: bool) -> TrainConfig:
    config = PRESETS[preset][1]
    return dataclasses.replace(config, agent=dataclasses.replace(config.agent, bfloat16=bfloat16))


def random_rollout(rows: int, batch: int, device: str) -> Rollout:
    shape = rows, batch
    return Rollout(
        observations=torch.randint(256, (*shape, *FRAMES), dtype=torch.uint8, device=device),
        actions=torch.randint(NUM_ACTIONS, shape, device=device),
        rewards=torch.randn(shape, device=device),
        discounts=(torch.rand(shape, device=device) > 0.01).float(),
        behaviour_logits=torch.randn(*shape, NUM_ACTIONS, device=device),
    )


def make_work(speed: str, device: str, what: str, preset: str, bfloat16: bool, **changes: int | bool) -> Work:
    configure_process(resolve_device(device))
    torch.manual_seed(0)
    config = config_of(preset, bfloat16)
    if what == "update":
        return update_work(speed, device, config)
    with tempfile.TemporaryDirectory() as folder:
        save_rule(rule := Path(folder) / "random.safetensors", DiscoUpdateRule())
        run: dict[str, object] = {"rule": str(rule), "device": device, "speed": speed, "log_every": LOOPS, "steps": 10**9}
        run |= {"batch_size": 10**6} if what == "collect" else {}  # never enough of them to learn
        session = TrainingSession(dataclasses.replace(config, **run, **changes))  # type: ignore[arg-type]

    def work(i: int) -> None:
        while session.counters.updates == 0 and what == "loop":
            session.advance()
        for _ in range(LOOPS):
            session.advance()
        session.read_episodes()
        [float(value) for value in session.logs.values()]

    return work


def update_work(speed: str, device: str, config: TrainConfig) -> Work:
    """Updates of one life, on two batches in turn."""
    rule = DiscoUpdateRule().to(device)
    example = torch.zeros(FRAMES, dtype=torch.uint8)
    agent = Agent(example, NUM_ACTIONS, rule.outputs(NUM_ACTIONS), config.agent).to(device)
    learner = Learner(agent, rule, config.optimizer)
    rollouts = [random_rollout(config.rollout_length, config.batch_size, device) for _ in range(2)]
    rate, generator = torch.full((), 3e-4, device=device), torch.Generator(device)
    state = Learning(tree_map(lambda x: x.to(device), learner.init()))
    if speed == "plain":
        with FlopCounterMode(display=False) as counter:
            learner.update(state.learner, rollouts[0])
        print(f"{counter.get_total_flops() / 1e12:.3g} TFLOP an update", flush=True)
    recorded = RecordedUpdate(learner, None, None, SPEEDS[speed])

    def work(i: int) -> None:
        nonlocal state
        state, _ = recorded(state, rollouts[i % 2], rate, False, None, generator)

    return work


def main() -> None:
    options = parser(__doc__, repeats=5)
    options.add_argument("what", choices=("update", "loop", "collect"))
    options.add_argument("--presets", nargs="+", default=["atari-small"])
    options.add_argument("--bfloat16", action="store_true", help="compute the agent's matmuls in bfloat16, on a GPU")
    options.add_argument("--num-envs", type=int, nargs="+", default=[], help="games; with an update for each ten")
    options.add_argument("--no-overlap", action="store_true")
    args = options.parse_args()
    speeds = begin(args)
    table = Table(args.what, 40, "" if args.what == "update" else "steps/s")
    for preset in args.presets:
        config = config_of(preset, args.bfloat16)
        for num_envs in args.num_envs if args.what != "update" and args.num_envs else [config.num_envs]:
            setting = {"device": args.device, "what": args.what, "preset": preset, "bfloat16": args.bfloat16}
            if args.what != "update":
                updates = max(1, num_envs // 10) if args.num_envs else config.updates_per_rollout
                overlap = config.overlap and not args.no_overlap
                setting |= {"num_envs": num_envs, "updates_per_rollout": updates, "overlap": overlap}
            label = f"{preset}{', bf16' * args.bfloat16}" + (f", {num_envs} games" if args.what != "update" else "")
            steps = num_envs * config.rollout_length * LOOPS
            results = measure(own_works("atari", speeds, setting), args.repeats)
            table.add(label, results, per_run=0 if args.what == "update" else steps)


if __name__ == "__main__":
    run(main)
