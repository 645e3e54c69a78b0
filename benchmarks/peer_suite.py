"""Stable-Baselines3's PPO on the tasks of the suite, by the suite's protocol; run once, in an environment of its own.

    pip install stable-baselines3 minigrid "gymnasium[box2d]" && pip install --no-deps minatar
    python benchmarks/peer_suite.py --out benchmarks/peer_results.json --processes 16

PPO has the library's defaults, or the settings of rl-baselines3-zoo where those do not learn (`ZOO`). After training it
plays 100 episodes with fresh seeds with the default of `predict`, which samples, and 100 with the most probable actions, as
the library's own `evaluate_policy` does. The area under the training curve is of the returns of its `Monitor`. Each
finished run is a line of the file, in the form of `disco-torch compare`; runs that are in it are not repeated. `--random`
measures the uniform policy on all tasks as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from suite_tasks import SHORT, SUITE, SuiteTask, installed

from disco_torch.analysis.records import RunRecord, append_record, area_under_curve, binned_curve, read_records
from disco_torch.runs.batch import Outcome, run_batch
from disco_torch.training.comparison import EVAL_EPISODES, EVAL_SEED, Contender, Task, compare

RULE = "sb3-ppo"
MINIGRID = {"normalize": True, "n_envs": 8, "n_steps": 128, "batch_size": 64, "n_epochs": 10, "learning_rate": 2.5e-4}
ZOO: dict[str, dict[str, Any]] = {
    "MountainCar": {"normalize": True, "n_envs": 16, "n_steps": 16, "gae_lambda": 0.98, "n_epochs": 4},
    "MiniGrid DoorKey 5x5": MINIGRID,
    "MiniGrid FourRooms": {**MINIGRID, "n_steps": 512},
}
"""Settings of rl-baselines3-zoo (hyperparams/ppo.yml) for tasks that the defaults do not learn."""


def make_single(task: SuiteTask) -> gymnasium.Env:
    """One environment of a task, with its wrappers and time limit, and its observation flattened where SB3 needs that."""
    kwargs = {name.removeprefix("env_args."): x for name, x in task.settings.items() if name.startswith("env_args.")}
    env = gymnasium.make(task.env, **kwargs)
    for wrapper in task.settings.get("wrappers", ()):
        env = gymnasium.envs.registration.load_env_creator(wrapper)(env)
    return gymnasium.wrappers.FlattenObservation(env) if task.flatten else env


def train_peer(request: Mapping[str, Any]) -> dict[str, Any]:
    """One run of Stable-Baselines3's PPO: the fields of its `RunRecord`."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    task = next(task for task in SUITE if task.name == request["task"])
    settings, seed, steps = dict(request["settings"]), request["seed"], request["steps"]
    normalize, num_envs = settings.pop("normalize", False), settings.pop("n_envs", 1)
    env = make_vec_env(lambda: make_single(task), n_envs=num_envs, seed=seed)
    if normalize:
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    model = stable_baselines3.PPO("MlpPolicy", env, seed=seed, device="cpu", **settings)
    start = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - start
    ends = episode_ends(env.env_method("get_episode_lengths"), env.env_method("get_episode_rewards"))
    curve = binned_curve(*ends, model.num_timesteps)  # whole rollouts, so that it is a little longer than asked for
    area = area_under_curve(*curve, model.num_timesteps)
    scores = [play(model, env if normalize else None, task, seed, deterministic) for deterministic in (False, True)]
    done = {name: request[name] for name in ("task", "rule", "settings", "task_settings", "seed", "steps")}
    record = RunRecord(**done, score=scores[0], greedy_score=scores[1], area=area, curve=curve, seconds=round(seconds, 1))
    return dataclasses.asdict(dataclasses.replace(record, version=f"stable-baselines3 {stable_baselines3.__version__}"))


def episode_ends(lengths: list[list[int]], returns: list[list[float]]) -> tuple[list[float], list[float]]:
    """Steps over all parallel environments at the end of each episode, ascending, and its return.

    Args:
      lengths, returns: of the episodes of each environment; the environments take their steps together.
    """
    rows = []
    for own_lengths, own_returns in zip(lengths, returns, strict=True):
        rows += zip((np.cumsum(own_lengths) * len(lengths)).tolist(), own_returns, strict=True)
    rows.sort(key=lambda row: row[0])
    return [row[0] for row in rows], [row[1] for row in rows]


def play(model: Any, normalize: Any, task: SuiteTask, seed: int, deterministic: bool) -> float:
    """The mean return of the evaluation episodes, with seeds that training has not seen."""
    env = make_single(task)
    returns = []
    for episode in range(EVAL_EPISODES):
        seen, _ = env.reset(seed=EVAL_SEED + 1000 * seed + episode)
        total, done = 0.0, False
        while not done:
            inputs = seen if normalize is None else normalize.normalize_obs(seen)
            action, _ = model.predict(inputs, deterministic=deterministic)
            seen, reward, terminated, truncated, _ = env.step(action.item())
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of finished runs, to which new ones are added")
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in SUITE], help="by default the short ones")
    parser.add_argument("--longest", type=int, default=SHORT, help="run the tasks of up to so many steps")
    parser.add_argument("--steps", type=int, help="environment steps in place of each task's own, to try it out")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--random", action="store_true", help="measure the uniform policy on all installed tasks as well")
    args = parser.parse_args()
    tasks = [task for task in SUITE if (task.name in args.tasks if args.tasks else task.steps <= args.longest)]
    for task in SUITE:
        if not installed(task):
            print(f"{task.name} is left out: {task.package} is not installed", flush=True)
    if args.random:
        every = [task for task in SUITE if installed(task) and (not args.tasks or task in tasks)]
        ours = [Task(task.name, task.env, task.steps, task.settings) for task in every]
        compare(ours, [Contender("random")], range(args.seeds), args.out, processes=args.processes, say=say)
    done = {record.key for record in read_records(args.out)}
    requests = []
    for seed in range(args.seeds):
        for task in sorted(tasks, key=lambda task: -task.steps):  # the longest first, so that they do not end alone
            run = {"task": task.name, "rule": RULE, "settings": ZOO.get(task.name, {}), "seed": seed}
            run |= {"task_settings": {"env": task.env, **task.settings}, "steps": args.steps or task.steps}
            if installed(task) and RunRecord(**run, score=0.0, area=0.0).key not in done:
                requests.append(run)

    def on_end(outcome: Outcome) -> None:
        what = f"{outcome.request['task']}, seed {outcome.request['seed']}"
        if outcome.answer is None:
            say(f"{what} {'was stopped' if outcome.stopped else f'failed: {outcome.error}'}")
            return
        record = RunRecord(**outcome.answer)
        append_record(args.out, record)
        say(f"{what}: {record.score:.4g}, greedy {record.greedy_score:.4g}, area {record.area:.4g}, {record.seconds:.0f} s")

    run_batch("peer_suite:train_peer", requests, processes=args.processes, on_end=on_end)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
