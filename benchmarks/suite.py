"""The suite: rules on other people's environments, beside Stable-Baselines3's PPO.

    python benchmarks/suite.py --rules birch ppo actor-critic --processes 16 --out suite.jsonl --figure suite.png
    python benchmarks/suite.py --rules "birch --num-envs 8" --subset quick --processes 16 --out suite.jsonl
    python benchmarks/suite.py --rules birch ppo --out suite.jsonl --table-only

Every rule runs with its defaults, or with options of `train` behind it in the same quotes. Tasks and their steps are those
of `suite_tasks.py`; those whose package is not installed are left out (`pip install "disco-torch[suite]"` has all). Scores
are normalised by the uniform policy and by the best peer: Stable-Baselines3's PPO on tasks that it was run on
(`peer_results.json`, from `peer_suite.py`), on the others our own `ppo`. The suite is a test set: choose rules and settings
by `--subset validation`, tasks of our own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from suite_tasks import SUITE, SuiteTask, installed
from validation_tasks import VALIDATION

from disco_torch.cli.compare import Compare, parse_contender, run_comparison
from disco_torch.training import Task

PEER_RESULTS = Path(__file__).with_name("peer_results.json")
PEERS = ("sb3-ppo", "ppo")
SUBSETS = ("all", "quick", "short", "validation")


def choose(subset: str, names: list[str] | None) -> list[SuiteTask]:
    """The tasks of a subset, or those named."""
    if names:
        known = {task.name: task for task in (*SUITE, *VALIDATION)}
        if unknown := [name for name in names if name not in known]:
            raise SystemExit(f"`--tasks` must be names of the suite, {', '.join(known)}, got {', '.join(unknown)}.")
        return [known[name] for name in names]
    chosen = {"all": SUITE, "quick": [x for x in SUITE if x.quick], "short": [x for x in SUITE if x.steps <= 300_000]}
    return [*VALIDATION] if subset == "validation" else chosen[subset]


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", required=True, help="rules, each with options of `train` in the same quotes")
    parser.add_argument(
        "--subset",
        choices=SUBSETS,
        default="all",
        help="quick: fewer of them; short: up to 300k steps; validation: our own tasks, to choose by",
    )
    parser.add_argument("--tasks", nargs="+", help="tasks of the suite by name, in place of a subset")
    parser.add_argument("--seeds", help="such as 0-4, the default; 0-2 with --subset quick")
    parser.add_argument("--processes", type=int, default=0, help="runs side by side; as many as there are cores by default")
    parser.add_argument("--out", type=Path, required=True, help="file of finished runs, to which new ones are added")
    parser.add_argument("--also", type=Path, nargs="+", default=[PEER_RESULTS], help="files of other runs to show beside")
    parser.add_argument("--figure", type=Path, help="image file to write")
    parser.add_argument("--table-only", action="store_true", help="train nothing; show the finished runs")
    parser.add_argument("--import", dest="imports", nargs="+", default=[], help="modules to import first")
    given = parser.parse_args(args)
    tasks = choose(given.subset, given.tasks)
    for task in tasks:
        if not installed(task):
            print(f"{task.name} is left out: {task.package} is not installed", flush=True)
    command = Compare(
        tasks=(),
        rules=tuple(given.rules),
        seeds=given.seeds or ("0-2" if given.subset == "quick" and not given.tasks else "0-4"),
        processes=given.processes,
        out=given.out,
        also=tuple(path for path in given.also if path.is_file() or path != PEER_RESULTS),
        peers=PEERS,
        figure=given.figure,
        table_only=given.table_only,
        imports=tuple(given.imports),
    )
    ours = [Task(task.name, task.env, task.steps, task.settings) for task in tasks if installed(task)]
    return run_comparison(command, ours, [parse_contender(text) for text in given.rules])


if __name__ == "__main__":
    raise SystemExit(main())
