"""`discover`: what it leaves behind, that it goes on to the last bit, and that several processes find the same rule."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small_discoveries import PAPER, assert_same, end, last_state, metrics_of, run, small_config, start

from disco_torch import DiscoUpdateRule, load_rule
from disco_torch.cli import main
from disco_torch.discovery.config import DiscoverConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.discovery.run import discover
from disco_torch.discovery.session import DiscoverySession
from disco_torch.runs import ProcessLost, World
from disco_torch.runs.checkpoint import list_checkpoints, load_checkpoint
from disco_torch.training.folder import RunFolder
from disco_torch.weights.files import read_file
from disco_torch.weights.parameters import plain_metadata

LOOPS: dict[str, dict[str, Any]] = {"notebook": {}, "paper": PAPER}


@pytest.fixture(scope="module", params=LOOPS)
def loop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Changes that make one of the two loops, and the folder of a run of it that nothing disturbed."""
    changes = LOOPS[request.param]
    return changes, run(small_config(tmp_path_factory.mktemp("whole"), **changes))


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`with stopping(meta_updates, number):` sends the process a signal at the end of that meta-update."""

    @contextmanager
    def stop(meta_updates: int, number: int = signal.SIGTERM) -> Iterator[None]:
        advance = DiscoverySession.advance

        def advancing(session: DiscoverySession) -> None:
            advance(session)
            if session.counters.meta_updates == meta_updates:
                signal.raise_signal(number)

        with monkeypatch.context() as patch:
            patch.setattr(DiscoverySession, "advance", advancing)
            yield

    return stop


def rule_of(folder: Path) -> dict[str, torch.Tensor]:
    """The parameters of the last snapshot."""
    rule = load_rule(max((folder / "rules").glob("rule-*.safetensors")))
    assert isinstance(rule, DiscoUpdateRule)
    return dict(rule.state_dict())


def assert_same_runs(a: Path, b: Path) -> None:
    assert_same(last_state(a), last_state(b))
    assert_same(rule_of(a), rule_of(b))
    assert metrics_of(a) == metrics_of(b)


def assert_close_rules(a: Path, b: Path) -> None:
    ours, theirs = last_state(a), last_state(b)
    assert ours["counters"] == theirs["counters"]
    assert ours["rule"].keys() == theirs["rule"].keys()
    for value, other in zip(ours["rule"].values(), theirs["rule"].values(), strict=True):
        assert value.dtype == torch.float64
        torch.testing.assert_close(value, other, rtol=0, atol=1e-10)


def test_what_a_discovery_leaves_behind(tmp_path: Path) -> None:
    config = small_config(tmp_path, tensorboard=True, meta_updates=5, checkpoint_every=4)
    result = discover(config, view=False)
    folder = result.folder
    assert folder == tmp_path / "discovery-seed0" and not result.stopped
    assert {**vars(DiscoveryFolder.open(folder).config), "name": ""} == vars(config)

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.metrics and [line["meta_updates"] for line in lines] == [2, 4, 5]
    assert [line["updates"] for line in lines] == [2 * 3 * count for count in (2, 4, 5)]
    steps = [line["steps"] for line in lines]
    assert steps == sorted(steps) and steps[0] > 0
    assert all(line.keys() >= {"meta_loss", "meta_grad_norm", "meta_updates_per_second", "lives"} for line in lines)
    assert result.final_returns and all(name.startswith(("catch", "chain")) for name in result.final_returns)

    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == [
        "checkpoint-000000004.pt",
        "checkpoint-000000005.pt",
    ]
    rules = sorted(path.name for path in (folder / "rules").glob("rule-*.safetensors"))
    assert [name for name in rules if "optim" not in name] == ["rule-000003.safetensors", "rule-000005.safetensors"]
    assert result.rule == folder / "rules" / "rule-000005.safetensors"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["meta_updates"], summary["steps"], summary["finished"]) == (5, steps[-1], True)
    assert summary["rule"] == "rules/rule-000005.safetensors" and summary["final_returns"] == result.final_returns
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert not list(folder.rglob("*.partial"))


def test_a_snapshot_says_where_it_comes_from(tmp_path: Path) -> None:
    result = discover(small_config(tmp_path, meta_updates=2, seed=3), view=False)
    provenance = plain_metadata(read_file(result.rule), "provenance")
    config = json.loads((result.folder / "config.json").read_text())
    assert provenance["config"] == config and provenance["seeds"] == [3] and provenance["version"] == "0.1.0"
    assert provenance["started_from"] == "random weights" and provenance["meta_updates"] == 2
    assert provenance["updates"] == 12 and provenance["steps"] == result.metrics[-1]["steps"]
    params = discover(small_config(tmp_path, meta_updates=1, start=str(result.rule)), view=False).folder
    assert DiscoveryFolder.open(params).config.start == str(result.rule.resolve())


def test_a_stopped_discovery_goes_on_to_the_last_bit(tmp_path: Path, loop: Any, stopping: Any) -> None:
    changes, whole = loop
    with stopping(1, signal.SIGINT):  # neither a line of metrics nor a checkpoint is due then
        result = discover(small_config(tmp_path, **changes), view=False)
    assert result.stopped and last_state(result.folder)["counters"]["meta_updates"] == 1
    assert result.rule.name == "rule-000001.safetensors" and result.rule.is_file()
    assert json.loads((result.folder / "summary.json").read_text())["finished"] is False
    with stopping(3, signal.SIGTERM):
        assert discover(resume=result.folder, view=False).stopped
    again = discover(resume=str(result.folder), view=False)
    assert not again.stopped and again.folder == result.folder
    assert_same_runs(again.folder, whole)
    assert again.metrics[-1]["seconds"] > again.metrics[0]["seconds"]


def test_a_longer_discovery_goes_on_to_the_last_bit(tmp_path: Path, loop: Any) -> None:
    changes, whole = loop
    short = run(small_config(tmp_path, meta_updates=3, **changes))
    for _ in range(2):  # a finished one stays as it is
        run(small_config(tmp_path), resume=short)
        assert DiscoveryFolder.open(short).config.meta_updates == 4
        assert_same_runs(short, whole)


def test_the_seed_decides_it(tmp_path: Path) -> None:
    folders = [run(small_config(tmp_path, seed=seed, meta_updates=2)) for seed in (1, 1, 2)]
    assert [folder.name for folder in folders] == ["discovery-seed1", "discovery-seed1-2", "discovery-seed2"]
    assert_same_runs(folders[0], folders[1])
    assert any(not torch.equal(a, b) for a, b in zip(*(rule_of(f).values() for f in folders[1:]), strict=True))


def test_minutes_end_it_as_an_interrupt_does(tmp_path: Path) -> None:
    result = discover(small_config(tmp_path, minutes=1e-9), view=False)
    assert result.stopped and result.metrics == [] and result.final_returns == {}
    assert discover(resume=result.folder, view=False).stopped  # with its own minutes
    again = discover(small_config(tmp_path), resume=result.folder, view=False)
    assert not again.stopped and again.metrics[-1]["meta_updates"] == 4


def test_what_cannot_begin_or_go_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        run(small_config(tmp_path / "runs", start="nowhere"))
    assert not (tmp_path / "runs").exists()
    folder = DiscoveryFolder.create(small_config(tmp_path))
    folder.metrics.write_text('{"meta_updates": 1}\n')  # its checkpoints are lost
    with pytest.raises(ValueError, match="a run can be resumed once it has written one"):
        run(resume=folder.path)
    with pytest.raises(ValueError, match=r"must be the folder of a training run, got .*, which is of another kind"):
        RunFolder.open(folder.path)


LIFE = 8
"""More meta-updates than a process does before it is killed."""


def newest(folder: Path) -> int:
    """The meta-updates of the newest checkpoint, 0 without one."""
    return max((int(path.stem.removeprefix("checkpoint-")) for path in list_checkpoints(folder / "checkpoints")), default=0)


def begin(config: DiscoverConfig) -> None:
    discover(config, view=False)


def go_on(folder: Path) -> int:
    return main(["discover", "--resume", str(folder)])


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kills(tmp_path: Path, kills: int) -> None:
    dice = random.Random(kills)
    quick = {"window": 1, "rollout_length": 3, "valid_length": 3, "meta_updates": kills * LIFE, "log_every": 1}
    config = small_config(tmp_path, name="killed", checkpoint_every=1, **quick)
    folder, reached = tmp_path / "killed", 0
    (process,) = start(begin, config)
    for _ in range(kills):
        wanted, deadline = newest(folder) + dice.randint(1, LIFE - 4), time.monotonic() + 60
        while newest(folder) < wanted and time.monotonic() < deadline:
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(dice.uniform(0.0, 0.05))
        process.kill()
        assert end([process]) == [-signal.SIGKILL], "it ended by itself; make the run longer"
        here = load_checkpoint(folder / "checkpoints")["session"]["counters"]["meta_updates"]
        assert here >= max(reached, wanted), "a checkpoint that was there is lost"
        reached = here
        (process,) = start(go_on, folder)
    assert end([process], 1200) == [0]  # most of the run is still to come, and the machine may be busy
    whole = run(small_config(tmp_path, checkpoint_every=0, **quick))
    assert_same_runs(folder, whole)
    assert not list(folder.rglob("*.partial"))


def test_two_processes_find_the_rule_of_one(tmp_path: Path, loop: Any) -> None:
    changes, alone = loop
    assert end(start(begin, small_config(tmp_path, name="split", **changes), size=2)) == [0, 0]
    folder = tmp_path / "split"
    assert_close_rules(folder, alone)
    ours, theirs = metrics_of(folder), metrics_of(alone)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for line, other in zip(ours, theirs, strict=True):
        assert line == pytest.approx(other, rel=1e-9, abs=1e-10)


def test_it_goes_on_with_another_number_of_processes(tmp_path: Path, loop: Any) -> None:
    changes, alone = loop
    split = small_config(tmp_path, name="split", meta_updates=2, **changes)
    assert end(start(begin, split, size=2)) == [0, 0]
    assert last_state(tmp_path / "split")["counters"]["meta_updates"] == 2
    run(small_config(tmp_path), resume=tmp_path / "split")
    assert_close_rules(tmp_path / "split", alone)

    joined = run(small_config(tmp_path, name="joined", meta_updates=3, **changes))
    assert end(start(lengthen, joined, small_config(tmp_path), size=2)) == [0, 0]
    assert_close_rules(joined, alone)


def lengthen(folder: Path, config: DiscoverConfig) -> None:
    discover(config, resume=folder, view=False)


def test_one_that_is_told_to_stop_stops_all(tmp_path: Path) -> None:
    config = small_config(tmp_path, name="endless", meta_updates=10**6, checkpoint_every=2)
    processes = start(begin, config, size=2)
    folder = tmp_path / "endless"
    wait_for_checkpoint(folder, processes)
    assert processes[1].pid is not None
    os.kill(processes[1].pid, signal.SIGINT)
    assert end(processes) == [0, 0]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] is False and summary["meta_updates"] == newest(folder)
    assert (folder / summary["rule"]).is_file()


def wait_for_checkpoint(folder: Path, processes: Any) -> None:
    deadline = time.monotonic() + 60
    while not newest(folder):
        assert all(process.is_alive() for process in processes) and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_dies_stops_the_others_with_a_message(tmp_path: Path, victim: int) -> None:
    folder = run(small_config(tmp_path, meta_updates=1, checkpoint_every=2))
    DiscoveryFolder.open(folder, extend_to=10**6)
    processes = start(go_on, folder, size=2, errors=tmp_path)
    deadline = time.monotonic() + 60
    while newest(folder) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    processes[victim].kill()
    codes = end(processes, seconds=30)
    assert codes[victim] == -signal.SIGKILL and codes[1 - victim] == 2
    error = (tmp_path / f"{1 - victim}.txt").read_text()
    assert error == (
        "disco-torch: another process of this run has died or does not answer; resume with `torchrun ... -m "
        f"disco_torch discover --resume {folder}`.\n"
    )
    reached = newest(folder)
    assert reached >= 4
    config = load_checkpoint(folder / "checkpoints")["config"]
    (folder / "config.json").write_text(json.dumps(json.loads(config) | {"meta_updates": reached + 1}))
    assert discover(resume=folder, view=False).metrics[-1]["meta_updates"] == reached + 1


def test_a_process_that_is_lost_before_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(world: World, flag: bool) -> bool:
        raise ProcessLost("another process of this run has died or does not answer")

    monkeypatch.setattr(World, "any", lost)
    with pytest.raises(ProcessLost, match="has died or does not answer; it had not written a checkpoint yet, start it"):
        run(small_config(tmp_path))


def test_a_discovery_killed_before_its_first_checkpoint_starts_again(tmp_path: Path, loop: Any) -> None:
    changes, whole = loop
    killed = DiscoveryFolder.create(small_config(tmp_path, name="killed", **changes)).path
    run(resume=killed)
    assert_same_runs(killed, whole)
