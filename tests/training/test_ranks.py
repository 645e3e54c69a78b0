"""A training run in several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import end, start
from small_runs import assert_same, last_state, metrics_of, small_config
from split_runs import SIZE, die, fail_in_one, split_config, train_again, whole_and_resumed

from disco_torch import train
from disco_torch.data import Replay
from disco_torch.runs import CheckpointMismatch, World
from disco_torch.training import ranks
from disco_torch.training.folder import RunFolder
from disco_torch.training.session import TrainingSession
from disco_torch.types import Rollout


def succeed(folder: Path, target: Any, *args: Any, size: int = SIZE) -> None:
    codes = end(start(target, *args, size=size, errors=folder), 100)
    assert codes == [0] * size, [(folder / f"{rank}.txt").read_text() for rank in range(size)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes."""
    folder = tmp_path_factory.mktemp("runs")
    succeed(folder, whole_and_resumed, folder)
    return folder


def test_one_folder_with_the_numbers_of_all_processes(runs: Path) -> None:
    lines = metrics_of(runs / "whole")
    trained = [line for line in lines if "return" in line]
    assert [line["steps"] for line in trained] == [48, 96, 144, 192, 240]
    # 4 environments, of which each ends an episode every 3 steps.
    assert [line["interval_episodes"] for line in trained] == [16] * 5 and trained[-1]["episodes"] == 80
    assert [line["steps"] for line in lines if "eval_return" in line] == [120, 240]
    state = last_state(runs / "whole")
    assert state["counters"] == {"rollouts": 10, "steps": 240, "updates": 10, "episodes": 80}
    assert state["replay"]["size"] == 8 and state["generator"].shape[0] == SIZE
    assert state["inputs"]["rewards/count"] == 240
    said = [json.loads((runs / f"said-{rank}.json").read_text()) for rank in range(SIZE)]
    assert said[0] == said[1] and said[0]["whole"][:2] == [7, False]


def test_a_resumed_run_is_the_run_without_a_break(runs: Path) -> None:
    assert_same(last_state(runs / "resumed"), last_state(runs / "whole"))
    assert metrics_of(runs / "resumed") == metrics_of(runs / "whole")


def test_processes_have_random_numbers_of_their_own(runs: Path) -> None:
    state = last_state(runs / "whole")
    assert not torch.equal(*state["generator"])
    newest = state["replay"]["tensors"]["observations"][-4:]
    assert not torch.equal(newest[:2], newest[2:])


def test_one_process_takes_over_all_of_it(runs: Path) -> None:
    state = last_state(runs / "whole")
    session = TrainingSession(split_config(runs))
    session.load_state_dict(state)
    after = session.state_dict()
    assert after is not None
    assert torch.equal(after.pop("generator"), state.pop("generator")[0])
    assert_same({name: after[name] for name in state}, state)


def test_more_processes_go_on_with_a_run_of_one(tmp_path: Path) -> None:
    folder = train(split_config(tmp_path, checkpoint_every=1, keep_checkpoints=20), view=False).folder
    succeed(tmp_path, train_again, folder)
    state = last_state(folder)
    assert state["counters"]["steps"] == 360 and state["generator"].shape[0] == SIZE
    assert state["inputs"]["rewards/count"] == 360
    lines = [line for line in metrics_of(folder) if "return" in line]
    assert [line["interval_episodes"] for line in lines] == [16] * 7 + [8]
    brought = tmp_path / "brought"  # 2 environments of each process
    assert RunFolder.open(brought).config.num_envs == 4 and last_state(brought)["counters"]["rollouts"] == 2


def filled(num_envs: int, first_env: int, capacity: int, rollouts: int) -> Replay:
    """A replay in which each trajectory says its rollout and its environment."""
    replay = Replay(capacity, 2, torch.zeros(2), 3)
    for i in range(rollouts):
        envs = torch.arange(first_env, first_env + num_envs, dtype=torch.float32)
        seen = torch.stack([torch.full_like(envs, i), envs], dim=1).expand(2, num_envs, 2)
        zeros = torch.zeros(2, num_envs)
        replay.add(Rollout(seen.clone(), zeros.int(), zeros, zeros, torch.zeros(2, num_envs, 3)))
    return replay


