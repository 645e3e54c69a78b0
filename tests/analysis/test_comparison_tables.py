"""Tables of a comparison: what is normalised by what, what is listed apart, and what the tables say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disco_torch.analysis import RANDOM, RunRecord, find_aggregates, find_references, plot_comparison, report
from disco_torch.analysis.comparison import task_table, time_table


def runs(task: str, rule: str, scores: list[float], steps: int = 1000, **settings: float) -> list[RunRecord]:
    curve = ([500, 1000], [0.0, 1.0])
    return [
        RunRecord(task, rule, seed, 0 if rule == RANDOM else steps, score, score / 2, settings, {}, curve, seconds=2.0)
        for seed, score in enumerate(scores)
    ]


RECORDS = [
    *runs("a", RANDOM, [0.0, 0.0]),
    *runs("a", "sb3-ppo", [8.0, 12.0]),
    *runs("a", "ppo", [20.0, 20.0]),
    *runs("a", "ours", [5.0, 15.0]),
    *runs("b", RANDOM, [-100.0, -100.0]),
    *runs("b", "ppo", [-60.0, -60.0], rate=1.0),
    *runs("b", "ppo", [-50.0, -50.0], rate=2.0),
    *runs("b", "ours", [-25.0, -75.0]),
    *runs("hopeless", RANDOM, [1.0, 2.0]),
    *runs("hopeless", "sb3-ppo", [1.5, 3.0]),
    *runs("hopeless", "ours", [9.0, 9.0]),
]
PEERS = ("sb3-ppo", "ppo")


def test_the_peer_is_the_first_rule_with_runs_and_the_best_of_its_settings() -> None:
    found = find_references(RECORDS, PEERS, "score")
    assert found.peers == {"a": "sb3-ppo", "b": "ppo (rate 2.0)"}
    assert found.low == {"a": 0.0, "b": -100.0} and found.high == {"a": 10.0, "b": -50.0}


def test_the_peers_alone_decide_which_tasks_are_listed_apart() -> None:
    assert find_references(RECORDS, PEERS, "score").apart == {"hopeless": "sb3-ppo does not rise above the uniform policy"}
    others = [record for record in RECORDS if record.rule != "ours"]
    assert find_references(others, PEERS, "score") == find_references(RECORDS, PEERS, "score")


def test_a_task_without_peer_or_uniform_policy_is_listed_apart() -> None:
    records = [*runs("a", "ours", [1.0]), *runs("b", RANDOM, [0.0]), *runs("b", "ours", [1.0])]
    assert find_references(records, PEERS, "score").apart == {
        "a": "no runs of the uniform policy",
        "b": "no runs of a peer, sb3-ppo or ppo",
    }


def test_the_area_is_normalised_by_areas() -> None:
    found = find_references(RECORDS, PEERS, "area")
    assert found.low["a"] == 0.0 and found.high["a"] == 5.0 and found.low["b"] == -50.0


def test_aggregates_of_normalised_scores() -> None:
    found = find_aggregates(RECORDS, find_references(RECORDS, PEERS, "score"), "score", ["ours"], resamples=50)
    # a: 0.5, 1.5; b: 1.5, 0.5. The peer: 0.8, 1.2; 1, 1.
    assert found.tasks == ["a", "b"] and list(found.values) == ["ours", "peer"]
    ours, peer = found.values["ours"], found.values["peer"]
    assert ours["mean"].mean == ours["iqm"].mean == 1.0 and ours["optimality_gap"].mean == pytest.approx(0.25)
    assert peer["mean"].mean == pytest.approx(1.0) and peer["improvement"].mean == 0.5
    assert ours["improvement"].mean == 0.5 and ours["iqm"].low < 1 < ours["iqm"].high


def test_aggregates_are_over_tasks_that_all_have() -> None:
    references = find_references(RECORDS, PEERS, "score")
    found = find_aggregates(RECORDS, references, "score", ["ours", "ppo"], resamples=50)
    assert found.tasks == ["a"] and found.left_out == {"b": ["ppo"]}
    assert find_aggregates(RECORDS, references, "score", ["no such"]).values == {}


def test_without_labels_those_are_aggregated_that_are_not_a_peer_alone() -> None:
    records = [record for record in RECORDS if record.label not in ("ppo", "ppo (rate 1.0)")]
    found = find_aggregates(records, find_references(records, PEERS, "score"), "score", resamples=50)
    assert list(found.values) == ["ours", "peer"]


def test_a_peer_that_has_a_row_has_no_second() -> None:
    records = [record for record in RECORDS if record.task == "a" and record.rule != "sb3-ppo"]
    found = find_aggregates(records, find_references(records, ["ppo"], "score"), "score", ["ours", "ppo"], resamples=50)
    assert list(found.values) == ["ours", "ppo"] and found.values["ppo"]["iqm"] == (1.0, 1.0, 1.0)


def test_tables() -> None:
    table = task_table(RECORDS, "score").splitlines()
    assert table[0] == "| Final score: task, steps | random | sb3-ppo | ppo | ours | ppo (rate 1.0) | ppo (rate 2.0) |"
    assert table[2] == "| a, 1k | 0 [0, 0] (2) | 10 [8, 12] (2) | 20 [20, 20] (2) | 10 [5, 15] (2) | - | - |"
    assert time_table(RECORDS).splitlines()[2] == "| a | 200.0 | 200.0 | 200.0 | - | - |"
    text = report(RECORDS, PEERS, ["ours"])
    assert "| Final score, normalised, 2 tasks | IQM | mean | median | optimality gap | P(better than the peer) |" in text
    assert "Not normalised: hopeless, sb3-ppo does not rise above the uniform policy." in text
    assert "Area under the training curve, normalised, 2 tasks" in text
    both = report(RECORDS, PEERS, ["ours", "ppo"])
    assert "Not in the aggregates: b, no run of ppo." in both


def test_a_table_of_one_seed_has_no_interval() -> None:
    assert "| 3.25 (1) |" in task_table(runs("a", "ours", [3.25]), "score")
    assert "P(better" not in report(runs("a", "ours", [3.25]), ())


def test_the_figure_has_a_panel_for_each_task_and_measure(tmp_path: Path) -> None:
    from PIL import Image

    plot_comparison(RECORDS, PEERS, tmp_path / "all.png", ["ours"])
    plot_comparison(runs("a", "ours", [1.0, 2.0]), PEERS, tmp_path / "one.png")
    sizes = [Image.open(tmp_path / name).size for name in ("all.png", "one.png")]
    # Two of aggregates, three tasks and the legend in rows of four; one task and the legend.
    assert sizes[0] == (round(4 * 4.6 * 120), round(2 * 3.6 * 120)) and sizes[1] == (round(2 * 4.6 * 120), round(3.6 * 120))
    assert np.asarray(Image.open(tmp_path / "one.png").convert("L")).std() > 5  # something is drawn
