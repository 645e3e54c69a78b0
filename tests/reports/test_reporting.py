"""Reports: from real runs to one page, whatever is missing in them."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reported_runs import small_discovery, small_training

from disco_torch import discover, load_run, make_report, train
from disco_torch.analysis import aggregate, probability_of_improvement
from disco_torch.cli import main
from disco_torch.reports import Report, improvements, reporting
from disco_torch.reports.groups import MAX_LABEL, short_labels
from disco_torch.training.evaluation import record


class Tables(HTMLParser):
    """The tags of a page, and its tables as rows of texts; raises where a tag is closed that is not open."""

    EMPTY = ("meta", "input", "path", "use", "rect", "circle", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def last_return(run: Path) -> float:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["return"] for line in lines if "return" in line][-1]


def cut_short(run: Path, lines: int) -> None:
    """Leaves a run as a kill does: some lines of metrics, no summary."""
    kept = (run / "metrics.jsonl").read_text().splitlines(keepends=True)[:lines]
    (run / "metrics.jsonl").write_text("".join(kept))
    (run / "summary.json").unlink()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two rules on two boards, a discovery and an agent that learned with its rule, by name."""
    where, made = tmp_path_factory.mktemp("runs"), {}
    for rule, seeds in (("actor-critic", 3), ("ppo", 2)):
        for rows in (4, 5):
            for seed in range(seeds):
                config = small_training(
                    where, rule=rule, seed=seed, env_args={"rows": rows, "columns": 3}, name=f"{rule}-{rows}-{seed}"
                )
                made[config.name] = train(config, view=False, eval_every=120 if rule == "ppo" else 0).folder
    record(load_run(made["ppo-4-0"]), made["ppo-4-0"] / "episode.gif")
    found = discover(small_discovery(where, name="discovery"), view=False)
    made["discovery"] = found.folder
    made["fresh"] = train(small_training(where, rule=str(found.rule), name="fresh"), view=False).folder
    return made


