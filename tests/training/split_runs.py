"""Training runs in several processes, and what goes wrong in one of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from small_runs import small_config

from disco_torch import EnvironmentFailure, InputConfig, TrainConfig, make_env, train
from disco_torch.cli import main
from disco_torch.data.acting import Collector

SIZE = 2


def split_config(runs: Path, **changes: Any) -> TrainConfig:
    """Ten rollouts of 24 steps, of 4 environments; updates on 4 trajectories begin with the first rollout."""
    inputs = InputConfig(observations="auto", rewards="normalized")
    settings: dict[str, Any] = {"num_envs": 4, "steps": 240, "inputs": inputs, "eval_every": 120, "eval_episodes": 4}
    return small_config(runs, **(settings | changes))


def rank() -> int:
    return int(os.environ["RANK"])


def whole_and_resumed(runs: Path) -> None:
    """One run without a break, and one with a break after five rollouts; writes down what this process got back."""
    whole = train(split_config(runs, name="whole"), view=False)
    train(split_config(runs, name="resumed", steps=120), view=False)
    resumed = train(resume=runs / "resumed", steps=240, view=False)
    said = {result.folder.name: [len(result.metrics), result.stopped, result.best_return] for result in (whole, resumed)}
    (runs / f"said-{rank()}.json").write_text(json.dumps(said))


def train_again(folder: Path) -> None:
    """Continues a run; then one in environments that each process has made itself."""
    train(resume=folder, steps=360, view=False)
    env = make_env("catch", 2, device="cpu", rows=4, columns=3)
    train(small_config(folder.parent, name="brought", steps=48, env_args={}), env=env, view=False)


class Doomed(gymnasium.Env):
    """Its process dies at the 40th step of an environment, where it is the second one."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 40 and os.environ.get("RANK") == "1":
            os._exit(7)
        return np.zeros(2, np.float32), 1.0, self.steps % 2 == 0, False, {}


def die(runs: Path) -> int:
    """A run as from the command line in which the second process dies."""
    gymnasium.register("Doomed-v0", Doomed)
    sizes = ["--num-envs", "4", "--rollout-length", "6", "--batch-size", "4", "--replay-capacity", "8"]
    often = ["--checkpoint-every", "2", "--no-tensorboard", "--runs", str(runs), "--name", "doomed", "--device", "cpu"]
    return main(["train", "--env", "Doomed-v0", "--rule", "actor-critic", "--steps", "2400", *sizes, *often])


def fail_in_one(runs: Path) -> None:
    """The environments of the second process fail in the fifth rollout; both raise, behind a checkpoint."""
    collect, calls = Collector.__call__, 0

    def failing(self: Collector, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5 and rank() == 1:
            raise EnvironmentFailure("the ball is lost")
        return collect(self, *args)

    Collector.__call__ = failing  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFailure, match="process 1: the ball is lost"):
        train(split_config(runs, name="failing", eval_every=0), view=False)
    Collector.__call__ = collect  # type: ignore[method-assign]
    train(resume=runs / "failing", view=False)
    train(split_config(runs, name="untroubled", eval_every=0), view=False)
