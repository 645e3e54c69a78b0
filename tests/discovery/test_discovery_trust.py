"""Nothing lost and nothing silent in a discovery: its lock, its files, and the state of its optimiser."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_discoveries import PAPER, assert_same, end, last_state, metrics_of, run, small_config, start

from disco_torch.cli import main
from disco_torch.discovery import DiscoverySession
from disco_torch.discovery.snapshots import moments_path
from disco_torch.runs import RunDiverged, RunInUse
from disco_torch.runs.checkpoint import load_checkpoint, save_checkpoint

QUICK = {"rollout_length": 3, "valid_length": 3, "window": 1, "meta_updates": 2}
HOLD = """
import sys; from pathlib import Path; from disco_torch.runs import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def go_on(folder: Path) -> int:
    return main(["discover", "--resume", str(folder), "--meta-updates", "9"])


def test_a_second_resume_is_refused_in_all_its_processes(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, **QUICK))
    config = (folder / "config.json").read_bytes()
    command = [sys.executable, "-c", HOLD, str(folder)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    message = f"the run {folder} is open in another process, process {holder.pid} on"
    with pytest.raises(RunInUse, match=message):
        run(small_config(tmp_path, meta_updates=9), resume=folder)
    assert end(start(go_on, folder, size=2, errors=tmp_path)) == [2, 2]
    assert all(message in (tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert (folder / "config.json").read_bytes() == config
    holder.communicate("\n", timeout=30)


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`after(meta_updates, act)` calls `act(session)` at the end of that meta-update."""
    advance, actions = DiscoverySession.advance, {}

    def advancing(session: DiscoverySession) -> None:
        advance(session)
        actions.pop(session.counters.meta_updates, lambda session: None)(session)

    monkeypatch.setattr(DiscoverySession, "advance", advancing)
    return actions.__setitem__


@pytest.mark.parametrize("adam_per_agent", [False, True])
def test_moments_that_are_not_finite_end_the_discovery_and_are_named(
    tmp_path: Path, after: Any, adam_per_agent: bool
) -> None:
    def ruin(session: DiscoverySession) -> None:
        next(iter(session.opt_states[0].nu.values())).view(-1)[0] = float("inf")

    after(1, ruin)
    config = small_config(tmp_path, name="mine", adam_per_agent=adam_per_agent, **QUICK)
    with pytest.raises(RunDiverged, match=r"`optimizer/0/nu/\S+` must be finite, got inf \(1 of \d+ values\) at step \d+;"):
        run(config)
    assert last_state(tmp_path / "mine")["counters"]["meta_updates"] == 0


def ruin_in_one(config: Any) -> int:
    advance = DiscoverySession.advance

    def advancing(session: DiscoverySession) -> None:
        advance(session)
        if not session.world.is_first:
            next(iter(session.opt_states[0].mu.values())).view(-1)[0] = float("nan")

    DiscoverySession.advance = advancing  # type: ignore[method-assign]
    try:
        run(config)
    except RunDiverged as error:
        print(error, file=sys.stderr)
        return 3
    return 0


def test_all_processes_end_where_the_moments_of_one_are_not_finite(tmp_path: Path) -> None:
    config = small_config(tmp_path, name="mine", adam_per_agent=True, log_every=1, **QUICK)
    assert end(start(ruin_in_one, config, size=2, errors=tmp_path)) == [3, 3]
    assert "must be finite, which it is not in another process" in (tmp_path / "0.txt").read_text()
    assert "`optimizer/0/mu/" in (tmp_path / "1.txt").read_text()


def test_partial_files_of_snapshots_are_removed_at_the_next_start(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, **QUICK))
    partial = folder / "rules" / ".rule-000001.safetensors.0123.partial"
    partial.write_bytes(b"half")
    run(small_config(tmp_path, meta_updates=3), resume=folder)
    assert not partial.exists() and (folder / "rules" / "rule-000003.safetensors").is_file()


def test_a_folder_that_is_removed_in_mid_run_stays_so(tmp_path: Path, after: Any) -> None:
    after(1, lambda session: shutil.rmtree(tmp_path / "mine"))
    with pytest.raises(FileNotFoundError, match=r"the folder .*mine must stay while its run is going on"):
        run(small_config(tmp_path, name="mine", snapshot_every=1, **QUICK))
    assert not (tmp_path / "mine").exists()


def test_a_full_disk_while_a_snapshot_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("disco_torch.discovery.snapshots.save_rule", full)
        with pytest.raises(OSError, match=r"a snapshot of .*mine cannot be written .*No space left.* is whole; free some"):
            run(small_config(tmp_path, name="mine", **QUICK))
    run(resume=tmp_path / "mine")
    assert metrics_of(tmp_path / "mine")[-1]["meta_updates"] == 2


@pytest.mark.parametrize("name", ["../x", "a:b"])
def test_names_that_are_not_those_of_one_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="`name` must be the name of one folder"):
        small_config(tmp_path, name=name)


def ruined(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the only group of the newest checkpoint."""
    content = load_checkpoint(folder / "checkpoints")
    edit(content["session"]["groups"][0])
    del content["format"]
    save_checkpoint(folder / "checkpoints", 2, content, keep=9)


HUGE = torch.zeros(()).expand(2**40)
GROUPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    r"`groups/0/more` is not part of this state": lambda group: group.update(more=1),
    r"`groups/0/ids` must be the numbers of all 3 agents in order": lambda group: group.update(ids=[0, 2, 1]),
    r"`groups/0/generator` must be \[\d+\] of uint8, got \[1099511627776\]": lambda group: group.update(generator=HUGE),
    r"`groups/0/window` must lie in 0 \.\. 2, got 3": lambda group: group.update(window=group["window"][:1] * 3),
    r"`groups/0/agents/returns` must be \[3, 4\] of float64, got \[3, 1099511627776\]": lambda group: group["agents"].update(
        returns=torch.zeros((), dtype=torch.float64).expand(3, 2**40)
    ),
    r"`groups/0/agents/replay/0/actions` must lie in 0 \.\. 2, got 9": lambda group: group["agents"][
        "replay/0/actions"
    ].fill_(9),
    r"`groups/0/agents/replay/1` must lie in 0 \.\. 8, got 99": lambda group: group["agents"]["replay/1"].fill_(99),
    r"`groups/0/position` must lie in 0 \.\. 7, got 8": lambda group: group.update(position=8),
    r"`groups/0/lives` must be 3 lists of 3 integers": lambda group: group.update(lives=[[0, 0, 0]]),
    r"`groups/0/lives` must lie in 0 \.\. \d+, got -1": lambda group: group["lives"][1].__setitem__(0, -1),
    r"`groups/0/environments/2` is not part of this state": lambda group: group["environments"].update({"2": {}}),
    r"`groups/0/environments/0/mine` must be the numbers of all 2 agents": lambda group: group["environments"]["0"].update(
        mine=[1]
    ),
}


@pytest.fixture(scope="module")
def discovered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config(tmp_path_factory.mktemp("runs"), **PAPER)
    return run(dataclasses.replace(config, rollout_length=3, valid_length=3, meta_updates=2))


@pytest.mark.parametrize("message", GROUPS)
def test_a_group_that_is_not_what_it_should_be(tmp_path: Path, discovered: Path, message: str) -> None:
    folder = shutil.copytree(discovered, tmp_path / "run")
    ruined(folder, GROUPS[message])
    with pytest.raises(ValueError, match=message):
        run(small_config(tmp_path, meta_updates=3), resume=folder)


def test_environments_under_the_name_that_they_had_at_first(tmp_path: Path, discovered: Path) -> None:
    older, newer = (shutil.copytree(discovered, tmp_path / name) for name in ("older", "newer"))
    ruined(older, lambda group: group.update(worlds=group.pop("environments")))
    for folder in (older, newer):
        run(small_config(tmp_path, meta_updates=3), resume=folder)
    assert_same(last_state(older)["groups"], last_state(newer)["groups"])


def first(stored: dict[str, Any], part: str) -> torch.Tensor:
    return next(iter(stored[part].values()))


def renamed(stored: dict[str, Any]) -> None:
    stored["mu"]["other"] = stored["mu"].pop(next(iter(stored["mu"])))


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another name": (renamed, r"`mu/\S+` is missing"),
    "another shape": (lambda stored: first(stored, "nu").resize_(1), r"`nu/\S+` must be .* got \[1\] of float64"),
    "another dtype": (lambda stored: stored["nu"].update({n: x.half() for n, x in stored["nu"].items()}), "got .* float16"),
    "not finite": (lambda stored: first(stored, "mu").fill_(float("nan")), r"`mu/\S+` must be finite, got nan"),
    "negative": (lambda stored: first(stored, "nu").fill_(-1.0), "must not be negative"),
    "a count of another kind": (lambda stored: stored.update(count=torch.zeros(())), r"`count` must be \[\] of int64"),
    "no count": (lambda stored: stored.pop("count"), "`count` is missing"),
    "more": (lambda stored: stored.update(more=1), "`more` is not part of this state"),
    "nothing": (lambda stored: stored.clear(), "is not the optimiser's state of the rule beside it"),
}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = run(small_config(tmp_path_factory.mktemp("start"), **QUICK))
    return folder / "rules" / "rule-000002.safetensors"


def with_moments(snapshot: Path, folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """A snapshot with other moments beside it."""
    path = folder / snapshot.name
    shutil.copy(snapshot, path)
    stored = torch.load(moments_path(snapshot), weights_only=True)
    edit(stored)
    torch.save(stored, moments_path(path))
    return path


@pytest.mark.parametrize("what", EDITS)
def test_moments_that_are_not_those_of_the_rule(tmp_path: Path, snapshot: Path, what: str) -> None:
    edit, message = EDITS[what]
    path = with_moments(snapshot, tmp_path, edit)
    with pytest.raises(ValueError, match=r"moments.pt is not the optimiser's state of the rule .*; remove it to") as caught:
        DiscoverySession(small_config(tmp_path, start=str(path), **QUICK))
    assert caught.match(message)


def test_damaged_moments(tmp_path: Path, snapshot: Path) -> None:
    path = with_moments(snapshot, tmp_path, lambda stored: None)
    moments_path(path).write_bytes(moments_path(path).read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"moments.pt is not the optimiser's state of the rule beside it"):
        DiscoverySession(small_config(tmp_path, start=str(path), **QUICK))


def test_moments_go_to_their_parameters_in_whatever_order_they_are_stored(tmp_path: Path, snapshot: Path) -> None:
    def turn(stored: dict[str, Any]) -> None:
        for part in ("mu", "nu"):
            stored[part] = dict(reversed(stored[part].items()))

    path = with_moments(snapshot, tmp_path, turn)
    ours, theirs = (DiscoverySession(small_config(tmp_path, start=str(start), **QUICK)) for start in (path, snapshot))
    for part in ("mu", "nu"):
        a, b = (getattr(session.opt_states[0], part) for session in (ours, theirs))
        assert list(a) == list(b) == list(ours.rule_params)
        assert all(torch.equal(a[name], b[name]) for name in a)
