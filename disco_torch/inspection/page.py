"""The page of an inspection: one HTML file that needs nothing else, and beside it a folder with its figures and numbers."""

from __future__ import annotations

import html
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from disco_torch.files import replacing
from disco_torch.inspection.captions import CAPTIONS
from disco_torch.inspection.figures import make_figures
from disco_torch.inspection.findings import Inspection, RuleFindings, to_plain
from disco_torch.inspection.horizon import Reach
from disco_torch.inspection.summary import summarize_in_words
from disco_torch.pages import (
    NOTHING,
    SIDES,
    Figure,
    data_uri,
    figure_png,
    html_list,
    html_paragraph,
    html_table,
    in_digits,
    panel_svg,
    render_page,
)

PLAYER, PLAYER_STYLE = (Path(__file__).with_name(f"player.{ending}") for ending in ("html", "css"))
FRAME_WIDTH = 192
"""Largest width of a picture on the page."""


def write_page(found: Inspection, path: Path) -> list[Path]:
    """Writes the page, and `numbers.json` and a PNG of each figure into a folder of its name; returns all of them.

    Everything is computed before the first file is written, and each file appears complete or not at all; the page is last.
    """
    figures = make_figures(found)
    folder = path.with_suffix("")
    contents = {folder / f"{figure.name}.png": figure_png(figure) for figure in figures}
    contents[folder / "numbers.json"] = (json.dumps(found.plain(), allow_nan=False, indent=1) + "\n").encode()
    contents[path] = render_inspection(found, figures).encode()
    for name, content in contents.items():
        with replacing(name) as file:
            file.write(content)
    return list(contents)


def render_inspection(found: Inspection, figures: Sequence[Figure]) -> str:
    """The text of the page."""
    title = f"Inside {found.rule}: what an update rule does, on {found.env}"
    parts = [
        html_paragraph(_about(found), faint=True),
        "<nav><ul>" + "".join(f'<li><a href="#{x.name}">{CAPTIONS[x.name].title}</a></li>' for x in figures) + "</ul></nav>",
        "<h2>In short</h2>",
        html_list(summarize_in_words(found)),
    ]
    for figure in figures:
        parts += _section(found, figure)
    known = {figure.name for figure in figures}
    missing = [line for name, lines in found.skipped.items() if name not in known for line in lines]
    if missing:
        parts.append("<h2>Left out</h2>" + html_list(missing))
    # A "<" could end the script that the numbers stand in.
    trace = json.dumps(_trace_data(found), allow_nan=False).replace("<", "\\u003c")
    end = Template(PLAYER.read_text()).substitute(trace=trace)
    return render_page(title, parts, style=PLAYER_STYLE.read_text(), end=end)


def _about(found: Inspection) -> str:
    facts = [
        f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}" for name, value in found.facts.items()
    ]
    others = [name for name in found.findings if name != found.rule]
    beside = f" Beside it, on the same agent and the same rollouts: {', '.join(others)}." if others else ""
    return f"An agent that has learned with {found.rule}: {', '.join(facts)}.{beside}"


def _section(found: Inspection, figure: Figure) -> list[str]:
    title, text = CAPTIONS[figure.name]
    lane = '<div class="lane"><div class="cursor"></div></div>'
    panels = "".join(
        f'<div class="panel">{panel_svg(panel)}{lane if panel.fixed_sides else ""}</div>' for panel in figure.panels
    )
    notes = "".join(html_paragraph(line, faint=True) for line in found.skipped.get(figure.name, []))
    above = _player(found) if figure.name == "traces" else ""
    tables = {"horizon": _horizon_table, "words": _words_table}
    below = tables[figure.name](found.findings) if figure.name in tables else ""
    heading = f'<h2 id="{figure.name}">{title}</h2><p>{html.escape(text)}</p>'
    return [heading, notes, above, f'<div class="panels">{panels}</div>', below]


def _horizon_table(findings: dict[str, RuleFindings]) -> str:
    """Effective horizons and largest changes: a row for each rule and quantity, a column for each target."""
    targets = list(dict.fromkeys(reach.target for each in findings.values() for reach in each.reach))
    rows = []
    for name, each in findings.items():
        for quantity in dict.fromkeys(reach.quantity for reach in each.reach):
            own = {reach.target: reach for reach in each.reach if reach.quantity == quantity}
            rows.append([name, quantity, *(_horizon_cell(own.get(target)) for target in targets)])
    said = html_paragraph("Effective horizon in steps, and in brackets the largest change, by what was changed and target:")
    return said + html_table(["rule", "changed", *targets], rows)


def _horizon_cell(reach: Reach | None) -> str:
    if reach is None or math.isnan(reach.horizon):
        return NOTHING
    return f"{reach.horizon:.1f} ({in_digits(reach.largest)})"


def _words_table(findings: dict[str, RuleFindings]) -> str:
    rows = []
    for name, each in findings.items():
        for term in each.words.selected:
            numbers = [in_digits(term.coefficient), f"{term.explained:.1%}", f"{term.alone:.1%}", f"{term.stability:.0%}"]
            rows.append([name, term.name, *numbers])
        if not each.words.selected:
            rows.append([name, "no term explains 1% of the variance", *[NOTHING] * 4])
    return html_table(["rule", "term", "coefficient", "explained so far", "alone", "selected from halves"], rows)


def _player(found: Inspection) -> str:
    """The slider over the recorded steps, with the picture and the numbers of each."""
    steps = len(found.findings[found.rule].trace.actions)
    frame = ""
    if found.frames:
        sprite, width, height = _sprite(found.frames[:steps])
        style = f"width:{width}px;height:{height}px;background-image:url({sprite})"
        frame = f'<div class="frame" id="frame" role="img" aria-label="picture of the step" style="{style}"></div>'
    slider = f'<label for="step">step</label><input id="step" type="range" min="0" max="{steps - 1}" value="0">'
    return f'<div class="player">{frame}<div class="controls">{slider}<dl class="readout" id="readout"></dl></div></div>'


def _sprite(frames: Sequence[np.ndarray]) -> tuple[str, int, int]:
    """All pictures side by side as a PNG in a data URI, and the width and height of one."""
    from PIL import Image

    height, width = frames[0].shape[:2]
    scale = FRAME_WIDTH / max(width, height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    strip = Image.new("RGB", (size[0] * len(frames), size[1]))
    for i, frame in enumerate(frames):
        strip.paste(Image.fromarray(frame).resize(size, Image.Resampling.NEAREST), (i * size[0], 0))
    buffer = io.BytesIO()
    strip.quantize(64).save(buffer, format="PNG", optimize=True)
    return data_uri(buffer.getvalue(), "image/png"), *size


def _trace_data(found: Inspection) -> dict[str, Any]:
    """What the slider shows: a name and a value for each step."""
    trace = found.findings[found.rule].trace
    ends = ["the episode ends" if end else "" for end in trace.ends.tolist()]
    rows: list[tuple[str, Any]] = [
        ("action", [str(action) for action in trace.actions.tolist()]),
        ("reward", trace.rewards),
        ("value", trace.values),
        ("policy", trace.policy),
        ("confidence of the policy", trace.policy_confidence),
        ("confidence of y", trace.y_confidence),
        *((f"push of {name}", each.trace.push) for name, each in found.findings.items()),
        ("", ends),
    ]
    width = _sprite(found.frames[:1])[1] if found.frames else 0
    shown = [[name, to_plain(values)] for name, values in rows if values is not None]
    return {"steps": len(trace.actions), "sides": list(SIDES), "frame": {"width": width}, "rows": shown}
