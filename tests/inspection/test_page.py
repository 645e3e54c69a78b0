"""The page of an inspection, from a small rule to its files."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from disco_torch import AgentConfig, save_rule, train
from disco_torch.cli import main
from disco_torch.inspection import (
    Inspection,
    Subject,
    counterfactuals,
    inspect_rule,
    inspect_subject,
    inspecting,
    load_subject,
    page,
    probes,
    train_subject,
)
from disco_torch.inspection.captions import CAPTIONS
from disco_torch.inspection.figures import make_figures
from disco_torch.inspection.findings import to_plain
from disco_torch.inspection.summary import summarize_in_words
from disco_torch.pages import NOTHING, drawing, in_digits
from disco_torch.rules import DiscoConfig, DiscoUpdateRule

SMALL: dict[str, Any] = {
    "env_args": {"rows": 5, "columns": 3},
    "agent": AgentConfig(dense=(8,), lstm_size=8, head_mlp_hiddens=(8,)),
    "num_envs": 8,
    "rollout_length": 7,
    "batch_size": 16,
    "replay_capacity": 64,
    "steps": 8 * 7 * 8,
    "device": "cpu",
}
LARGE_UPDATES: dict[str, Any] = SMALL | {"epochs": 1, "minibatches": 1, "updates_per_rollout": 4}


def silent(line: str) -> None:
    """Takes what is said."""


@pytest.fixture(scope="module")
def quick_probes() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "EPOCHS", 1)
        patch.setattr(counterfactuals, "DIRECTIONS", 1)
        yield


@pytest.fixture(scope="module")
def rule_file(tiny_config: DiscoConfig, randomize: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a small rule."""
    rule = DiscoUpdateRule(tiny_config)
    randomize(rule)
    path = tmp_path_factory.mktemp("rules") / "tiny.safetensors"
    save_rule(path, rule)
    return path


@pytest.fixture(scope="module")
def made(rule_file: Path, quick_probes: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Inspection, Path]:
    """A page of the small rule, on Catch."""
    out = tmp_path_factory.mktemp("pages") / "new" / "page.html"
    return inspect_rule(str(rule_file), out=out, say=silent, **LARGE_UPDATES), out


class Tags(HTMLParser):
    """The tags of a page with their attributes; raises where one is closed that is not open."""

    EMPTY = ("meta", "input", "path", "use", "rect", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(made: tuple[Inspection, Path]) -> None:
    found, out = made
    text = out.read_text()
    tags = Tags(text)
    assert tags.open == []
    assert "http" not in text and "//" not in re.sub(r"base64,[\w+/=]*", "", text)
    for tag, attributes in tags.found:
        assert tag not in ("link", "iframe", "img", "object"), tag
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    for name in CAPTIONS:
        assert ids.count(name) == 1 and f'href="#{name}"' in text
    for word in ("prefers-color-scheme: dark", 'name="viewport"', "currentColor", "In short", 'type="range"'):
        assert word in text
    panels = sum(len(figure.panels) for figure in make_figures(found))
    assert text.count("<svg ") == panels > 20 and "#010203" not in text


def test_the_files_beside_it(made: tuple[Inspection, Path]) -> None:
    found, out = made
    folder = out.with_suffix("")
    assert {path.name for path in folder.iterdir()} == {"numbers.json", *(f"{name}.png" for name in CAPTIONS)}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))
    numbers = json.loads((folder / "numbers.json").read_text())
    assert numbers == found.plain() and (numbers["rule"], numbers["env"]) == ("tiny", "catch")
    assert list(numbers["findings"]) == ["tiny", "random weights", "actor-critic", "doubly-robust"]
    own = numbers["findings"]["tiny"]
    assert [reading["name"] for reading in own["counterfactuals"]][:2] == ["no reward", "reward +1"]
    assert own["counterfactuals"][0]["moved"]["y"][0] > 0.0
    assert len(own["trace"]["rewards"]) == 48 == len(found.frames) - 1
    assert own["ages"][0]["updates"] == 0 and len(own["ages"]) > 3
    assert numbers["facts"]["steps of a rollout"] == 6 and numbers["facts"]["trajectories"] == 32
    assert {probe["source"] for probe in numbers["probes"]} == {"y", "z", "policy", "value"}
    assert "actor-critic, doubly-robust" in numbers["skipped"]["lifetime"][0]
    # The slider has the same numbers.
    trace = json.loads(re.findall(r'id="trace">(.*?)</script>', out.read_text(), flags=re.S)[0])
    assert trace["steps"] == 48 and dict(trace["rows"])["reward"] == own["trace"]["rewards"]
    assert dict(trace["rows"])["push of doubly-robust"] == numbers["findings"]["doubly-robust"]["trace"]["push"]


