"""Where a comparison's report goes: JSON, a page with pictures, the tables of the benchmark page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..report import output
from .figures import BEGIN, END, markdown, replaced
from .page import page


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """The files that are wanted. ``tables`` exists and has the two marks."""

    json: Path | None = None
    report: Path | None = None
    tables: Path | None = None

    def checked(self) -> Pages:
        """These, before anything is measured. Raises UsageError."""
        if self.tables is not None and replaced(_text(self.tables, "--tables"), "") is None:
            raise UsageError(f"--tables {self.tables}: it has no lines {BEGIN.strip()} and {END.strip()}")
        return self

    def write(self, report: Mapping[str, Any]) -> None:
        """Write all of them."""
        output.write_json(self.json, report)
        if self.report is not None:
            self.report.write_text(page(report))
        if self.tables is not None:
            text = replaced(self.tables.read_text(), markdown(report))
            assert text is not None, "checked before"
            self.tables.write_text(text)


def publish(made: Path, pages: Pages) -> int:
    """Write the pages from the JSON of an earlier run. Returns the exit code."""
    try:
        report = msgspec.json.decode(_text(made, "--from"), type=dict[str, Any])
        pages.write(report)
    except (msgspec.DecodeError, KeyError) as error:
        raise UsageError(f"--from {made}: it is no report of compare: {error}") from None
    return 0


def _text(path: Path, flag: str) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from None
