"""The package reads as the data flows: each room imports from the rooms before it, and no file is too long to read."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import disco_torch

PACKAGE = Path(disco_torch.__file__).parent
ROOMS = [
    "types",
    "checks",
    "files",
    "layers",
    "kernels",
    "envs",
    "agents",
    "data",
    "values",
    "rules",
    "optim",
    "weights",
    "analysis",
    "pages",
    "runs",
    "training",
    "discovery",
    "reports",
    "inspection",
    "sharing",
    "verification",
    "cli",
]
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 350


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a dotted name's parts below the package; the package itself is ''."""
    return parts[0] if parts else ""


def imported_modules(path: Path) -> list[tuple[int, tuple[str, ...]]]:
    """Line and parts below the package of everything of ours that a file imports, inside of functions too."""
    here = ("disco_torch", *path.relative_to(PACKAGE).with_suffix("").parts)
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            # `from disco_torch import values` names a room, `from disco_torch.values import vtrace` lies in one.
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    split = [(line, tuple(name.split("."))) for line, name in found]
    return [(line, parts[1:]) for line, parts in split if parts[0] == "disco_torch"]


def violations(path: Path) -> list[str]:
    own = room_of(path.relative_to(PACKAGE).with_suffix("").parts)
    if own in ("__init__", "__main__"):
        return []  # the package's own door opens on every room
    found = []
    for line, parts in imported_modules(path):
        room = room_of(parts)
        if room not in ROOMS:
            found.append(f"{path.name}:{line} imports {room!r}, which is no room")
        elif room != own and (ROOMS.index(room) > ROOMS.index(own) or {room, own} == {"types", "checks"}):
            found.append(f"{path.name}:{line} in {own!r} imports {room!r}, which comes after it")
    return found


def test_every_file_is_in_a_room() -> None:
    rooms = {room_of(path.relative_to(PACKAGE).with_suffix("").parts) for path in FILES}
    assert rooms <= {*ROOMS, "__init__", "__main__"}
    assert {"types", "checks", "values", "rules", "training"} <= rooms  # the search found the package


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_from_rooms_before_them(path: Path) -> None:
    assert violations(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_too_long(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{path.name} has {lines} lines; split it where the thought does"


@pytest.mark.parametrize(
    "source",
    [
        "from disco_torch.rules import DiscoUpdateRule",
        "from disco_torch import rules",
        "import disco_torch.rules.disco",
        "def late():\n    from disco_torch.training import Learner",
        "from ..rules import DiscoUpdateRule",
        "from disco_torch import DiscoUpdateRule",
    ],
)
def test_the_search_finds_what_it_should(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "values" / "new.py"
    path.parent.mkdir()
    path.write_text(source)
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    assert len(violations(path)) == 1
    path.write_text("from disco_torch.types import Params\nfrom .returns import vtrace\nimport torch\n")
    assert violations(path) == []


def string_paths(source: str) -> list[str]:
    """Texts in a source file that name a tensor by a path, such as 'agent_out/z'; docstrings are not looked at."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [
        node.value
        for node in nodes
        if re.match(r"(agent_out|behaviour_agent_out|extra_from_rule|value_out|read)/", node.value)
    ]


@pytest.mark.parametrize("room", ["agents", "data", "rules", "training", "discovery"])
def test_no_room_of_the_core_names_tensors_by_paths(room: str) -> None:
    """What a rule reads is typed; stored names are translated in weights/ alone."""
    found = {path.name: string_paths(path.read_text()) for path in (PACKAGE / room).rglob("*.py")}
    assert not {name: paths for name, paths in found.items() if paths}


def test_a_path_would_be_found() -> None:
    assert string_paths('x = read["extra_from_rule/target_out/z"]') == ["extra_from_rule/target_out/z"]
    assert string_paths((PACKAGE / "weights" / "stored_inputs.py").read_text())