@pytest.fixture(scope="module")
def made(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make_report(list(runs.values()), tmp_path_factory.mktemp("pages") / "new" / "report.html")


def test_the_page_is_whole_and_needs_nothing_else(made: Report) -> None:
    text = made.path.read_text()
    page = Tables(text)
    assert page.open == []
    without_data = re.sub(r"base64,[\w+/=]*", "", text)
    assert "http" not in without_data and "//" not in without_data
    for tag, attributes in page.found:
        assert tag not in ("link", "iframe", "object", "script"), tag
        assert (attributes.get("src") or "data:").startswith("data:")
        assert (attributes.get("href") or "#").startswith("#")
    links = {(attributes.get("href") or "")[1:] for tag, attributes in page.found if tag == "a"}
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(links) == 12 and all(ids.count(link) == 1 for link in links)
    for word in ("prefers-color-scheme: dark", 'name="viewport"', "currentColor", "<details>"):
        assert word in text
    assert list(made.path.parent.iterdir()) == [made.path]


def test_scores_are_those_of_the_metrics(made: Report, runs: dict[str, Path]) -> None:
    scores = {(group.task, group.label): list(group.scores.values()) for group in made.scores}
    small, large = "catch rows 4 columns 3", "catch rows 5 columns 3"
    rule = "rule-000004"
    keys = [(small, "actor-critic"), (small, "ppo"), (small, rule), (large, "actor-critic"), (large, "ppo")]
    assert list(scores) == keys
    expected = [last_return(runs[f"actor-critic-4-{seed}"]) for seed in range(3)]
    assert scores[small, "actor-critic"] == expected
    rows = Tables(made.path.read_text()).rows
    mean, low, high = aggregate({small: expected})
    row = next(row for row in rows if row[:2] == [small, "actor-critic"])
    assert row[2:5] == ["3", f"{mean:.4g} [{low:.4g}, {high:.4g}]", f"{np.mean(expected):.4g}"]
    assert row[5:] == [f"{min(expected):.4g}", f"{max(expected):.4g}"]
    # A single run has no interval.
    assert next(row for row in rows if row[:2] == [small, rule])[3] == f"{last_return(runs['fresh']):.4g}"


def test_probabilities_of_improvement(made: Report) -> None:
    tasks = ["catch rows 4 columns 3", "catch rows 5 columns 3"]
    scores = {task: {g.label: list(g.scores.values()) for g in made.scores if g.task == task} for task in tasks}
    ours, theirs = ({task: scores[task][label] for task in tasks} for label in ("ppo", "actor-critic"))
    expected = probability_of_improvement(ours, theirs)
    found = improvements(made.scores, tasks)
    assert found["ppo", "actor-critic"] == expected and set(found) == {("ppo", "actor-critic"), ("actor-critic", "ppo")}
    assert f"{expected.mean:.4g} [{expected.low:.4g}, {expected.high:.4g}]" in made.path.read_text()
    assert "On an environment drawn at random" in made.path.read_text()


def test_settings_runs_and_systems(made: Report, runs: dict[str, Path]) -> None:
    rows = Tables(made.path.read_text()).rows
    settings = {row[0]: row[1:] for row in rows if len(row) == 6}
    assert settings["rule"][:2] == ["actor-critic", "ppo"] and settings["seed"] == [
        "0, 1, 2",
        "0, 1",
        "0",
        "0, 1, 2",
        "0, 1",
    ]
    assert settings["env_args.rows"] == ["4", "4", "4", "5", "5"] and "num_envs" not in settings
    assert ["num_envs", "2"] in rows  # among all settings
    assert settings["rule"][2] == "rules/rule-000004.safetensors" and str(runs["fresh"].parent) not in made.path.read_text()
    row = next(row for row in rows if row[0] == "ppo-4-0")
    summary = json.loads((runs["ppo-4-0"] / "summary.json").read_text())
    assert row[1:3] == ["finished", f"{summary['final_return']:.4g}"] and row[5:7] == ["240", str(summary["episodes"])]
    evaluations = [line["eval_return"] for line in json_lines(runs["ppo-4-0"]) if "eval_return" in line]
    assert row[3:5] == [f"{evaluations[-1]:.4g}", f"{max(evaluations):.4g}"] and float(row[8]) > 0
    assert any(row[-3] == summary["system"]["torch"] for row in rows if row[0].endswith("more"))


def json_lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_discovery_and_fresh_agents(made: Report, runs: dict[str, Path]) -> None:
    text = made.path.read_text()
    rows = Tables(text).rows
    last = json_lines(runs["discovery"])[-1]
    families = {name.removeprefix("return/"): value for name, value in last.items() if name.startswith("return/")}
    assert ["discovery", *(f"{value:.4g}" for value in families.values())] in rows
    assert f"discovery: 4 of 4 meta-updates, {last['lives']:,} lives" in text
    snapshots = [row for row in rows if row[0] == "discovery" and row[1].endswith(".safetensors")]
    assert [row[2] for row in snapshots] == ["3", "4"] and snapshots[0][4] == "\N{EN DASH}"
    assert snapshots[1][4] == f"{last_return(runs['fresh']):.4g} (1)"
    for title in ("policy entropy, nats", "norm of the meta-gradient", "lives begun", "catch", "chain"):
        assert f'aria-label="{title}"' in text


def test_a_recording_is_in_the_page(made: Report, runs: dict[str, Path], tmp_path: Path) -> None:
    assert made.path.read_text().count("data:image/gif;base64,") == 1
    run = tmp_path / "copy"
    shutil.copytree(runs["ppo-4-0"], run)
    (run / "other.gif").write_bytes(b"no picture")
    (run / "large.gif").write_bytes(b"GIF89a" + bytes(5 * 2**20))
    text = make_report([run], tmp_path / "report.html").path.read_text()
    assert text.count("data:image/gif") == 1 and "copy/other.gif is no GIF" in text and "copy/large.gif has 5.0 MiB" in text


def test_unfinished_runs_are_shown_and_not_scored(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "killed"
    shutil.copytree(runs["actor-critic-4-0"], run)
    cut_short(run, 4)
    found = make_report([run, runs["actor-critic-4-1"]], tmp_path / "report.html")
    (group,) = found.scores
    assert len(group.runs) == 2 and list(group.scores) == [str(runs["actor-critic-4-1"])]
    text = found.path.read_text()
    assert "killed: unfinished, 96 of 240 steps; it is drawn with a thin line" in text and "1 of 2" in text
    # By itself, too; and before its first line of metrics.
    assert "no run has a final return yet" in make_report([run], found.path).path.read_text()
    (run / "metrics.jsonl").unlink()
    text = make_report([run], found.path).path.read_text()
    assert "no episode has ended" in text and "<svg" not in text


def test_a_run_that_stopped_on_purpose_is_scored(tmp_path: Path) -> None:
    run = train(small_training(tmp_path, target_return=-1.0, eval_every=60), view=False).folder
    found = make_report([run], tmp_path / "report.html")
    assert found.training[0].is_complete and found.training[0].status.startswith(
        "stopped: the mean return of the evaluation"
    )
    assert len(found.scores[0].scores) == 1
    # Lengthened, or resumed: what the summary says is of before.
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"steps": 200, "return": 0.0}) + "\n")
    assert not make_report([run], tmp_path / "report.html").training[0].is_complete


