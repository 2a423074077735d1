"""The messages of a watch: a stream of one group's changes, from one of its replicas. wire/PROTOCOL.md, "Watch".

A stream reports the entries of the group's log in their order, filtered, whole. Positions are indexes of that log. A
client that watches a table has a stream for each group of the table's kind, and puts them together: the markers say
which group's changes of a slot count.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

from msgspec import Meta

from .errors import ErrorBody
from .messages import Message
from .text.fields import U32, U63, KeyFields

FILTERS_MAX = 1_000
"""Filters of one stream: ``invalid_request``. The different lengths of long ones are limited, too: see *A stream*."""


class ChangeKind(enum.IntEnum):
    """What has happened to a row."""

    CREATED = 1  # by this entry, also if the same request deleted an earlier record of the key
    CHANGED = 2
    DELETED = 3
    EXPIRED = 4  # deleted, because its time was over
    WRITTEN = 5  # created or changed: rows of this kind do not say which


class MarkerStep(enum.IntEnum):
    """The steps of a slot move that decide which group's changes count."""

    SEALED = 1
    UNSEALED = 2
    ADOPTED = 3


class StreamFlag(enum.IntFlag):
    """How a stream reports; bits of ``WatchOpen.flags``."""

    KEYS_ONLY = 1  # changes and rows have no values
    PREVIOUS = 2  # changes have the value before, too
    COALESCE = 4  # of several changes of a key that are ready at once, only the newest


class SlotMarker(Message, frozen=True):
    """A step of a slot move in the log of a group."""

    step: U32
    """1 sealed, 2 unsealed, 3 adopted."""
    move: U63
    """Number of the move."""
    slots: bytes
    """Bit map."""
    other: U32 = 0
    """Ordinal of the other group of the kind: the target of a seal, the source of an adoption."""
    sealed_index: U63 = 0
    """Of an adoption: where the source's log has the seal."""


class WatchFilter(Message, frozen=True):
    """Names rows of one table to report."""

    table: str
    """Name of a table of the group's kind."""
    fields: KeyFields = []  # noqa: RUF012 - msgspec copies it
    """The first fields of the key."""
    prefix: str = ""
    """What the next field of the key starts with, if it is text."""
    rows: Annotated[list[str], Meta(max_length=16)] = []  # noqa: RUF012
    """Names of rows; none: all rows of the table."""
    broker: str = ""
    """Of sessions: only changes of owners to this broker or from it. Of partitions: only those of which it has a
    replica, or had until this change."""
    number: U32 = 0
    """Of a declared table: its number."""


class WatchOpen(Message, frozen=True):
    """Begins a stream of the changes of the group that the request names: see *A stream*, *Where a stream begins*."""

    filters: Annotated[list[WatchFilter], Meta(max_length=FILTERS_MAX)]
    position: U63 | None = None
    """An index of the group's log: report what follows; nil: begin at a pin."""
    snapshot: bytes = b""
    """Bit map of the slots whose rows to send; empty: none."""
    credit_bytes: U32 = 1024 * 1024
    """Bytes of EVENT payloads that the server may send."""
    flags: U32 = 0
    """1 keys only: no values; 2 previous: values before, too; 4 coalesce: of several changes of a key that are ready at
    once, only the newest."""
    progress_ms: U32 = 0
    """How often to send a progress event if nothing happens; 0: never, and less than 100 counts as 100."""
    proven: bool = False
    """The pin has everything that was acknowledged before the request came."""
    streams: U32 = 1
    """Of the whole watch. ``quota_exceeded`` if its principal can never have so many."""


class Brought(Message, frozen=True):
    """The slots, a bit map, that a move brought to a group. Move 0: the group was made with them."""

    move: U63
    """Number of a move; 0: the group was made with the slots."""
    slots: bytes
    """Bit map."""


class WatchOpened(Message, frozen=True):
    """The stream has begun."""

    index: U63
    """Up to where this replica has applied the log; if ``pinned``, the pin."""
    pinned: bool
    """Whether the stream has a pin: it began at one, or sends a snapshot."""
    held: bytes
    """Bit map of the slots that the group held at ``index``."""
    sealed: bytes = b""
    """Bit map of the slots that it had sealed and not closed."""
    sealed_move: U63 = 0
    """The move that sealed them."""
    brought: list[Brought] = []  # noqa: RUF012
    """Which moves had brought all of these slots."""
    leader: bool = False
    """Whether this replica leads the group."""
    revision: U63 = 0
    """The number of the revision at ``index``; 0: an older server does not say."""
    proven: bool = False
    """The pin has everything that was acknowledged before the request came; false: that was not asked for, or the
    server is older."""


class WatchChange(Message, frozen=True):
    """A change of one row."""

    row: U32
    kind: U32
    """See the kinds of change."""
    key: bytes
    """Encoded."""
    value: bytes | None = None
    """Msgpack; nil: deleted, or only keys were asked for."""
    previous: bytes | None = None
    """Msgpack; nil: there was none, it was not asked for, or it is not known."""
    previous_known: bool = False
    """Whether ``previous`` is certain."""


class WatchEntry(Message, frozen=True):
    """One entry of the log: its changes are made at once."""

    index: U63
    revision: U63
    """The number of the revision that the entry made."""
    time_ms: U63
    """Unix time by the leader's clock."""
    changes: list[WatchChange]
    """Those that pass the filters."""
    marker: SlotMarker | None = None
    """If the entry is a step of a slot move."""


class WatchRows(Message, frozen=True):
    """Rows of the snapshot, as columns: of one row number, in order of their keys."""

    row: U32
    keys: list[bytes]
    """Encoded, in order."""
    values: list[bytes | None]
    """Msgpack, by position; nil: only keys were asked for."""


BEHIND_UNKNOWN_MS: Final = 10**12
"""What a replica says that has not heard yet, since it started, how far its leader is."""


class WatchProgress(Message, frozen=True):
    """Nothing up to the frame's ``index`` follows."""

    behind_ms: U63
    """For how long this replica may have missed something; 0: it leads and is certain of it; 10^12: it does not know,
    because it has not been level with a leader since it started."""


class WatchEvents(Message, frozen=True):
    """Is the payload of EVENT: what has followed."""

    index: U63
    """Everything up to here was sent, as far as it passes the filters."""
    entries: list[WatchEntry] = []  # noqa: RUF012
    rows: list[WatchRows] = []  # noqa: RUF012
    """Rows of the snapshot."""
    snapshot_done: bool = False
    """The snapshot is complete with this event."""
    progress: WatchProgress | None = None
    """If this is a progress event."""
    ended: ErrorBody | None = None
    """Why nothing follows."""


class WatchCredit(Message, frozen=True):
    """Payload of a CREDIT that a client sends under the id of a watch: the server may send so many bytes of EVENT
    payloads more."""

    bytes: U32
    """Of EVENT payloads that the server may send beyond what it was allowed."""
