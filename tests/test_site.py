"""Links in README and docs lead somewhere, every page and public name has a place in the site, and the site is built."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from disco_torch.analysis import mean_interval

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.ipynb"))


def prose(path: str) -> str:
    """A page, or the text cells of a notebook, without blocks of code."""
    text = (ROOT / path).read_text()
    if path.endswith(".ipynb"):
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.M | re.S)


def anchors(path: str) -> set[str]:
    """The anchors that a code host gives to the headings of a page: the second of the same text ends in -1, and so on."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose(path), flags=re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return {anchor if not (n := found[:i].count(anchor)) else f"{anchor}-{n}" for i, anchor in enumerate(found)}


def broken_links(path: str) -> list[str]:
    """Relative links of a page whose file, or whose heading in a page, does not exist."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = ((ROOT / path).parent / file).resolve() if file else ROOT / path
        if not target.exists() or (anchor and anchor not in anchors(str(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS])
def test_links_lead_somewhere(path: str) -> None:
    assert broken_links(path) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    text = "# One `two`, (three)\n## A\n## A\n[a](page.md#a-1) [b](#one-two-three) [c](#a-2) [d](none.md) [e](https://none.example)"
    (tmp_path / "page.md").write_text(text + "\n```\n# no heading\n[f](none.md)\n```\n[g](#no-heading)\n")
    assert broken_links(str(tmp_path / "page.md")) == ["#a-2", "none.md", "#no-heading"]


def test_every_page_is_in_the_contents_of_the_site() -> None:
    contents = []
    for page in ("docs/index.md", "docs/api.md"):
        for tree in re.findall(r"```{toctree}\n(.*?)```", (ROOT / page).read_text(), flags=re.S):
            entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
            contents += [entry.rpartition("<")[2].rstrip(">") for entry in entries]
    pages = [path.removeprefix("docs/").rpartition(".")[0] for path in [*PAGES, *NOTEBOOKS] if path.startswith("docs/")]
    assert sorted(contents) == sorted(set(pages) - {"index"})


def test_every_room_with_public_names_has_a_page() -> None:
    rooms = {
        importlib.import_module(f"disco_torch.{path.parent.name}") for path in (ROOT / "disco_torch").glob("*/__init__.py")
    }
    public = {room.__name__ for room in rooms if hasattr(room, "__all__")}
    shown = {re.findall(r"<!-- site: names (\S+) -->", path.read_text())[0] for path in (ROOT / "docs/api").glob("*.md")}
    assert shown == public | {"disco_torch.types", "disco_torch.checks", "disco_torch.optim"}


def test_every_public_class_and_function_has_a_docstring() -> None:
    bare = []
    for path in (ROOT / "disco_torch").glob("*/__init__.py"):
        room = importlib.import_module(f"disco_torch.{path.parent.name}")
        values = {name: getattr(room, name) for name in getattr(room, "__all__", ())}
        for name, value in values.items():
            # A dataclass without one gets its signature as a docstring.
            if (isinstance(value, type) or inspect.isfunction(value)) and (value.__doc__ or f"{name}(").startswith(
                f"{name}("
            ):
                bare.append(f"{room.__name__}.{name}")
    assert bare == []


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    """All public names are documented in it, and no link between its pages is broken."""
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason="the site needs the extra `docs`; `make docs` installs it")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "doctrees")]
    built = subprocess.run([*command, str(ROOT / "docs"), str(tmp_path / "site")], capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    site = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in site.items()}
    for path, text in site.items():
        for link in re.findall(r'href="([^"]+)"', text):
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            assert re.match(r"\w+:", link) or target.exists(), f"{path.name}: {link}"
            assert not anchor or target not in ids or anchor in ids[target], f"{path.name}: {link}"
    everything = set().union(*ids.values())
    for path in (ROOT / "docs/api").glob("*.md"):
        room = importlib.import_module(f"disco_torch.{path.stem}")
        for name in getattr(room, "__all__", ()):
            home = getattr(getattr(room, name), "__module__", room.__name__)
            elsewhere = not home.startswith(room.__name__) and home.startswith("disco_torch.")
            assert elsewhere or f"{room.__name__}.{name}" in everything, name


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebooks_are_stored_with_their_outputs(path: str) -> None:
    text = (ROOT / path).read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs) and "Traceback" not in printed
    assert not re.search(r"(^|[\s'\"(])/\w+/|\x1b", printed)  # neither paths of a machine nor colours of a terminal
    assert len(text) < 200_000


@pytest.mark.slow
def test_the_tutorial_on_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_tutorial("train_on_your_environment", tmp_path, monkeypatch)
    at_random = sum(total for total, _ in found["episodes"]) / len(found["episodes"])
    assert found["low"] > at_random + 0.2 and found["result"].warnings == []
    assert found["longer"].folder == found["result"].folder


@pytest.mark.slow
def test_the_tutorial_on_looking_into_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_tutorial("look_into_a_rule", tmp_path, monkeypatch)
    case = found["cases"]["actor-critic"]
    words = found["in_words"](case.pushes["policy"], found["candidate_terms"](case), case.counted)
    assert words.selected[0].name == "policy gradient: A (e_a - pi)" and words.explained > 0.95


@pytest.mark.slow
def test_the_tutorial_on_discovering_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New agents learn with the rule, and with the random weights that it came from they do not: intervals over seeds."""
    found = run_tutorial("discover_a_rule", tmp_path, monkeypatch)
    assert not found["result"].stopped and len(found["records"]) == 30
    for task in ("Catch 8x8", "CartPole-v1"):
        with_rule, without = (found["outcomes"][task, name] for name in ("discovered", "random weights"))
        assert [run.seed for run in with_rule] == [run.seed for run in without] == list(range(5))
        for measure in ("score", "area"):
            low = mean_interval([getattr(run, measure) for run in with_rule]).low
            assert low > mean_interval([getattr(run, measure) for run in without]).high, (task, measure)


@pytest.mark.slow
def test_the_tutorial_on_disco103(disco103_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minatar", reason="the tutorial plays MinAtar: pip install --no-deps minatar")
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    found = run_tutorial("disco103_on_minatar", tmp_path, monkeypatch)
    assert found["scores"]["ppo-replay"].interval.low > found["at_random"] + 1.0
    assert found["scores"]["disco103"].interval.mean > found["at_random"]
    assert all(result.metrics[-1]["steps"] > 190_000 and not result.stopped for result in found["results"].values())


def run_tutorial(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.chdir(folder)
    content = json.loads((ROOT / f"docs/tutorials/{name}.ipynb").read_text())
    return importlib.import_module("run_notebook").run_notebook(content)
