"""Settings of the documentation site: `make docs`. Nothing is fetched from the network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "disco-torch"
author = "the authors of disco-torch"
copyright = "the authors of disco-torch, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "docstrings", "site_pages"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # notebooks become Markdown in `site_pages`
exclude_patterns = ["_extensions"]

html_theme = "furo"
html_title = "disco-torch"
html_copy_source = False
html_show_sphinx = False
smartquotes = False

myst_heading_anchors = 3  # headings get the anchors that code hosts give them
myst_enable_extensions = ["colon_fence"]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False  # PyTorch's texts are not ours
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
napoleon_custom_sections = [("Attributes", "params_style")]  # as a list, without links to whatever has the same name
napoleon_use_rtype = False
