"""Reads the tables and transcripts of the pages of the protocol, so that tests can compare them with the code. Run by
hand, it writes wire/TABLES.md."""

from __future__ import annotations

import re
from pathlib import Path

from metad_wire.described import page

WIRE = Path(__file__).resolve().parents[3] / "wire"
PROTOCOL, TABLES, INTERNAL = WIRE / "PROTOCOL.md", WIRE / "TABLES.md", WIRE / "INTERNAL.md"


def tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of each table of a Markdown page, by the nearest heading above it; header rows are left out."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#"):
            heading = line.lstrip("#").strip().strip("`")
        elif line.startswith("|") and not set(line) <= set("|-: "):
            if number + 1 < len(lines) and set(lines[number + 1]) <= set("|-: ") and lines[number + 1]:
                continue
            cells = [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.setdefault(heading, []).append(cells)
    return found


def hex_blocks(text: str) -> dict[str, bytes]:
    """The ``hex`` blocks of a Markdown page by their first line's comment, other comments left out."""
    blocks = {}
    for block in re.findall(r"```hex\n(.*?)```", text, re.DOTALL):
        first, *lines = block.splitlines()
        data = "".join(line.partition("#")[0] for line in lines)
        blocks[first.removeprefix("#").strip()] = bytes.fromhex(data)
    return blocks


if __name__ == "__main__":
    TABLES.write_text(page(), encoding="utf-8")
