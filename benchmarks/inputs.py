"""Normalised inputs and first steps, before and after: mean return over the last tenth of training, default settings.

    python benchmarks/inputs.py --out inputs.jsonl --processes 2 --seeds 3
    python benchmarks/inputs.py --out inputs.jsonl --table

Each finished run is a line of the file; runs that are in it are not repeated. The rule and all other settings are the
defaults of `train`. Environments of packages that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from disco_torch.analysis import mean_interval
from disco_torch.data import InputConfig
from disco_torch.training import TrainConfig, train

HERE = "inputs"
TASKS = {
    "CartPole-v1": ("CartPole-v1", 100_000, ""),
    "Acrobot-v1": ("Acrobot-v1", 60_000, ""),
    "FrozenLake-v1": ("FrozenLake-v1", 60_000, ""),
    "two rooms, uint8 in 0..1": (f"{HERE}:TwoRooms-v0", 100_000, ""),
    "field, numbers to 1000": (f"{HERE}:Field-v0", 60_000, ""),
    "bandit": (f"{HERE}:Bandit-v0", 20_000, ""),
    "catch": ("catch", 60_000, ""),
    "MiniGrid-Empty-5x5": (f"{HERE}:MiniGridEmpty-v0", 40_000, "minigrid"),
    "MinAtar Breakout": ("MinAtar/Breakout-v1", 60_000, "minatar"),
    "LunarLander-v3": ("LunarLander-v3", 60_000, "Box2D"),
}
"""Environment, steps, and the package that it needs, for each task."""
USUAL = {"least_deviation": 1.0, "largest_deviation": 1.0}
VARIANTS = {
    "raw": (InputConfig(), False),
    "first steps": (InputConfig(), True),
    "rewards": (InputConfig("raw", "normalized"), False),
    "rewards, first steps": (InputConfig("raw", "normalized"), True),
    "observations": (InputConfig("auto", **USUAL), False),
    "observations, first steps": (InputConfig("auto", **USUAL), True),
    "observations, rewards": (InputConfig("auto", "normalized", **USUAL), False),
    "all": (InputConfig("auto", "normalized", **USUAL), True),
    "bounded": (InputConfig("auto"), False),
    "bounded, rewards": (InputConfig("auto", "normalized"), False),
    "bounded, rewards, first steps": (InputConfig("auto", "normalized"), True),
}


class TwoRooms(gymnasium.Env):
    """Two rooms of 4x4 with a wall between: the key in the first opens the door to the goal in the second.

    Four ways to go, one step in ten goes astray. Reward 0.2 for the key, 1 at the goal, -0.01 a step; 60 steps at most.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (5, 4, 9), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)
    moves = ((-1, 0), (1, 0), (0, -1), (0, 1))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.key = self._cell(0), self._cell(0)
        self.goal, self.has_key, self.time = self._cell(5), False, 0
        return self._see(), {}

    def _cell(self, left: int) -> tuple[int, int]:
        return int(self.np_random.integers(4)), left + int(self.np_random.integers(4))

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        if self.np_random.random() < 0.1:
            action = int(self.np_random.integers(4))
        row, column = self.at[0] + self.moves[action][0], self.at[1] + self.moves[action][1]
        door = (row, column) == (2, 4) and self.has_key
        if 0 <= row < 4 and 0 <= column < 9 and (column != 4 or door):
            self.at = row, column
        reward = -0.01
        if not self.has_key and self.at == self.key:
            self.has_key, reward = True, 0.2
        done = self.at == self.goal
        return self._see(), reward + float(done), done, self.time >= 60, {}

    def _see(self) -> np.ndarray:
        board = np.zeros((5, 4, 9), np.uint8)
        board[0][self.at], board[1][self.goal] = 1, 1
        board[2, :, 4] = 1
        board[2, 2, 4] = not self.has_key
        if self.has_key:
            board[4] = 1
        else:
            board[3][self.key] = 1
        return board


