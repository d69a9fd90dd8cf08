"""Sphinx configuration: Markdown pages by MyST, the API pages out of the docstrings."""

project = "Marin"
author = "The Marin authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "Marin"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"  # a field of a configuration says itself what it is
nitpicky = False
suppress_warnings = ["ref.python"]
