"""Killed at any moment, a run has a whole checkpoint and goes on as if nothing had been."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from small_runs import assert_same, last_state, metrics_of

from disco_torch.cli import main
from disco_torch.runs.checkpoint import list_checkpoints, load_checkpoint
from disco_torch.training.folder import RunFolder

STEPS_OF_A_ROLLOUT = 2 * 5
ROLLOUTS_OF_A_LIFE = 12
"""More than a process does before it is killed."""


@pytest.fixture(autouse=True)
def one_thread_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors are much slower on several threads of a busy machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def start(*options: str) -> BaseProcess:
    """`disco-torch train` in a process of its own, forked from one that has imported everything but done nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["disco_torch.cli", "matplotlib.pyplot"])
    process = context.Process(target=main, args=(["train", *options],))
    process.start()
    return process


def options(runs: Path, name: str, rollouts: int) -> list[str]:
    """A run that writes a line after every rollout."""
    return [
        *["--rule", "actor-critic", "--device", "cpu", "--env-args", "rows", "4", "columns", "3", "--num-envs", "2"],
        *["--rollout-length", "5", "--batch-size", "4", "--replay-capacity", "6", "--agent.dense", "8"],
        *["--steps", str(rollouts * STEPS_OF_A_ROLLOUT), "--log-every", "1"],
        *["--no-tensorboard", "--runs", str(runs), "--name", name],
    ]


def newest(folder: Path) -> int:
    """The rollouts of the newest checkpoint, 0 without one."""
    return max((int(path.stem.removeprefix("checkpoint-")) for path in list_checkpoints(folder / "checkpoints")), default=0)


def kill(process: BaseProcess, folder: Path, dice: random.Random) -> None:
    """Ends a process without warning: at times while it starts, else in the middle of its work."""
    before, now = newest(folder), time.monotonic()
    while_it_starts = before > 0 and dice.random() < 0.3
    moment = now + (dice.uniform(0.0, 0.4) if while_it_starts else 60.0)
    wanted = before + dice.randint(1, ROLLOUTS_OF_A_LIFE - 4)
    while newest(folder) < wanted and time.monotonic() < moment:
        assert process.is_alive()
        time.sleep(0.001)
    assert while_it_starts or newest(folder) >= wanted, "it did not get so far within a minute"
    time.sleep(dice.uniform(0.0, 0.03))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert process.exitcode == -signal.SIGKILL, "it ended by itself; make the run longer"


@pytest.mark.parametrize(
    ("kills", "checkpoint_every"),
    [(5, 1), pytest.param(50, 1, marks=pytest.mark.slow), pytest.param(50, 3, marks=pytest.mark.slow)],
)
def test_kills(tmp_path: Path, kills: int, checkpoint_every: int) -> None:
    rollouts, dice = kills * ROLLOUTS_OF_A_LIFE, random.Random(kills)
    often = ["--checkpoint-every", str(checkpoint_every)]
    folder, process = tmp_path / "killed", start(*options(tmp_path, "killed", rollouts), *often)
    reached = 0
    for _ in range(kills):
        kill(process, folder, dice)
        content = load_checkpoint(folder / "checkpoints")
        here = content["session"]["counters"]["rollouts"]
        assert here >= reached, "a checkpoint that was there is lost"
        reached = here
        lines = [line["steps"] for line in RunFolder.open(folder).read_metrics()]
        assert lines == [STEPS_OF_A_ROLLOUT * (i + 1) for i in range(len(lines))] and len(lines) >= reached
        process = start("--resume", str(folder))
    process.join(120)
    assert process.exitcode == 0

    whole = start(*options(tmp_path, "whole", rollouts))
    whole.join(120)
    assert whole.exitcode == 0
    lines = [line["steps"] for line in metrics_of(folder)]
    assert lines == [STEPS_OF_A_ROLLOUT * (i + 1) for i in range(rollouts)]
    assert metrics_of(folder) == metrics_of(tmp_path / "whole")
    assert_same(last_state(folder), last_state(tmp_path / "whole"))
    assert not list(folder.rglob("*.partial"))
