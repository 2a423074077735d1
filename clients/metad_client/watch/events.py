"""What a watch tells: events in batches. They are decoded when they are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Protocol

from metad_wire.cluster import SLOTS
from metad_wire.messages import Message, Revision
from metad_wire.watch import ChangeKind, WatchChange, WatchEntry, WatchRows

from .event import Event, Item, Shapes, Tells, Wanted, WatchEvent
from .token import to_text
from .typed import OfTables

BatchKind = Literal["changes", "snapshot", "gap", "progress"]
_KINDS = {int(kind): kind for kind in ChangeKind}  # to call the class takes longer than to decode a record
_SHAPES: Final = Shapes()
Where = dict[str, tuple[dict[int, int], bytes]]
"""What a token is made of."""


class _Decoded(Tells[Item], Protocol[Item]):
    def _decoded(self) -> list[Any]: ...


class WatchBatch(OfTables[Wanted]):
    """Events of one group of the cluster, all that one message brought: whole entries, in order.

    ``kind``:

    - ``changes``: what has happened. ``events`` are in the order in which it happened.
    - ``snapshot``: records as they are. They replace all that the program has of the slots in ``slots``: with the batch
      that is ``first``, it begins to collect; with the one that is ``last``, it drops what was not among them.
    - ``gap``: changes of the slots in ``slots`` are lost, because no node has them in its log any more. A snapshot of
      these slots follows; until then nothing else of them does.
    - ``progress``: nothing older than ``token`` follows. ``age_ms`` says how old the picture may be.
    """

    def __init__(
        self,
        kind: BatchKind,
        group: str,
        cluster_id: str,
        where: Where,
        *,
        shapes: Shapes | None = None,
        entries: Sequence[tuple[WatchEntry, Sequence[WatchChange]]] = (),
        rows: Sequence[WatchRows] = (),
        slots: int = 0,
        first: bool = False,
        last: bool = False,
        age_ms: float | None = None,
    ) -> None:
        self.kind: BatchKind = kind
        self.group = group
        """Its name; empty for ``progress``."""
        self.first = first
        """The first batch of a snapshot: one that began before and is not complete is void."""
        self.last = last
        """The snapshot of these slots is complete."""
        self.age_ms = age_ms
        """Of ``progress``: since when the picture may lack something; None of others."""
        self.entries: Final = entries
        """As they came; ``events`` shows them decoded."""
        self.rows: Final = rows
        """Of a snapshot, as they came."""
        self.slot_bits = slots
        self.shapes: Final = shapes or _SHAPES
        """How they are decoded."""
        self._cluster_id = cluster_id
        self._where = where
        self._token = ""
        self._events: list[WatchEvent] | None = None

    def __repr__(self) -> str:
        count = sum(len(changes) for _, changes in self.entries) + sum(len(rows.keys) for rows in self.rows)
        return f"<WatchBatch {self.kind} {self.group} events={count}>"

    @property
    def token(self) -> str:
        """Where a watch resumes, so that it delivers exactly what follows this batch."""
        if not self._token:
            self._token = to_text(self._cluster_id, self._where, self.shapes.declared)
        return self._token

    @property
    def slots(self) -> frozenset[int]:
        """The hash buckets of keys that a snapshot or a gap is about."""
        bits = self.slot_bits
        return frozenset(slot for slot in range(SLOTS) if bits >> (SLOTS - 1 - slot) & 1)

    @property
    def events(self: _Decoded[Event]) -> list[Event]:
        """What has happened, in order; of a snapshot, its records."""
        return self._decoded()

    def _decoded(self) -> list[WatchEvent]:
        found = self._events
        if found is not None:
            return found
        found = self._events = []
        for entry, changes in self.entries:
            revision = Revision(self.group, entry.revision)
            found += [_event(self.shapes, change, revision, entry) for change in changes]
        for rows in self.rows:
            found += _of_snapshot(self.shapes, rows, self.group)
        return found


def _event(shapes: Shapes, change: WatchChange, revision: Revision, entry: WatchEntry) -> WatchEvent:
    shape = shapes.of(change.row, change.key)
    return WatchEvent(
        shape.table,
        shape.row,
        _KINDS.get(change.kind) or ChangeKind(change.kind),
        shape.key(change.key),
        None if change.value is None else shape.record(change.value),
        None if change.previous is None else shape.record(change.previous),
        change.previous_known,
        revision,
        revision.index,
        entry.time_ms,
    )


def array_of(values: Sequence[bytes]) -> bytes:
    """An encoded array of encoded values."""
    return b"\xdd" + len(values).to_bytes(4, "big") + b"".join(values)


def _of_snapshot(shapes: Shapes, rows: WatchRows, group: str) -> Iterable[WatchEvent]:
    if not rows.keys:
        return
    shape = shapes.of(rows.row, rows.keys[0])
    for key, value in zip(rows.keys, rows.values, strict=True):
        record = None if value is None else shape.record(value)
        number = 0
        if shape.counted and isinstance(record, Message):
            number = getattr(record, "mod_revision", 0)
        yield WatchEvent(
            shape.table,
            shape.row,
            ChangeKind.WRITTEN,
            shape.key(key),
            record,
            None,
            False,
            Revision(group, number),
            number,
            0,
        )
