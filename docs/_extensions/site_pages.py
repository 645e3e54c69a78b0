"""Pages that are made of something else: README and its kin, examples, notebooks, and the names of each room.

A page says so in a comment, which a code host does not show: `<!-- site: file README.md -->`, `<!-- site: examples -->`,
`<!-- site: names disco_torch.rules -->` and `<!-- site: exported names -->`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from types import ModuleType

from docstrings import to_restructured_text
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

ROOT = Path(__file__).parents[2]
PACKAGE = "disco_torch"
COMMENT = re.compile(r"<!-- site: (.+?) -->")
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)(#[^)\s]*)?(\))")
FENCED = re.compile(r"^(?:`{3,}).*?^`{3,}$", flags=re.M | re.S)
PAGES = {
    "README.md": "docs/readme.md",
    "CHANGELOG.md": "docs/changelog.md",
    "CONTRIBUTING.md": "docs/contributing.md",
    "examples/evaluate_disco103.ipynb": "docs/evaluate_disco103.md",
}
"""Files outside of docs that the site has a page for."""


def site_links(text: str, source: str, page: str) -> str:
    """Links of a file of the repository, for the page of the site that shows it.

    Files that the site has as pages are linked there, examples to their place on the page of examples; all others can be
    downloaded.
    """

    def target(match: re.Match[str]) -> str:
        path = normpath(str(PurePosixPath(source).parent / match[2]))
        anchor = match[3] or ""
        if path.startswith("examples/") and path.endswith(".py"):
            path, anchor = "docs/examples.md", "#" + heading_anchor(PurePosixPath(path).name)
        path = PAGES.get(path, path)
        return f"{match[1]}{relpath(path, str(PurePosixPath(page).parent))}{anchor}{match[4]}"

    code, parts = FENCED.findall(text), FENCED.split(text)
    return "".join(LINK.sub(target, part) + block for part, block in zip(parts, [*code, ""], strict=True))


def heading_anchor(heading: str) -> str:
    """The anchor that code hosts and MyST give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def examples() -> str:
    """The source of each example under a heading of its own."""
    files = sorted((ROOT / "examples").glob("*.py"))
    return "\n".join(f"## {path.name}\n\n````python\n{path.read_text()}````\n" for path in files)


def notebook(text: str) -> str:
    """A notebook with its stored outputs as Markdown; it is not run."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"````python\n{source}\n````")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f'<img alt="output" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">')
            else:
                shown = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
                parts.append(f"````text\n{shown}\n````")
    return "\n\n".join(parts) + "\n"


def names_of(module: ModuleType) -> list[str]:
    """The public names of a room that are made in it; of a single file, those that the package exports."""
    exported = getattr(module, "__all__", None)
    if exported is None:
        package = importlib.import_module(PACKAGE)
        return [name for name in package.__all__ if home_of(package, name) == module.__name__]
    return [name for name in exported if home_of(module, name).startswith(module.__name__ + ".")]


def home_of(module: ModuleType, name: str) -> str:
    """The module that a name of a room, or of the package, was imported from."""
    found = re.search(rf"from ([\w.]+) import (\([^)]*\b{name}\b[^)]*\)|[^\n(]*\b{name}\b)", inspect.getsource(module))
    assert found is not None, f"{module.__name__} exports {name}, which it does not import"
    return found[1]


def room_of(name: str) -> str:
    """The room, or the single file, in which a name of the package is documented."""
    home = home_of(importlib.import_module(PACKAGE), name)
    return ".".join(home.split(".")[:2])


def kind_of(value: object) -> str:
    """The heading under which a public name is documented."""
    if isinstance(value, type) and value.__module__.startswith(PACKAGE):
        return "Classes"
    return "Functions" if inspect.isroutine(inspect.unwrap(value)) else "Data and types"


def data_doc(module: ModuleType, name: str) -> list[str]:
    """The docstring below a constant or a type, in the module that it was imported from."""
    return ModuleAnalyzer.for_module(home_of(module, name)).find_attr_docs().get(("", name), [])


def entry(module: ModuleType, name: str) -> list[str]:
    """The reStructuredText that documents one name of a room."""
    value, full = getattr(module, name), f"{module.__name__}.{name}"
    match kind_of(value):
        case "Classes":
            kind = "exception" if issubclass(value, BaseException) else "class"
            has_base = any(base.__module__.startswith(PACKAGE) for base in value.__bases__)
            return [f".. auto{kind}:: {full}", *(["   :show-inheritance:"] if has_base else []), ""]
        case "Functions":
            return [f".. autofunction:: {full}", ""]
        case _:
            return [f".. py:data:: {full}", "", *("   " + line for line in to_restructured_text(data_doc(module, name))), ""]


def room(name: str) -> str:
    """All public names of a room: classes first, then functions, then the rest."""
    module = importlib.import_module(name)
    names = sorted(names_of(module), key=str.lower)
    parts = [(module.__doc__ or "").strip() + "\n"]
    for kind in ("Classes", "Functions", "Data and types"):
        lines = [line for member in names if kind_of(getattr(module, member)) == kind for line in entry(module, member)]
        if lines:
            parts.append(f"## {kind}\n\n````{{eval-rst}}\n" + "\n".join(lines) + "````\n")
    return "\n".join(parts)


def exported_names() -> str:
    """A table of the names that the package itself exports, each linked to where it is documented."""
    package = importlib.import_module(PACKAGE)
    rows = ["| name | |", "|---|---|"]
    for name in sorted(package.__all__, key=str.lower):
        value = getattr(package, name)
        is_data = kind_of(value) == "Data and types"
        doc = "\n".join(data_doc(importlib.import_module(room_of(name)), name)) if is_data else inspect.getdoc(value) or ""
        first = " ".join(doc.split("\n\n")[0].split()).replace("|", "\\|")
        rows.append(f"| {{py:obj}}`{name} <{room_of(name)}.{name}>` | {first} |")
    return "\n".join(rows) + "\n"


def read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts the text of a page together, before it is parsed."""
    path = PurePosixPath("docs") / Path(app.env.doc2path(docname)).relative_to(app.srcdir).as_posix()
    text = notebook(source[0]) if path.suffix == ".ipynb" else source[0]
    source[0] = site_links(text, str(path), str(path))
    for comment in COMMENT.finditer(text):
        kind, _, argument = comment[1].partition(" ")
        if kind == "file":
            content = (ROOT / argument).read_text()
            source[0] = site_links(notebook(content) if argument.endswith(".ipynb") else content, argument, str(path))
            return
        made = {"examples": examples, "exported": exported_names}[kind]() if kind != "names" else room(argument)
        source[0] = source[0].replace(comment[0], made)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
