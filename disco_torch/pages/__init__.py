"""Pages: HTML files that need nothing else, and the figures in them."""

from disco_torch.pages.drawing import INK, LINES, SIDES, Figure, Panel, add_legend, figure_png, panel_svg, widen_range
from disco_torch.pages.page import (
    NOTHING,
    check_page_path,
    data_uri,
    html_list,
    html_paragraph,
    html_table,
    in_digits,
    render_page,
)

__all__ = [
    "INK",
    "LINES",
    "NOTHING",
    "SIDES",
    "Figure",
    "Panel",
    "add_legend",
    "check_page_path",
    "data_uri",
    "figure_png",
    "html_list",
    "html_paragraph",
    "html_table",
    "in_digits",
    "panel_svg",
    "render_page",
    "widen_range",
]