def test_horizons_of_next_to_nothing_are_named_and_not_drawn(made: tuple[Inspection, Path]) -> None:
    found, _ = made
    drawn = next(figure for figure in make_figures(found) if figure.name == "horizon")
    shown = {panel.title for panel in drawn.panels}
    assert "tiny: value at t+k" in shown and "tiny: z at t+k" not in shown
    largest = max(reach.largest for reach in found.findings["tiny"].reach if reach.quantity == "z")
    (said,) = found.skipped["horizon"]
    assert 0.0 < largest < 1e-4 and said.startswith("Not drawn, since no target moves by 0.0001: ") and "tiny by z" in said


def test_nothing_in_a_figure_is_cut_off(made: tuple[Inspection, Path]) -> None:
    """Labels of all panels, as wide as they are drawn, lie inside of them, on a page and in a PNG."""
    for figure, dpi in itertools.product(make_figures(made[0]), (72, 90)):
        with drawing._drawn(figure.panels, columns=1, dpi=dpi) as whole:
            whole.canvas.draw()
            for part, panel in zip(whole.subfigs, figure.panels, strict=True):
                boxes = [each.get_tightbbox() for each in part.axes]
                assert min(box.x0 for box in boxes) >= part.bbox.x0 - 1.0, panel.title
                assert max(box.x1 for box in boxes) <= part.bbox.x1 + 1.0, panel.title
                assert min(box.y0 for box in boxes) >= part.bbox.y0 - 1.0, panel.title
                assert max(box.y1 for box in boxes) <= part.bbox.y1 + 1.0, panel.title


def test_in_short(made: tuple[Inspection, Path]) -> None:
    """The sentences at the top of the page have the numbers of the findings."""
    found, out = made
    own = found.findings["tiny"]
    largest = max(own.counterfactuals, key=lambda reading: reading.moved["y"].mean)
    reads, looks, *_ = summarize_in_words(found)
    assert f'The target of y is moved most by "{largest.name}" ({in_digits(largest.moved["y"].mean)}) and ' in reads
    reach = next(each for each in own.reach if (each.quantity, each.target) == ("z", "z"))
    assert f"from z to the target of z {reach.horizon:.1f} ({in_digits(reach.largest)})" in looks
    assert html.escape(reads) in out.read_text()


def test_each_figure_says_two_sentences() -> None:
    for title, text in CAPTIONS.values():
        assert title and len(re.findall(r"[.](?= [A-Z]|$)", text)) == 2, title


def test_a_rule_by_hand_and_what_it_lacks(quick_probes: None, tmp_path: Path) -> None:
    found = inspect_rule("actor-critic", out=tmp_path / "page.html", say=silent, **SMALL)
    assert list(found.findings) == ["actor-critic"]
    text = (tmp_path / "page.html").read_text()
    assert "Left out" in text and "Skipped for actor-critic: the rule remembers nothing" in text
    assert not (tmp_path / "page" / "lifetime.png").exists() and not (tmp_path / "page" / "rule_inputs.png").exists()
    assert found.findings["actor-critic"].words.selected[0].name == "policy gradient: A (e_a - pi)"
    assert {probe.source for probe in found.probes} == {"policy", "value"}


@pytest.mark.parametrize("rule", ["ppo", "doubly-robust", "policy-gradient"])
def test_every_rule_of_the_package(rule: str, quick_probes: None) -> None:
    changes = {"epochs": 1, "minibatches": 1, "updates_per_rollout": 1} if rule == "ppo" else {}
    subject = train_subject(rule, say=silent, **(SMALL | changes))
    found = inspect_subject(subject, say=silent)
    subject.close()
    names = {figure.name for figure in make_figures(found)}
    assert next(iter(found.findings)) == rule and names | {*found.skipped, "rule_inputs"} == {*CAPTIONS}
    assert ("horizon" in found.skipped) == (rule == "policy-gradient")  # whose advantages come from outside
    assert json.dumps(found.plain(), allow_nan=False)


