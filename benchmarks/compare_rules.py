"""Rules against each other: final return and area under the learning curve, over seeds, with intervals.

    python benchmarks/compare_rules.py --rules grove25 grove5 actor-critic disco103 --processes 2 --out comparison.json

Every run has the same agent, data, learning rate and number of updates; only the rule differs. The learning rate is the one
that suits actor-critic best on levels of the training split (`--tune` runs those). The final return is the mean over a run's
last tenth, the area the mean over all of it; intervals are 95% bootstrap over seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

from disco_torch.analysis import Panel, mean_interval, plot_panels
from disco_torch.data import InputConfig
from disco_torch.optim import AdamConfig
from disco_torch.training import SMALL_AGENT, TrainConfig, train

ENVS = {
    "catch 8x8": ("catch", {}),
    "bricks": ("bricks", {"split": "held-out"}),
    "invaders": ("invaders", {"split": "held-out"}),
    "grid 8x8": ("grid", {"split": "held-out", "size": 8}),
    "CartPole-v1": ("CartPole-v1", {}),
}
"""None was seen when grove5 and grove25 were discovered: other sizes, levels, families, an environment of another kind. By
CartPole and Bricks grove25 was chosen among six rules."""
TUNING = {"catch 6x6": ("catch", {"rows": 6, "columns": 6}), "grid": ("grid", {}), "crossing": ("crossing", {})}
LEARNING_RATE = 3e-3
CARTPOLE_SCALE = (0.4, 0.5, 5.0, 0.5)
"""Of position, velocity, angle and angular velocity: inputs are scaled alike for all rules, and not by statistics."""


def run(case: tuple[str, str, float, int, int, str]) -> dict[str, object]:
    """One training run: its returns over time, in equal parts of the run."""
    import torch

    torch.set_num_threads(1)
    label, rule, rate, seed, updates, device = case
    env, env_args = (ENVS | TUNING)[label]
    scale = CARTPOLE_SCALE if env == "CartPole-v1" else ()
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            env=env,
            env_args=env_args,
            rule=rule,
            seed=seed,
            device=device,
            num_envs=16,
            rollout_length=16,
            batch_size=64,
            replay_capacity=256,
            replayed_share=0.5,
            steps=16 * 16 * updates,
            agent=dataclasses.replace(SMALL_AGENT, observation_scale=scale),
            inputs=InputConfig(),
            first_steps=False,
            optimizer=AdamConfig(rate),
            runs=Path(folder),
            log_every=updates // 20,
            checkpoint_every=0,
            tensorboard=False,
        )
        result = train(config, view=False)
    curve = [line["interval_return"] for line in result.metrics if "interval_return" in line]
    return {"env": label, "rule": rule, "learning_rate": rate, "seed": seed, "updates": updates, "curve": curve}


def table(runs: list[dict]) -> str:
    """A Markdown table: for each environment and rule, final return and area, each with its interval."""
    rules = list(dict.fromkeys(f"{r['rule']} ({r['learning_rate']:g})" for r in runs))
    lines = ["| environment | " + " | ".join(f"{rule}: final | area" for rule in rules) + " |"]
    lines.append("|---" * (1 + 2 * len(rules)) + "|")
    for env in dict.fromkeys(r["env"] for r in runs):
        cells = []
        for rule in rules:
            curves = [
                np.array(r["curve"]) for r in runs if r["env"] == env and f"{r['rule']} ({r['learning_rate']:g})" == rule
            ]
            finals = np.array([curve[-max(1, len(curve) // 10) :].mean() for curve in curves])
            for values in (finals, np.array([curve.mean() for curve in curves])):
                interval = mean_interval(values) if len(values) else None
                cells.append("-" if interval is None else f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}]")
        lines.append(f"| {env} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(runs: list[dict], path: Path) -> None:
    """The mean curve of each rule, a panel for each environment."""
    panels = []
    for env in dict.fromkeys(r["env"] for r in runs):
        curves = {}
        for rule in dict.fromkeys(r["rule"] for r in runs if r["env"] == env):
            values = np.mean([r["curve"] for r in runs if r["env"] == env and r["rule"] == rule], axis=0)
            updates = next(r["updates"] for r in runs if r["env"] == env)
            curves[rule] = (np.linspace(0, updates, len(values) + 1)[1:].tolist(), values.tolist())
        panels.append(Panel(env, curves))
    plot_panels(panels, path, xlabel="updates")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", default=["grove25", "grove5", "actor-critic", "disco103"])
    parser.add_argument("--envs", nargs="+", default=list(ENVS))
    parser.add_argument("--tune", type=float, nargs="+", default=[], help="learning rates to compare on the training split")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="adds the runs to those in this file and prints the table of all")
    parser.add_argument("--figure", type=Path, help="draws the mean curves of all runs in --out")
    args = parser.parse_args()
    envs = list(TUNING) if args.tune else args.envs
    cases = [
        (env, rule, rate, seed, args.updates, args.device)
        for rule in args.rules
        for rate in (args.tune or [LEARNING_RATE])
        for env in envs
        for seed in range(args.seeds)
    ]
    runs: list[dict] = json.loads(args.out.read_text()) if args.out and args.out.is_file() else []
    with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=1) as pool:
        for done in pool.imap_unordered(run, cases):
            runs.append(done)
            if args.out:
                args.out.write_text(json.dumps(runs))
    print(table(runs))
    if args.figure:
        draw(runs, args.figure)


if __name__ == "__main__":
    main()
