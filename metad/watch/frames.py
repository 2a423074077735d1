"""The payloads of EVENT frames. An entry's changes are encoded already; here they are put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from metad_wire.errors import MetadError
from metad_wire.methods import encode
from metad_wire.watch import SlotMarker, StreamFlag, WatchEvents, WatchProgress, WatchRows

from .changes import Change

FRAME_BYTES: Final = 256 * 1024
"""A frame takes no further entry or row beyond this."""
_ENTRY_BYTES: Final = 40  # of an entry, beside its changes
_COALESCE: Final = int(StreamFlag.COALESCE)


class Pending(NamedTuple):
    """An entry that a stream reports: the changes that pass its filters, and the marker."""

    at: int
    """Its index."""
    revision: int
    time_ms: int
    changes: Sequence[Change]
    marker: SlotMarker | None

    @property
    def size(self) -> int:
        """Bytes that it takes in a frame, about."""
        return _ENTRY_BYTES + sum([change.size for change in self.changes])


class _Entries(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of WatchEvents."""

    index: int
    entries: list[tuple[int, int, int, list[msgspec.Raw], SlotMarker | None]]


def entries(index: int, pending: Iterable[Pending], flags: int) -> bytes:
    """Whole entries, the last up to ``index``."""
    if flags & _COALESCE:
        pending = _newest(pending)
    return encode(
        _Entries(
            index,
            [
                (one.at, one.revision, one.time_ms, [change.encoded(flags) for change in one.changes], one.marker)
                for one in pending
            ],
        )
    )


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
    seen: set[bytes] = set()
    kept: list[Pending] = []
    for one in reversed(list(pending)):
        changes = [change for change in one.changes if change.key not in seen]
        seen.update([change.key for change in changes])
        if changes or one.marker is not None:
            kept.append(one._replace(changes=changes))
    kept.reverse()
    return kept
