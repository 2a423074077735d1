"""The fenced blocks of a page in Markdown, for the tests that do what a page says."""

from __future__ import annotations

import re


def fenced(text: str) -> list[tuple[str, str]]:
    """(language, content) of each block; the language is empty if the block names none."""
    return re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text)


def blocks(text: str, language: str = "") -> list[str]:
    """The contents of the blocks of a language."""
    return [content for name, content in fenced(text) if name == language]