def test_the_agent_of_a_run(
    rule_file: Path, made: tuple[Inspection, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = LARGE_UPDATES | {"checkpoint_every": 2, "keep_checkpoints": 10, "tensorboard": False, "runs": tmp_path}
    run = train(rule=str(rule_file), view=False, **fields).folder
    subject = load_subject(str(rule_file), run)
    assert subject.session.counters.rollouts == 8 and sorted(subject.memories) == [0, 4, 12, 20, 28]
    assert not torch.equal(subject.memories[0].hidden, subject.memories[28].hidden)
    assert subject.learned_rollout(0) is not None
    subject.close()
    earlier = load_subject(str(rule_file), run, checkpoint=4)
    assert earlier.session.counters.rollouts == 4 and sorted(earlier.memories) == [0, 4, 12]
    earlier.close()
    seen: list[int] = []

    def found(subject: Subject, **_: Any) -> Inspection:
        seen.append(subject.session.counters.rollouts)
        return made[0]

    monkeypatch.setattr(inspecting, "inspect_subject", found)
    monkeypatch.setattr(inspecting, "write_page", lambda found, path: path.write_text(found.rule))
    out = tmp_path / "page.html"
    assert main(["inspect", str(rule_file), "--run", str(run), "--out", str(out)]) == 0
    assert main(["inspect", str(rule_file), "--run", str(run), "--checkpoint", "2", "--out", str(out)]) == 0
    assert seen == [8, 2] and out.read_text() == "tiny"


def test_mistakes_come_before_any_work(
    rule_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspecting, "inspect_subject", None)  # would raise a TypeError
    out = ["--out", str(tmp_path / "page.html")]
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    for args, message in (
        (["no-such-rule", *out], r"`rule` must be one of .* got 'no-such-rule'"),
        (["ppo", "--run", str(tmp_path / "none"), *out], "`run` must be the folder of a run"),
        (["ppo", "--run", str(tmp_path), "--env", "catch", *out], "`--env` is for an agent that is trained here"),
        (["ppo", "--run", str(tmp_path), "--steps", "9", *out], "`--steps` is for an agent that is trained here"),
        (["ppo", "--env", "NoSuchEnv-v0", *out], "NoSuchEnv"),
        (["ppo", "--steps", "9", *out], "`steps` must be at least"),
        (["ppo", "--out", str(tmp_path / "page.txt")], "`out` must be the name of an .html file"),
        (["ppo", "--out", str(tmp_path / "folder.html")], "`out` must be the name of an .html file"),
        (["ppo", "--out", str(tmp_path / "file" / "page.html")], "`out` must be in a folder that can be written to"),
    ):
        assert main(["inspect", *args]) == 2
        error = capsys.readouterr().err
        assert re.search(message, error) and len(error.strip().splitlines()) == 1, error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.html"]


def test_a_run_of_another_rule(rule_file: Path, tmp_path: Path) -> None:
    run = train(rule="actor-critic", view=False, tensorboard=False, runs=tmp_path, **SMALL).folder
    with pytest.raises(ValueError, match=r"`rule` must be that of the run .*, actor-critic, got 'ppo'"):
        inspect_rule("ppo", run=run, out=tmp_path / "page.html")
    with pytest.raises(ValueError, match="`steps` must be left out with `run`"):
        inspect_rule("actor-critic", run=run, steps=5, out=tmp_path / "page.html")
    plain = (run / "config.json").read_text()
    (run / "config.json").write_text(plain.replace('"env": "catch"', '"env": "NoSuchEnv-v0"'))
    with pytest.raises(ValueError, match=r"`config.env` in .* must be 'catch', as in the checkpoint"):
        inspect_rule("actor-critic", run=run, out=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_nothing_is_written_when_a_figure_fails(
    made: tuple[Inspection, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "figure_png", lambda figure: b"")
    monkeypatch.setattr(page, "render_inspection", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write_page(made[0], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_names_cannot_write_into_the_page(made: tuple[Inspection, Path]) -> None:
    nasty = '<script>alert("x")</script>'
    found, _ = made
    findings = {nasty if name == found.rule else name: each for name, each in found.findings.items()}
    text = page.render_inspection(dataclasses.replace(found, rule=nasty, findings=findings), make_figures(found)[:1])
    assert "<script>alert" not in text and Tags(text).open == []


def test_plain_numbers() -> None:
    assert to_plain({"a": torch.tensor([1.0, float("nan")]), "b": (1, float("inf"))}) == {"a": [1.0, None], "b": [1, None]}
    shown = [in_digits(x) for x in (0.0, 1e-9, 2.4e-4, 0.5, -3.25, float("nan"))]
    assert shown == ["0", "0", "2e-4", "0.500", "-3.250", NOTHING]
    assert page._sprite([np.zeros((4, 8, 3), dtype=np.uint8)] * 3)[1:] == (192, 96)
