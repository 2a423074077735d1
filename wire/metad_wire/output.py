"""Output that never ends a command: what the terminal's encoding does not have is escaped, and not lost."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper
from typing import TextIO


def escape_unprintable() -> None:
    """Have stdout and stderr escape what their encoding does not have, as Python does: ``\\u2026``. Every command calls
    it first."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def has_all_characters(stream: TextIO) -> bool:
    """Whether the stream's encoding has every character; a stream without one has."""
    encoding = getattr(stream, "encoding", None)
    return not encoding or codecs.lookup(encoding).name in ("utf-8", "utf-16", "utf-32")
