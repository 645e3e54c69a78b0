"""Callbacks of a discovery: when they are called, what they see, and that they stop or fail in all processes at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small_discoveries import assert_same, end, last_state, metrics_of, run, small_config, start

from disco_torch import DiscoverConfig, discover
from disco_torch.runs import Callback, CallbackFailed, RunStatus

QUICK = {"rollout_length": 3, "valid_length": 3, "window": 1, "log_every": 2, "meta_updates": 4}


class Keeps(Callback):
    """Keeps what it sees; may stop the discovery or raise after a number of meta-updates."""

    def __init__(self, at: int = 0, what: str | Exception = "") -> None:
        self.seen: list[tuple[str, int, dict[str, float]]] = []
        self.at, self.what = at, what
        self.reason = ""

    def after_rollout(self, status: RunStatus) -> str | None:
        self.seen.append(("meta-update", status.counters["meta_updates"], dict(status.metrics)))
        assert len(status.session.groups) == 1 and status.session.rule_params
        if status.counters["meta_updates"] != self.at:
            return None
        if isinstance(self.what, Exception):
            raise self.what
        return self.what

    def after_evaluation(self, status: RunStatus) -> str | None:
        raise AssertionError("a discovery has no evaluations")

    def at_end(self, status: RunStatus) -> None:
        self.reason = status.stop_reason
        assert (status.folder / "summary.json").is_file()
        self.seen.append(("end", status.counters["meta_updates"], dict(status.metrics)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small_config(tmp_path_factory.mktemp("runs"), **QUICK))


def test_they_are_called_after_each_meta_update_and_change_nothing(tmp_path: Path, whole: Path) -> None:
    keeps = Keeps()
    result = discover(small_config(tmp_path, **QUICK), view=False, callbacks=[keeps])
    assert not result.stopped and result.stopped_because == keeps.reason == ""
    assert [(event, count) for event, count, _ in keeps.seen] == [*(("meta-update", n) for n in (1, 2, 3, 4)), ("end", 4)]
    assert keeps.seen[0][2] == {} and keeps.seen[1][2] == keeps.seen[2][2] == result.metrics[0]
    assert "meta_loss" in keeps.seen[1][2] and keeps.seen[3][2] == keeps.seen[4][2] == result.metrics[1]
    assert_same(last_state(result.folder), last_state(whole))


def test_one_stops_the_discovery_which_can_be_continued(tmp_path: Path, whole: Path) -> None:
    keeps = Keeps(3, "enough")
    result = discover(small_config(tmp_path, **QUICK), view=False, callbacks=[keeps])
    assert result.stopped and result.stopped_because == keeps.reason == "Keeps: enough"
    assert last_state(result.folder)["counters"]["meta_updates"] == 3 and result.rule.name == "rule-000003.safetensors"
    again = discover(resume=result.folder, view=False, callbacks=[keeps])
    assert not again.stopped and keeps.seen[-1][:2] == ("end", 4)
    assert_same(last_state(result.folder), last_state(whole))


def test_one_that_fails_is_named_after_the_state_is_saved(tmp_path: Path, whole: Path) -> None:
    config = small_config(tmp_path, name="failing", **QUICK)
    message = (
        r"the callback Keeps failed in after_rollout at step \d+ \(ZeroDivisionError: 0 / 0\); the state is saved, resume "
        r"with `disco-torch discover --resume .*failing`"
    )
    with pytest.raises(CallbackFailed, match=message) as caught:
        discover(config, view=False, callbacks=[Keeps(3, ZeroDivisionError("0 / 0"))])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    folder = tmp_path / "failing"
    assert last_state(folder)["counters"]["meta_updates"] == 3
    run(resume=folder)
    assert_same(last_state(folder), last_state(whole))
    assert metrics_of(folder) == metrics_of(whole)


def stop_all(config: DiscoverConfig, rank_file: Path) -> None:
    keeps = Keeps(2, "enough")
    result = discover(config, view=False, callbacks=[keeps])
    assert result.stopped_because == "Keeps: enough"
    with rank_file.open("a") as file:
        file.write(f"{len(keeps.seen)}\n")


def fail_in_all(config: DiscoverConfig) -> None:
    try:
        discover(config, view=False, callbacks=[Keeps(2, ZeroDivisionError("0 / 0"))])
    except CallbackFailed as error:
        sys.exit(3 if "the state is saved" in str(error) else 4)


def test_the_first_process_calls_them_and_all_processes_stop(tmp_path: Path) -> None:
    calls = tmp_path / "calls.txt"
    assert end(start(stop_all, small_config(tmp_path, name="stopped", **QUICK), calls, size=2)) == [0, 0]
    assert sorted(calls.read_text().split()) == ["0", "3"]
    assert last_state(tmp_path / "stopped")["counters"]["meta_updates"] == 2
    assert end(start(fail_in_all, small_config(tmp_path, name="failed", **QUICK), size=2)) == [3, 3]
    assert last_state(tmp_path / "failed")["counters"]["meta_updates"] == 2
