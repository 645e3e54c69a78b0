"""Killed inside a write of any kind, a run is not lost, and a run on tensors continues to the last bit."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import Kill, begin, draw_kill, end, kill_behind_a_checkpoint
from tensor_mutants import same_tree

from disco_torch import AgentConfig, DiscoConfig, MetaNetConfig, MetaRNNConfig, ValueFunctionConfig
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.runs.checkpoint import list_checkpoints, load_checkpoint
from disco_torch.runs.folder import ConfiguredFolder
from disco_torch.training.folder import RunFolder
from disco_torch.weights import load_rule

TIMING = ("seconds", "steps_per_second", "updates_per_second", "meta_updates_per_second", "minutes_left")
SIZES = {"configuration": 1500, "checkpoint": 20_000, "snapshot": 15_000, "summary": 300, "metrics": 300}
"""About as many bytes as a file has."""
OFTEN = ["--device", "cpu", "--no-tensorboard", "--log-every", "1", "--checkpoint-every", "2"]
TRAIN = [
    *["train", *OFTEN, "--rule", "actor-critic", "--num-envs", "2", "--rollout-length", "5", "--batch-size", "4"],
    *["--replay-capacity", "6", "--agent.dense", "8"],
]
RULE = DiscoConfig(
    net=MetaNetConfig(
        hidden_size=8,
        embedding_size=(4, 2),
        prediction_size=8,
        meta_rnn=MetaRNNConfig(policy_channels=(4,), embedding_size=(4,), pred_embedding_size=(4, 1), hidden_size=4),
        policy_channels=(4,),
        policy_target_channels=(4,),
    ),
    num_bins=11,
)


@dataclass(frozen=True)
class Case:
    """A run that is killed again and again.

    Attributes:
      command: that starts it, without its length.
      folder: class of its folder.
      unit: what it counts, in one rollout or meta-update.
      kinds: of its writes.
      is_exact: whether it continues to the last bit.
      ahead: units that take longer than the moment at which a process is killed from outside.
    """

    command: list[str]
    folder: type[ConfiguredFolder[Any]]
    unit: int
    kinds: tuple[str, ...]
    is_exact: bool = True
    ahead: int = 20

    @property
    def option(self) -> str:
        return "--" + self.folder.length.replace("_", "-")


WRITES = ("configuration", "checkpoint", "metrics", "summary")
CASES = {
    "training": Case([*TRAIN, "--env-args", "rows", "4", "columns", "3"], RunFolder, 10, WRITES),
    "gymnasium": Case([*TRAIN, "--env", "CartPole-v1"], RunFolder, 10, WRITES, is_exact=False),
    "discovery": Case(["discover"], DiscoveryFolder, 1, (*WRITES, "snapshot"), ahead=8),
}


def discovery(runs: Path) -> DiscoverConfig:
    """The paper's loop, with overlapping windows, a replay and lives, in two agents."""
    habitats = (HabitatConfig("catch", {"rows": 4, "columns": 3}), HabitatConfig("chain"))
    return DiscoverConfig(
        groups=(GroupConfig(habitats, AgentConfig((8,), 4, (4,)), learning_rates=(1e-2, 1e-3)),),
        rule=RULE,
        device="cpu",
        speed="plain",
        window=2,
        stride=1,
        fresh_validation=True,
        rollout_length=3,
        valid_length=3,
        num_envs=2,
        batch_size=2,
        replay_capacity=4,
        replayed_share=0.5,
        lifetimes=(3, 8),
        value_function=ValueFunctionConfig(dense=(8,)),
        runs=runs,
        log_every=1,
        snapshot_every=2,
        checkpoint_every=2,
        tensorboard=False,
    )