@pytest.mark.parametrize(("capacity", "rollouts"), [(8, 2), (12, 2), (12, 5), (8, 5)])
def test_a_replay_is_put_together_and_divided_again(capacity: int, rollouts: int) -> None:
    whole = filled(4, 0, capacity, rollouts).state_dict()
    parts = [filled(2, 2 * rank, capacity // 2, rollouts).state_dict() for rank in range(2)]
    config = small_config(Path(), num_envs=4, replay_capacity=capacity)

    class Both(World):
        def gather(self, value: Any) -> Any:
            name = next(name for name, x in parts[0]["tensors"].items() if x is value)
            return [part["tensors"][name] for part in parts]

    joined = ranks.join_replay(Both(0, 2), parts[0], num_envs=2)
    assert joined is not None and joined["size"] == whole["size"]
    assert torch.equal(joined["tensors"]["observations"], whole["tensors"]["observations"])
    for rank, part in enumerate(parts):
        assert_same(ranks.share_of_replay(joined, config, World(rank, 2)), part)


def test_a_replay_that_cannot_be_shared_evenly_loses_the_oldest() -> None:
    whole = filled(3, 0, 9, 3).state_dict()
    config = small_config(Path(), num_envs=3, replay_capacity=9)
    parts = [ranks.share_of_replay(whole, config, World(rank, 2)) for rank in range(2)]
    assert [part["size"] for part in parts] == [4, 4]
    kept = torch.cat([part["tensors"]["observations"][:, 0] for part in parts]).tolist()
    everything = whole["tensors"]["observations"][:, 0].tolist()
    assert sorted(kept) == everything[1:]


@pytest.mark.parametrize("replay", ["", {"size": 3, "tensors": {"actions": torch.zeros(2, 2)}}])
def test_a_damaged_replay_is_named(replay: Any) -> None:
    config = small_config(Path(), num_envs=2, replay_capacity=8)
    with pytest.raises(CheckpointMismatch, match="the checkpoint's `replay"):
        ranks.share_of_replay(replay, config, World(0, 2))


def test_settings_are_divided_evenly(tmp_path: Path) -> None:
    config = split_config(tmp_path)
    assert ranks.share_of(config, 1) is config
    share = ranks.share_of(config, 2)
    assert (share.num_envs, share.batch_size, share.replay_capacity, share.steps) == (2, 2, 4, config.steps)
    message = "`num_envs` must be a multiple of the number of processes, 3, .* got 4; use --num-envs 6, or another"
    with pytest.raises(ValueError, match=message):
        ranks.share_of(config, 3)


def test_a_process_that_dies_ends_the_run_with_a_message(tmp_path: Path) -> None:
    began = time.monotonic()
    assert end(start(die, tmp_path, size=SIZE, errors=tmp_path), 60) == [2, 7]
    assert time.monotonic() - began < 30
    said, folder = (tmp_path / "0.txt").read_text(), tmp_path / "doomed"
    assert said.splitlines()[-1] == (
        "disco-torch: another process of this run has died or does not answer; resume with "
        f"`torchrun ... -m disco_torch train --resume {folder}`."
    )
    assert last_state(folder)["counters"]["rollouts"] == 6


def test_environments_that_fail_in_one_process_stop_all_behind_a_checkpoint(tmp_path: Path) -> None:
    succeed(tmp_path, fail_in_one, tmp_path)
    assert_same(last_state(tmp_path / "failing"), last_state(tmp_path / "untroubled"))


def test_torchrun(tmp_path: Path) -> None:
    folder = train(small_config(tmp_path, steps=24), view=False).folder
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "disco_torch"]
    done = subprocess.run(
        [*command, "train", "--resume", str(folder), "--steps", "120"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done; evaluate it with") == 1 and done.stdout.count("in 2 processes") == 1
    assert last_state(folder)["counters"]["steps"] == 120
