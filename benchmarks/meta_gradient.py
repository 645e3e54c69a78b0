"""Time and memory of a meta-gradient, plain and mixed-mode, over the number of inner updates.

    python benchmarks/meta_gradient.py --device cuda --updates 2 5 10 20

The work is the released notebook's: 5x5 Catch observations, T 16, B 32, a torso of 512x512, an action model of 256, a rule
of Disco103's sizes with random weights; agents in turn (plain) or batched by vmap (mixed). Each line is measured in
its own process. Memory: on a GPU the peak that PyTorch allocated, on the CPU the peak of resident memory, in both
cases beyond what was held before the first meta-gradient (the program, the rule, the agents and the rollouts).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from disco_torch import AdamConfig, Agent, AgentConfig, DiscoUpdateRule, Learner, Rollout, ValueFunction
from disco_torch.discovery import MixedModeMetaGradient, PlainMetaGradient
from disco_torch.types import tree_map, tree_stack

T, B, A, BOARD = 16, 32, 3, 25
GIVE_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Makes the C library return freed memory at once, so that the resident memory of a CPU run is what it uses."""
IMPLEMENTATIONS = {"plain": PlainMetaGradient, "mixed": MixedModeMetaGradient}


def random_rollout(rows: int, device: str) -> Rollout:
    observations = torch.rand(rows, B, BOARD, device=device)
    actions = torch.randint(A, (rows, B), device=device)
    discounts = (torch.rand(rows, B, device=device) > 0.2).float()
    return Rollout(
        observations, actions, torch.randn(rows, B, device=device), discounts, torch.randn(rows, B, A, device=device)
    )


def measure(implementation: str, updates: int, agents: int, device: str, repeats: int) -> dict[str, float]:
    torch.manual_seed(0)
    rule = DiscoUpdateRule().to(device)
    agent = Agent(torch.zeros(BOARD), A, rule.outputs(A), AgentConfig(lstm_size=256, head_mlp_hiddens=(256,))).to(device)
    value_function = ValueFunction(torch.zeros(BOARD))
    value_function.net.to(device)
    learner = Learner(agent, rule, AdamConfig(5e-4))
    compute = IMPLEMENTATIONS[implementation](learner, value_function)
    eta = {name: param.detach() for name, param in rule.named_parameters()}
    cases = []
    for _ in range(agents):
        train = [random_rollout(T, device) for _ in range(updates)]
        cases.append((learner.init(), value_function.init(), train, random_rollout(2 * T, device)))

    def run() -> None:
        if agents == 1 or implementation == "plain":  # plain autograd has no vmap: one agent after the other
            for case in cases:
                compute(eta, *case)
        else:
            torch.func.vmap(lambda *case: compute(eta, *case).grads)(*tree_stack(cases))
        if device == "cuda":
            torch.cuda.synchronize()

    cases = tree_map(lambda x: x.to(device), cases)
    before = held_mib(device)
    run()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return {"seconds": statistics.median(seconds), "mib": peak_mib(device) - before}


def held_mib(device: str) -> float:
    return torch.cuda.memory_allocated() / 2**20 if device == "cuda" else process_mib("VmRSS")


def peak_mib(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else process_mib("VmHWM")


def process_mib(name: str) -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(name)).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", choices=sorted(IMPLEMENTATIONS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.updates[0], args.agents, args.device, args.repeats)))
        return
    columns = ("plain ms", "mixed ms", "ratio", "plain MiB", "mixed MiB", "ratio")
    print("updates agents " + " ".join(f"{name:>9}" for name in columns))
    for updates in args.updates:
        results = {}
        for implementation in ("plain", "mixed"):
            options = ["--device", args.device, "--updates", str(updates), "--agents", str(args.agents)]
            options += ["--repeats", str(args.repeats), "--child", implementation]
            command = [sys.executable, __file__, *options]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | GIVE_BACK)
            results[implementation] = json.loads(done.stdout.splitlines()[-1])
        plain, mixed = results["plain"], results["mixed"]
        row = [1e3 * plain["seconds"], 1e3 * mixed["seconds"], mixed["seconds"] / plain["seconds"]]
        row += [plain["mib"], mixed["mib"], mixed["mib"] / plain["mib"]]
        print(f"{updates:7d} {args.agents:6d} " + " ".join(f"{number:9.2f}" for number in row), flush=True)


if __name__ == "__main__":
    main()
