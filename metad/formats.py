"""The formats of what metad writes, and the range of each that this build reads: the one place that declares them.

A format has a number, which is raised when an older build could not read what a newer one writes. This build reads the
range of each, and goes on writing the older number until a *feature* is switched on for the whole cluster
(:mod:`metad_wire.tables.feature`): so a node may go back to the build before until then. ``metad formats`` prints the
table, and docs/CARE.md shows it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from metad_wire import messages as m
from metad_wire.connection import peer as p
from metad_wire.tables.feature import CHECKED_ENTRIES

_READ_BY: Final = {
    1: "builds before commit ebd5ddf3",
    2: "builds before commit 456b1767",
}
"""Data directories that no build converts any more, and what reads them."""


class Format(NamedTuple):
    """A format, and which of its numbers this build reads and writes."""

    what: str
    oldest: int
    newest: int
    """Both are read, and all between."""
    writes: int
    """The number that is written until ``feature`` is on, and ``newest`` from then on."""
    feature: str = ""
    note: str = ""

    def reads(self, found: int) -> bool:
        """Whether this build reads what has this number."""
        return self.oldest <= found <= self.newest

    @property
    def range(self) -> str:
        """The range in words, as in ``3 to 5``."""
        return f"{self.oldest} to {self.newest}" if self.oldest < self.newest else str(self.oldest)


DATA_DIRECTORY: Final = Format(
    "data directory",
    3,
    5,
    4,
    CHECKED_ENTRIES,
    "3 is converted to 4 in the background. 5: its log may hold entries of format 4",
)
LOG_ENTRY: Final = Format("log entry", 3, 4, 3, CHECKED_ENTRIES, "4 has a checksum, by the leader that made the entry")
LOG_METADATA: Final = Format("metadata of a group's log", 1, 1, 1)
SNAPSHOT_MARK: Final = Format("snapshot mark", 1, 1, 1)
MANIFEST: Final = Format("manifest of an installation", 1, 1, 1)
NODES: Final = Format(
    "protocol between nodes",
    p.PEER_VERSION_OLDEST,
    p.PEER_VERSION,
    p.PEER_VERSION,
    "",
    "the newest that both ends speak",
)
CLIENTS: Final = Format("protocol for clients", m.PROTOCOL_VERSION, m.PROTOCOL_VERSION, m.PROTOCOL_VERSION)

FORMATS: Final = (DATA_DIRECTORY, LOG_ENTRY, LOG_METADATA, SNAPSHOT_MARK, MANIFEST, NODES, CLIENTS)


def refusal(what: str, of: Format, found: int, by: str = "") -> str:
    """Why something that has a number out of the range is not read, and what reads it. ``by`` is the build that wrote
    it, if that is known."""
    text = f"{what} has format {found}, this version reads {of.range}: "
    if found > of.newest:
        return text + (f"metad {by} wrote it: start that or a newer one" if by else "start a newer metad")
    reader = _READ_BY.get(found, "an older build") if of is DATA_DIRECTORY else "an older build"
    return text + f"{reader} read it: upgrade through a version between the two"


def described() -> list[dict[str, str | int]]:
    """The formats for programs, as ``metad formats --json`` prints them."""
    return [one._asdict() for one in FORMATS]


def table() -> str:
    """The formats as a table in Markdown, as ``metad formats`` prints it."""
    lines = ["| format | read | written | after the switch of | |", "|---|---|---|---|---|"]
    for one in FORMATS:
        written = f"{one.writes}" if one.writes == one.newest else f"{one.writes}, then {one.newest}"
        switch = f"`{one.feature}`" if one.feature else ""
        lines.append(f"| {one.what} | {one.range} | {written} | {switch} | {one.note} |")
    return "\n".join([*lines, ""])
