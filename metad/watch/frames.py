"""The payloads of EVENT frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from metad_wire.errors import MetadError
from metad_wire.methods import encode
from metad_wire.watch import SlotMarker, StreamFlag, WatchEvents, WatchProgress, WatchRows

from .changes import Change

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
