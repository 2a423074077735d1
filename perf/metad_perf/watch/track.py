"""What was written to one row of a record, in order: the ledger that the judge of a watch compares with. Pure.

One writer owns a row and has at most one write of it in flight, so the order of the writes is known. A write ends
acknowledged (every watch must deliver it, once), refused (none may) or unknown (once or not at all, and if it was late
on its way, also behind later ones).
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Hashable

import msgspec


class Outcome(enum.IntEnum):
    """How a write has ended."""

    SENT = 0
    ACKNOWLEDGED = 1
    UNKNOWN = 2
    REFUSED = 3


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """Which write a value is of. ``transaction`` is 0, or the number of the transaction that made it, which has put so
    many ``parts``."""

    track: int
    index: int
    transaction: int = 0
    parts: int = 0


_STAMP = struct.Struct(">IIIIB")
STAMP_BYTES = _STAMP.size


def stamped(run: int, stamp: Stamp, size: int) -> bytes:
    """A value of ``size`` bytes at least that no other write of any run has."""
    packed = _STAMP.pack(run, stamp.track, stamp.index, stamp.transaction, stamp.parts)
    return packed + bytes(max(0, size - STAMP_BYTES))


def stamp_of(run: int, value: bytes) -> Stamp | None:
    """The stamp of a value; None if nobody in this run wrote it."""
    rest_bytes = len(value) - STAMP_BYTES
    if rest_bytes < 0 or value.count(0, STAMP_BYTES) != rest_bytes:
        return None
    found, *rest = _STAMP.unpack_from(value)
    return Stamp(*rest) if found == run else None


class Track:
    """The writes of one row. ``number`` identifies it in stamps, ``slot`` says which group holds it."""

    __slots__ = (
        "_names",
        "acknowledged_ns",
        "certain",
        "deletes",
        "label",
        "number",
        "outcomes",
        "sent_ns",
        "slot",
        "versions",
    )

    def __init__(self, label: str, number: int, slot: int) -> None:
        self.label = label
        self.number = number
        self.slot = slot
        self.outcomes = bytearray()
        self.deletes = bytearray()
        self.sent_ns = array("q")
        self.acknowledged_ns = array("q")
        self.versions = array("q")
        """Number of writes since the row was created, this one included; 0: it is deleted; -1: not certain."""
        self.certain = True
        """Every write so far has ended acknowledged or refused."""
        self._names: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.outcomes)

    def write(self, now_ns: int, *, deletes: bool = False, name: Hashable = None) -> int:
        """Begin a write; returns its index. ``name``: what tells its value from those of others, if no stamp does."""
        index = len(self.outcomes)
        self.outcomes.append(Outcome.SENT)
        self.deletes.append(deletes)
        self.sent_ns.append(now_ns)
        self.acknowledged_ns.append(0)
        if not self.certain:
            version = -1
        elif deletes:
            version = 0
        else:
            version = self._version_before(index) + 1
        self.versions.append(version)
        if name is not None:
            self._names[name] = index
        return index

    def settle(self, index: int, outcome: Outcome, now_ns: int) -> None:
        """A write has ended."""
        self.outcomes[index] = outcome
        if outcome == Outcome.ACKNOWLEDGED:
            self.acknowledged_ns[index] = now_ns
        elif outcome == Outcome.UNKNOWN:
            self.certain = False

    def named(self, name: Hashable) -> int | None:
        """The write whose value this is; None if there is none."""
        return self._names.get(name)

    def before(self, index: int) -> int | None:
        """The write before this one that took effect; None if there is none."""
        for at in range(index - 1, -1, -1):
            if self.outcomes[at] != Outcome.REFUSED:
                return at
        return None

    def last_acknowledged(self) -> int:
        """The newest acknowledged write; -1 if there is none."""
        return self.outcomes.rfind(bytes([Outcome.ACKNOWLEDGED]))

    def _version_before(self, index: int) -> int:
        before = self.before(index)
        return 0 if before is None else self.versions[before]
