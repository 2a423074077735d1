"""Settings of Sphinx for the documentation site; ``docs/site.py`` builds it."""

from __future__ import annotations

from typing import Any

from pygments.lexers.special import TextLexer

project = "metad"
author = "the authors of metad"
root_doc = "README"
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "metad"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
highlight_language = "text"
suppress_warnings = ["myst.header"]  # messages are headings of the fourth level everywhere


def setup(app: Any) -> None:
    """Name the language of the transcripts of PROTOCOL.md."""
    app.add_lexer("hex", TextLexer)
