"""The parts of pages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from disco_torch.pages import (
    NOTHING,
    Panel,
    check_page_path,
    data_uri,
    html_list,
    html_table,
    in_digits,
    panel_svg,
    render_page,
    widen_range,
)


def test_texts_cannot_be_tags() -> None:
    table = html_table(["<a>", "b"], [["<i>", "&"]], texts=1)
    assert "&lt;a&gt;" in table and "&lt;i&gt;" in table and "<td>&amp;</td>" in table and table.count('class="text"') == 2
    assert html_list(["<b>"]) == "<ul><li>&lt;b&gt;</li></ul>"
    page = render_page("<t> $x", ["<p>$body</p>"], style="p { }", end="<hr>")
    assert page.count("&lt;t&gt; $x") == 2 and "<p>$body</p>" in page and "p { }</style>" in page and "<hr></body>" in page


def test_a_row_that_does_not_fit_its_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        html_table(["a", "b"], [["1"]])


def test_a_panel_refers_to_nothing_outside_and_has_the_ink_of_the_page() -> None:
    def draw(axes: list[Any]) -> None:
        axes[0].plot([0, 1], [1, 0])

    svg = panel_svg(Panel("a < b", draw))
    assert svg.startswith("<svg ") and "http" not in svg and "currentColor" in svg and 'aria-label="a &lt; b"' in svg
    assert svg == panel_svg(Panel("a < b", draw))  # the same figure is the same text


def test_what_hardly_changes_is_flat_and_has_no_offset() -> None:
    def plot(axes: list[Any]) -> None:
        axes[0].plot([0, 1], [1.0986, 1.0986 + 1e-6])

    def draw(axes: list[Any]) -> None:
        plot(axes)
        widen_range(axes[0], 0.02)
        assert axes[0].get_ylim()[1] - axes[0].get_ylim()[0] == pytest.approx(0.02)
        widen_range(axes[0], 0.01)  # it is wide enough
        assert axes[0].get_ylim()[1] - axes[0].get_ylim()[0] == pytest.approx(0.02)

    assert ">1.1000<" in panel_svg(Panel("entropy", draw))
    assert ">1.0986004<" in (svg := panel_svg(Panel("entropy", plot))) and "+1.0986" not in svg


def test_numbers_and_files() -> None:
    assert [in_digits(x) for x in (0.0, 2.4e-4, 0.5, float("inf"))] == ["0", "2e-4", "0.500", NOTHING]
    assert data_uri(b"GIF", "image/gif") == "data:image/gif;base64,R0lG"


def test_where_a_page_can_be_written(tmp_path: Path) -> None:
    assert check_page_path(tmp_path / "new" / "x.html") == tmp_path / "new" / "x.html"
    (tmp_path / "x").write_text("")
    assert check_page_path(tmp_path / "x.html") == tmp_path / "x.html"
    with pytest.raises(ValueError, match="`out` must be in a folder that can be written to"):
        check_page_path(tmp_path / "x.html", folder_beside=True)
    with pytest.raises(ValueError, match=r"`out` must be the name of an \.html file"):
        check_page_path(tmp_path / "x.txt")
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ValueError, match="`out` must be in a folder that can be written to"):
            check_page_path(tmp_path / "closed" / "x.html")