class Field(gymnasium.Env):
    """A point that moves in a field of 1000 x 1000, 40 a step, to within 60 of a goal; -1 a step, 150 steps at most."""

    observation_space = gymnasium.spaces.Box(0.0, 1000.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(0, 1000, (2, 2))
        self.time = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        way = np.zeros(2)
        way[action // 2] = 40 * (2 * (action % 2) - 1)
        self.at = np.clip(self.at + way, 0, 1000)
        return self._see(), -1.0, bool(np.linalg.norm(self.at - self.goal) < 60), self.time >= 150, {}

    def _see(self) -> np.ndarray:
        return np.concatenate([self.at, self.goal]).astype(np.float32)


class Bandit(gymnasium.Env):
    """10 contexts, 4 arms, episodes of one step: reward 1 for the context's own arm, else 0."""

    observation_space = gymnasium.spaces.Discrete(10)
    action_space = gymnasium.spaces.Discrete(4)
    arms = (2, 0, 3, 1, 1, 0, 2, 3, 0, 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.context = int(self.np_random.integers(10))
        return self.context, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        return self.context, float(action == self.arms[self.context]), True, False, {}


def minigrid_empty(**kwargs: Any) -> gymnasium.Env:
    """What the agent sees of MiniGrid-Empty-5x5 and where it looks; its mission, a text, is left out."""
    importlib.import_module("minigrid")
    return gymnasium.wrappers.FilterObservation(gymnasium.make("MiniGrid-Empty-5x5-v0", **kwargs), ["image", "direction"])


ENVS = {"TwoRooms-v0": TwoRooms, "Field-v0": Field, "Bandit-v0": Bandit, "MiniGridEmpty-v0": minigrid_empty}
for name, entry_point in ENVS.items():
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=entry_point)


def run(case: tuple[str, str, int, str]) -> dict[str, Any]:
    """One training run: its mean return over the last tenth, and over all of it."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))  # where `inputs:` names are imported from
    task, variant, seed, rule = case
    env, steps, package = TASKS[task]
    if package == "minatar":
        importlib.import_module("minatar.gym").register_envs()
    inputs, first_steps = VARIANTS[variant]
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            env=env,
            rule=rule,
            steps=steps,
            seed=seed,
            device="cpu",
            inputs=inputs,
            first_steps=first_steps,
            runs=Path(folder),
            log_every=max(1, steps // 256 // 20),
            checkpoint_every=0,
            tensorboard=False,
        )
        metrics = train(config, view=False).metrics
    curve = [line["interval_return"] for line in metrics if "interval_return" in line]
    final, area = float(np.mean(curve[-max(1, len(curve) // 10) :])), float(np.mean(curve))
    done = {"task": task, "variant": variant, "seed": seed, "rule": rule, "steps": steps}
    return done | {"final": final, "area": area, "entropy": metrics[-1].get("entropy")}


def table(runs: list[dict[str, Any]], rule: str) -> str:
    """A Markdown table: mean return over the last tenth of training, with its 95% interval over seeds and their number."""
    runs = [run for run in runs if run["rule"] == rule]
    variants = [name for name in VARIANTS if any(run["variant"] == name for run in runs)]
    lines = ["| task, steps | " + " | ".join(variants) + " |", "|---" * (1 + len(variants)) + "|"]
    for task in dict.fromkeys(run["task"] for run in runs):
        cells = []
        for variant in variants:
            values = [run["final"] for run in runs if (run["task"], run["variant"]) == (task, variant)]
            interval = mean_interval(values) if values else None
            spread = f" [{interval.low:.2f}, {interval.high:.2f}]" if interval and len(values) > 1 else ""
            cells.append(f"{interval.mean:.2f}{spread} ({len(values)})" if interval else "-")
        lines.append(f"| {task}, {TASKS[task][1] // 1000}k | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of finished runs, to which new ones are added")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rule", default="grove25")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the table of the finished runs and stop")
    args = parser.parse_args()
    runs = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.is_file() else []
    done = {(run["task"], run["variant"], run["seed"], run["rule"]) for run in runs}
    cases = [
        (task, variant, seed, args.rule)
        for seed in range(args.seeds)
        for task in args.tasks
        for variant in args.variants
        if (task, variant, seed, args.rule) not in done
        and (not TASKS[task][2] or importlib.util.find_spec(TASKS[task][2]) is not None)
    ]
    if not args.table:
        with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=1) as pool:
            for result in pool.imap_unordered(run, cases):
                runs.append(result)
                with args.out.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    print(table(runs, args.rule))


if __name__ == "__main__":
    main()