def test_numbers_that_are_not_finite(runs: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "nan"
    shutil.copytree(runs["actor-critic-4-0"], run)
    lines = json_lines(run)
    lines[2]["total_loss"], lines[-1]["return"], lines[3]["entropy"] = math.nan, math.nan, math.inf
    text = "".join(json.dumps({**line, "note": "a text"}) + "\n" for line in lines) + "[1]\n"
    (run / "metrics.jsonl").write_text(text)
    (run / "summary.json").write_text("{damaged")
    with pytest.warns(UserWarning, match="not an object of JSON"):
        found = make_report([run], tmp_path / "report.html")
    assert found.scores[0].scores == {}
    page = found.path.read_text()
    assert "its last return is not finite" in page and "return, entropy, total_loss" in page and "<svg" in page


def test_names_cannot_write_into_the_page(tmp_path: Path) -> None:
    run = train(small_training(tmp_path, name="$x^$ & 'y'"), view=False).folder
    config = json.loads((run / "config.json").read_text())
    config["env"] = "<script>alert(1)</script>$\\frac$"
    (run / "config.json").write_text(json.dumps(config))
    text = make_report([run], tmp_path / "report.html").path.read_text()
    assert "<script" not in text and html.escape("<script>alert(1)</script>") in text and Tables(text).open == []


def test_long_labels_have_the_name_of_a_run() -> None:
    long = "ppo, " + "x" * MAX_LABEL
    assert short_labels(["ppo", long, long], ["a", "b", "c"]) == ["ppo", "ppo (b)", "ppo (b)"]


def test_mistakes_are_one_line_and_nothing_is_written(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ["--out", str(tmp_path / "report.html")]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    run = str(runs["ppo-4-0"])
    for args, message in (
        (
            [str(tmp_path / "none"), *out],
            "`runs` must be folders of runs, with a config.json in each, got .*none; name fold",
        ),
        ([str(tmp_path), *out], r"`runs` must be folders .* name the runs in it, .*\*"),
        ([str(tmp_path / "broken"), *out], "must be JSON, as the run wrote it"),
        ([run, run, *out], "`runs` must differ, got .* twice"),
        (out, "`runs` must be a list of at least one folder"),
        ([run, "--out", str(tmp_path / "report.txt")], "`out` must be the name of an .html file"),
    ):
        assert main(["report", *args]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error) and len(error.strip().splitlines()) == 1, error
    with pytest.raises(ValueError, match="`runs` must be a list"):
        make_report(run)
    monkeypatch.setattr(reporting, "render_report", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_report([run], tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_the_command(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    args: list[Any] = [runs["discovery"], runs["ppo-5-0"], "--out", out]
    assert main(["report", *map(str, args)]) == 0
    assert f"Report on 1 training run and 1 discovery in {out}" in capsys.readouterr().out.replace("\n", "")
    assert out.is_file()
