"""The payloads of EVENT frames.

A snapshot has the rows that the stream's filters want, as a pin has them, in pieces: the memory it takes does not
depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np

from metad_wire.errors import MetadError
from metad_wire.methods import encode
from metad_wire.tables import ROWS
from metad_wire.watch import SlotMarker, StreamFlag, WatchEvents, WatchProgress, WatchRows

from ..state.core.slot_assignment import unpack
from ..storage.engine import Pin
from ..storage.keys import after_prefix, table_prefix
from .changes import KEY_AT, Change
from .filters import Interest
from .index import Index

_PIECE_ROWS: Final = 512
"""Rows looked at in one piece, half a millisecond."""
_PIECE_BYTES: Final = 256 * 1024


class PinnedRows:
    """The rows that are still to be sent. ``slots``: a bit map of those wanted that the group has."""

    def __init__(self, pin: Pin, group: bytes, interests: Sequence[Interest], slots: bytes, flags: int) -> None:
        self._pin = pin
        self._keys_only = bool(flags & StreamFlag.KEYS_ONLY)
        mask = unpack(slots)
        self._mask: list[bool] | None = None if mask.all() else np.asarray(mask).tolist()
        self._index: Index[None] = Index(group)
        self._index.add(None, interests)
        self._by_broker = {interest.row for interest in interests if interest.broker}
        ranges: list[tuple[bytes, bytes]] = []
        for row, prefix, _ in sorted(interests):
            begin = table_prefix(group, row) + prefix
            if not ranges or begin >= ranges[-1][1]:  # interests of several brokers may overlap
                ranges.append((begin, after_prefix(begin)))
        self._ranges = ranges[::-1]

    def next(self) -> tuple[list[WatchRows], bool]:
        """Some rows, and whether they were the last."""
        if not self._ranges:
            return [], True
        begin, end = self._ranges.pop()
        found = self._pin.scan(begin, end, _PIECE_ROWS, _PIECE_BYTES)
        if found and (len(found) == _PIECE_ROWS or sum([len(k) + len(v) for k, v in found]) >= _PIECE_BYTES):
            self._ranges.append((found[-1][0] + b"\0", end))
        row = begin[KEY_AT - 1]
        if row in self._by_broker:
            found = [pair for pair in found if self._index.wants(*pair)]
        keys = [key[KEY_AT:] for key, _ in found]
        if (mask := self._mask) is not None and (slots := ROWS[row].slots_of(keys)) is not None:
            wanted = [mask[slot] for slot in slots]
            if not all(wanted):
                keys, found = list(compress(keys, wanted)), list(compress(found, wanted))
        if not keys:
            return [], not self._ranges
        values: list[bytes | None] = [None] * len(keys) if self._keys_only else [value for _, value in found]
        return [WatchRows(row, keys, values)], not self._ranges

    def close(self) -> None:
        """Let the pin go."""
        self._pin.close()


FRAME_BYTES: Final = 256 * 1024
"""A frame takes no further entry or row beyond this."""
_ENTRY_BYTES: Final = 40  # of an entry, beside its changes
_CHANGE_BYTES: Final = 16  # of a change, beside key and values
_COALESCE: Final = int(StreamFlag.COALESCE)


class Pending(NamedTuple):
    """An entry that a stream reports: the changes that pass its filters, as it wants them, and the marker."""

    at: int
    """Its index."""
    revision: int
    time_ms: int
    changes: Sequence[Change]
    marker: SlotMarker | None


def size_of(pending: Pending) -> int:
    """Bytes that an entry takes in a frame, about."""
    sizes = [len(change[2]) + len(change[3] or b"") + len(change[4] or b"") for change in pending.changes]
    return _ENTRY_BYTES + _CHANGE_BYTES * len(sizes) + sum(sizes)


def entries(index: int, pending: Iterable[Pending], flags: int) -> bytes:
    """Whole entries, the last up to ``index``."""
    return encode((index, _newest(pending) if flags & _COALESCE else pending))


def mark(index: int, *, behind_ms: int | None = None) -> bytes:
    """Nothing but the index, and how far the replica may be behind."""
    return encode(WatchEvents(index, progress=None if behind_ms is None else WatchProgress(behind_ms)))


def rows(index: int, columns: list[WatchRows], *, done: bool) -> bytes:
    """Rows of the snapshot."""
    return encode(WatchEvents(index, rows=columns, snapshot_done=done))


def end(index: int, why: MetadError) -> bytes:
    """The last event."""
    return encode(WatchEvents(index, ended=why.body()))


def _newest(pending: Iterable[Pending]) -> list[Pending]:
    """Of several changes of a key only the newest."""
    seen: set[tuple[int, bytes]] = set()
    kept: list[Pending] = []
    for one in reversed(list(pending)):
        changes = [change for change in one.changes if (change[0], change[2]) not in seen]
        seen.update([(change[0], change[2]) for change in changes])
        if changes or one.marker is not None:
            kept.append(one._replace(changes=changes))
    kept.reverse()
    return kept
