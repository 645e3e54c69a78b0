"""Pages in a real browser, where one is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

from disco_torch import inspect_rule, make_report, train
from disco_torch.pages import Panel, panel_svg, render_page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    inspect_rule("birch", env="catch", steps=4_224, out=folder / "birch.html")
    inspect_rule("ppo-replay", env="catch", steps=4_224, out=folder / "ppo-replay.html")
    runs = [train(env="catch", rule=rule, steps=5_120, runs=folder, view=False).folder for rule in ("birch", "ppo-replay")]
    make_report(runs, folder / "report.html")
    return {name: folder / f"{name}.html" for name in ("birch", "ppo-replay", "report")}


@pytest.mark.parametrize("name", ["birch", "ppo-replay", "report"])
def test_pages_open_without_errors_and_fit(name: str, pages: dict[str, Path], browser: Browser) -> None:
    """On a laptop and a phone, light and dark: no message, no request, nothing beside the screen or cut off."""
    colors = set()
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            seen = browser.look(pages[name], width, scheme)
            assert (seen.messages, seen.requests, seen.cut_off) == ([], [], [])
            assert seen.width <= width
            colors.add(seen.color)
    assert len(colors) == 2


def test_mistakes_are_seen(tmp_path: Path, browser: Browser) -> None:
    """A script that fails, a picture from elsewhere, what is too wide, and a text beside its figure."""
    panel = panel_svg(Panel("cut", lambda axes: axes[0].text(1.2, 0.5, "beside the figure")))
    parts = ["<div class='panel' style='width: 600px'>", panel, "</div><img src='none.png' alt=''>"]
    (tmp_path / "page.html").write_text(render_page("bad", parts, end="<script>nothing.there()</script>"))
    seen = browser.look(tmp_path / "page.html", 390)
    assert "nothing is not defined" in str(seen.messages) and seen.requests == [(tmp_path / "none.png").as_uri()]
    assert seen.width > 390 and seen.cut_off == ["beside the figure"]
