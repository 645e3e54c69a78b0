"""The parts of a page: one HTML file that needs nothing else, light and dark, for a screen and a phone."""

from __future__ import annotations

import base64
import html
import math
import os
from collections.abc import Sequence
from pathlib import Path
from string import Template

TEMPLATE = Path(__file__).with_name("template.html")
NOTHING = "\N{EN DASH}"
"""What stands where there is no number."""


def render_page(title: str, parts: Sequence[str], *, style: str = "", end: str = "") -> str:
    """The text of a page.

    Args:
      title: as plain text.
      parts: what is on it, as HTML.
      style: CSS beside that of all pages.
      end: HTML behind the page's content, such as a script.
    """
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    return Template(TEMPLATE.read_text()).substitute(title=html.escape(title), style=style, body=body, end=end)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 2) -> str:
    """A table that scrolls by itself where the page is too narrow; the first `texts` columns stand on the left."""
    kinds = [' class="text"' if i < texts else "" for i in range(len(head))]
    top = "".join(f"<th{kind}>{html.escape(cell)}</th>" for kind, cell in zip(kinds, head, strict=True))
    lines = ["".join(f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def html_list(lines: Sequence[str]) -> str:
    """A list of plain texts."""
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def html_paragraph(text: str, faint: bool = False) -> str:
    """A paragraph of plain text."""
    return f'<p class="faint">{html.escape(text)}</p>' if faint else f"<p>{html.escape(text)}</p>"


def data_uri(content: bytes, kind: str) -> str:
    """A file as an address that holds all of it; `kind` is such as "image/gif"."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def in_digits(x: float) -> str:
    """A number as it is read in a table: three digits, and 0 for what is less than a millionth."""
    if not math.isfinite(x):
        return NOTHING
    if abs(x) < 1e-6:
        return "0"
    return f"{x:.3f}" if abs(x) >= 0.0095 else f"{x:.0e}".replace("e-0", "e-")


def check_page_path(path: Path, *, folder_beside: bool = False) -> Path:
    """Raises where no page can be written, before any work is done.

    Args:
      path: `out`, the file to write.
      folder_beside: whether a folder of the same name without its ending is written, too.
    """
    if path.suffix != ".html" or path.is_dir():
        raise ValueError(f"`out` must be the name of an .html file, got {path}.")
    places = [path.with_suffix(""), *path.parents] if folder_beside else list(path.parents)
    folder = next(place for place in places if place.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"`out` must be in a folder that can be written to, got {path}; {folder} is none.")
    return path
