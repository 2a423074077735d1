"""The output of ``metadctl``: tables for people, one JSON document for programs."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import msgspec

from metad_wire.program.output import has_all_characters

# A wider cell makes a table unreadable; --json holds it whole.
CELL_CHARS_MAX = 60
# A value of one record has a line for itself.
VALUE_CHARS_MAX = 4_000
_PROGRESS_S = 0.2
PAGE_CHARS = 80
"""The width of a terminal that nobody has enlarged."""


def plain(value: Any) -> Any:
    """A record as JSON values. Bytes are text if they are UTF-8; otherwise their key ends in ``_base64``,
    and in a list they are an object of that. Infinite numbers are text: ``inf``."""
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return dict(_field(key, item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        text = _text(value)
        return {"base64": base64.b64encode(value).decode()} if text is None else text
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _field(key: str, value: Any) -> tuple[str, Any]:
    if not isinstance(value, bytes):
        return key, plain(value)
    text = None if key.endswith("_base64") else _text(value)
    return (key, text) if text is not None else (f"{key}_base64", base64.b64encode(value).decode())


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """One row of a table: a record's nested fields beside its own."""
    row: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            row.update(flat(value))
        else:
            row[key] = value
    return row


def cell(value: Any, most: int = CELL_CHARS_MAX) -> str:
    """A value in one line, without control characters."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(cell(one, most) for one in value) or "-"
    return _cut(in_line(str(value)), most)


def in_line(text: str) -> str:
    """A text in one line, with its control characters as Python writes them."""
    return text if text.isprintable() else repr(text)[1:-1]


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, two spaces apart."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in (header, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def fitted(rows: Sequence[Sequence[str]], header: Sequence[str], width: int = PAGE_CHARS) -> list[list[str]]:
    """The rows, with the cells of the widest columns cut until a table of them is no wider than ``width``."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return [[_cut(text, most) for text, most in zip(row, widths, strict=True)] for row in rows]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class Progress:
    """A line on a terminal that says how far something is; nothing elsewhere."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._at_s = 0.0

    def say(self, text: str, *, last: bool = False) -> None:
        """Show it in place of what was there, some times a second."""
        now_s = time.monotonic()
        if self._shown and (last or now_s >= self._at_s + _PROGRESS_S):
            self._at_s = now_s
            sys.stderr.write(f"\r\x1b[K{in_line(text)}")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line empty."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")


@contextlib.contextmanager
def progress(as_json: bool) -> Iterator[Progress]:
    """Say how far something is; the line is empty at the end. ``as_json``: a program reads the output, and there is no
    line."""
    line = Progress(sys.stderr.isatty() and not as_json)
    try:
        yield line
    finally:
        line.end()


class Printer:
    """Prints results as tables or as JSON."""

    def __init__(self, as_json: bool, out: TextIO | None = None) -> None:
        self._as_json = as_json
        self._out = out if out is not None else sys.stdout

    def lines(self, text: str) -> None:
        """Print lines at once, as they are, for people. Programs have them in the document."""
        if not self._as_json:
            self._out.write(f"{text}\n")
            self._out.flush()

    def one(self, record: Any, facts: dict[str, Any] | None = None) -> None:
        """Print one record, or a dict of facts. ``facts``: for people, if they see something else."""
        fields = plain(record)
        if self._as_json:
            self._json(fields)
        else:
            shown = flat(fields) if facts is None else plain(facts)
            self._table(("field", "value"), [(key, cell(value, VALUE_CHARS_MAX)) for key, value in shown.items()])

    def many(self, records: Sequence[Any], rows: Sequence[dict[str, Any]] | None = None) -> None:
        """Print records of one kind, one row each. ``rows``: for people, if they see something else."""
        fields = [plain(record) for record in records]
        if self._as_json:
            self._json(fields)
            return
        self._rows([flat(record) for record in (fields if rows is None else map(plain, rows))])

    def listing(self, name: str, records: Sequence[Any], more: bool, rows: Sequence[dict[str, Any]]) -> None:
        """Print records of one kind, the whole of them for programs, and a row of each for people. ``more``: there are
        further ones."""
        if self._as_json:
            self._json({name: [plain(record) for record in records], "more": more})
        else:
            self._rows(rows)

    def document(
        self, record: Any, facts: dict[str, Any], tables: Sequence[tuple[str, Sequence[dict[str, Any]]]]
    ) -> None:
        """Print one record with what belongs to it: a JSON document, or for people facts, and tables with titles, with
        whole sentences. A table without rows is left out."""
        if self._as_json:
            self._json(plain(record))
            return
        self._table(("field", "value"), [(key, cell(value, VALUE_CHARS_MAX)) for key, value in facts.items()])
        for title, rows in tables:
            if rows:
                self._out.write(f"\n{title}\n")
                self._rows(rows, VALUE_CHARS_MAX)

    def _rows(self, rows: Sequence[dict[str, Any]], most: int = CELL_CHARS_MAX) -> None:
        header = list(dict.fromkeys(key for row in rows for key in row))
        if rows:
            self._table(header, [[cell(row.get(key), most) for key in header] for row in rows])
        else:
            self._out.write("nothing found\n")

    def page(self, record: Any, lines: Sequence[str], tables: Sequence[Sequence[dict[str, Any]]] = ()) -> None:
        """Print one JSON document, or for people these lines, and tables that fit :data:`PAGE_CHARS`."""
        if self._as_json:
            self._json(plain(record))
            return
        for line in lines:
            self._out.write(f"{line}\n")
        for position, rows in enumerate(tables):
            if lines or position:
                self._out.write("\n")
            header = list(dict.fromkeys(key for row in rows for key in row))
            if rows:
                self._table(header, fitted([[cell(row.get(key)) for key in header] for row in rows], header))
            else:
                self._out.write("nothing found\n")

    def _json(self, document: Any) -> None:
        json.dump(document, self._out, indent=2, ensure_ascii=not has_all_characters(self._out))
        self._out.write("\n")

    def _table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if not self._out.isatty() or not self._rich_table(header, rows):
            self._out.write(plain_table(header, rows) + "\n")

    def _rich_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        """Print in colour if rich is installed, which the base install does without; False otherwise."""
        try:
            console, table, text = (importlib.import_module(f"rich.{name}") for name in ("console", "table", "text"))
        except ImportError:
            return False
        drawn = table.Table(*header, box=None, header_style="bold")
        for row in rows:
            drawn.add_row(*(text.Text(value) for value in row))  # Text: a value's brackets are not markup
        console.Console(file=self._out).print(drawn)
        return True
