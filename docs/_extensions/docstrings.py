"""Docstrings for the site: what reads well in the source is turned into reStructuredText.

Single backticks are code, a block that is indented by four is an equation and stays as it is, and comments behind the fields
of a dataclass, which hold their shapes, become its attributes.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
FIELD = re.compile(r"    (\w+): [^#\n]*  # (.+)")


def code_marks(text: str) -> str:
    """Prose with `x` as ``x``; signs that mean something in reStructuredText are kept as they are."""
    parts = re.split(r"`([^`]+)`", text)
    prose = [re.sub(r"[*|\\]|(?<=\w)_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    marked = prose[0]
    for code, after in zip(parts[1::2], prose[1:], strict=True):
        code = re.sub(r"\n +", lambda found: f"``{found[0]}``", code)  # code of two lines is marked in each
        # A letter right behind code, as in `tree`s, would hide the end of the code.
        marked += f"``{code}``" + ("\\ " if after[:1].isalnum() else "") + after
    return marked


def to_restructured_text(lines: list[str]) -> list[str]:
    """The lines of a docstring, with code and equations marked; sections such as `Args:` are left to napoleon."""
    blocks: list[tuple[bool, list[str]]] = [(False, [])]
    in_section = False
    for line in lines:
        is_equation, block = blocks[-1]
        depth = len(line) - len(line.lstrip())
        if line and depth == 0:
            in_section = bool(SECTION.match(line))
            if is_equation:
                blocks.append((False, [line]))
                continue
        elif depth >= 4 and not in_section and not is_equation and not (block and block[-1]):
            blocks.append((True, [".. code-block:: text", "", line]))
            continue
        block.append(line)
    texts = ["\n".join(block) for _, block in blocks]
    marked = [text if is_equation else code_marks(text) for (is_equation, _), text in zip(blocks, texts, strict=True)]
    return "\n".join(marked).split("\n")


def field_comments(cls: type) -> list[str]:
    """An `Attributes:` section made of the comments behind the fields of a class; empty if there are none."""
    try:
        comments = FIELD.findall(inspect.getsource(cls))
    except (OSError, TypeError):
        return []
    fields = [f"  {name}: {comment}" for name, comment in comments if name in getattr(cls, "__annotations__", {})]
    return ["", "Attributes:", *fields, ""] if fields else []


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what == "class" and "Attributes:" not in lines:
        lines += field_comments(obj)
    lines[:] = to_restructured_text(lines)


def skip(app: Sphinx, what: str, name: str, obj: Any, is_skipped: bool, options: Any) -> bool | None:
    """Leaves out what Python writes for the fields of a named tuple."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def shorten(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None) -> Any:
    """Signatures as they are written: types without marks and quotes, `...` for a default that is made."""
    if signature is None:
        return None
    signature = signature.replace("<factory>", "...").replace("~", "")
    return re.sub(r": '([\w\[\], .|]+)'", r": \1", signature), returned


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True}