@dataclass
class Killed:
    """The run, and what must never get less."""

    case: Case
    path: Path
    reached: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def newest(self) -> int:
        paths = list_checkpoints(self.path / "checkpoints")
        return max((int(path.stem.removeprefix("checkpoint-")) for path in paths), default=-1)

    def length(self) -> int:
        """Of the run, in units, as its configuration says; 0 before there is one."""
        file = self.path / "config.json"
        return json.loads(file.read_text())[self.case.folder.length] // self.case.unit if self.path.exists() else 0

    def arguments(self, units: int) -> list[str] | DiscoverConfig:
        """The command that starts the run, or continues it up to so many units."""
        length = [self.case.option, str(units * self.case.unit)]
        if self.path.exists():
            return [self.case.command[0], "--resume", str(self.path), *length]
        if self.case.folder is DiscoveryFolder:
            return dataclasses.replace(discovery(self.path.parent), meta_updates=units, name=self.path.name)
        return [*self.case.command, *length, "--runs", str(self.path.parent), "--name", self.path.name]

    def live(self, kind: str, dice: random.Random) -> None:
        """One process that continues the run until it is killed."""
        if kind == "any moment":
            process = begin(self.arguments(self.length() + self.case.ahead))
            kill_behind_a_checkpoint(process, self.newest, dice)
        else:
            kill: Kill = draw_kill(kind, dice, SIZES)
            process = begin(self.arguments(self.length() + 4), kill)
        assert end(process) == -signal.SIGKILL, "it was not killed"
        self.counts[kind] += 1
        self.check()

    def check(self) -> None:
        """Nothing that was there is lost, and everything that is there is whole."""
        if not self.path.exists():
            return
        folder = self.case.folder.open(self.path)
        lines = [line[self.case.folder.counter] for line in folder.read_metrics()]
        if self.newest() >= 0:
            here = load_checkpoint(self.path / "checkpoints")["session"]["counters"][self.case.folder.counter]
            assert here >= self.reached, "a checkpoint that was there is lost"
            self.reached = here
            assert lines == list(range(1, len(lines) + 1)) and len(lines) >= here
        if (self.path / "summary.json").exists():
            json.loads((self.path / "summary.json").read_text())
        for rule in self.path.glob("rules/*.safetensors"):
            load_rule(str(rule))
            torch.load(rule.with_suffix(".moments.pt"), weights_only=True)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMING} for line in lines]


def finish(run: Killed) -> None:
    """Lets the run come to its end, and compares it with one that nobody killed."""
    length = run.length()
    assert end(begin(run.arguments(length))) == 0
    lines = metrics_of(run.path)
    assert [line[run.case.folder.counter] for line in lines] == list(range(1, length + 1))
    assert json.loads((run.path / "summary.json").read_text())["finished"] is True
    assert not list(run.path.rglob("*.partial"))
    whole = Killed(run.case, run.path.with_name("whole"))
    assert end(begin(whole.arguments(length)), 1800) == 0
    if run.case.is_exact:
        assert lines == metrics_of(whole.path)
        ours, theirs = (load_checkpoint(each.path / "checkpoints")["session"] for each in (run, whole))
        assert same_tree(ours, theirs)
    for rule in whole.path.glob("rules/*.safetensors"):
        ours, theirs = (
            dict(load_rule(str(run_path / "rules" / rule.name)).named_parameters()) for run_path in (run.path, whole.path)
        )
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def kill_again_and_again(name: str, folder: Path, kinds: Callable[[Case], list[str]]) -> Counter[str]:
    case, dice = CASES[name], random.Random(name)
    run = Killed(case, folder / "killed")
    # The first ones fall before the run has a folder, and before its first checkpoint.
    for kind in ["configuration", "checkpoint", *kinds(case)]:
        run.live(kind, dice)
    finish(run)
    return run.counts


@pytest.mark.parametrize("name", CASES)
def test_a_kill_in_each_kind_of_write(name: str, tmp_path: Path) -> None:
    counts = kill_again_and_again(name, tmp_path, lambda case: list(case.kinds))
    assert set(counts) == set(CASES[name].kinds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "in_writes", "at_any_moment"), [("training", 68, 10), ("gymnasium", 52, 10), ("discovery", 60, 10)]
)
def test_many_kills(name: str, in_writes: int, at_any_moment: int, tmp_path: Path) -> None:
    def kinds(case: Case) -> list[str]:
        drawn = [case.kinds[i % len(case.kinds)] for i in range(in_writes)] + ["any moment"] * at_any_moment
        random.Random(0).shuffle(drawn)
        return drawn

    counts = kill_again_and_again(name, tmp_path, kinds)
    print(f"\n{name}: {sum(counts.values())} kills, {dict(counts)}", file=sys.stderr)
