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
"""Filters of one stream."""


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
    """A step of slot move ``move`` in a group's log. ``step`` is one of :class:`MarkerStep`, ``slots`` a bit map.
    ``other`` is the ordinal of the other group, of the same kind: the target of a seal, the source of an adoption.
    ``sealed_index``: of an adoption, the index at which the source sealed the slots in its own log."""

    step: U32
    move: U63
    slots: bytes
    other: U32 = 0
    sealed_index: U63 = 0


class WatchFilter(Message, frozen=True):
    """Rows of one table. Their keys begin with ``fields``; if the next field of the key is text, it starts with
    ``prefix``. ``rows`` names the rows; none stands for all of the table. ``broker``: of sessions, only changes of
    owners to this broker or from it."""

    table: str
    fields: KeyFields = []  # noqa: RUF012 - msgspec copies it
    prefix: str = ""
    rows: Annotated[list[str], Meta(max_length=16)] = []  # noqa: RUF012
    broker: str = ""


class WatchOpen(Message, frozen=True):
    """Begin a stream of the changes of the group that the request names, behind ``position``, an index of its log; None
    begins at a pin, the state as it is now. ``snapshot``: a bit map of slots whose rows are sent as the pin has them;
    with a position, the changes up to the pin are sent before them. ``credit_bytes``: of events that may be sent until
    the client grants more. ``flags``: bits of :class:`StreamFlag`. ``progress_ms``: how often the server says how far
    it is if nothing happens; 0: never, and less than 100 counts as 100. ``proven``: the pin has everything that was
    acknowledged before the request came."""

    filters: Annotated[list[WatchFilter], Meta(max_length=FILTERS_MAX)]
    position: U63 | None = None
    snapshot: bytes = b""
    credit_bytes: U32 = 1024 * 1024
    flags: U32 = 0
    progress_ms: U32 = 0
    proven: bool = False


class Brought(Message, frozen=True):
    """The slots, a bit map, that a move brought to a group. Move 0: the group was made with them."""

    move: U63
    slots: bytes


class WatchOpened(Message, frozen=True):
    """The stream has begun. ``index``: the replica's state; if ``pinned``, that of the pin. The rest is about that
    state: the slots that the group ``held``; those ``sealed`` by the move ``sealed_move`` and not closed; and which
    moves had brought all of them. ``leader``: whether this replica leads the group. ``revision``: the number of the
    revision at ``index``; 0: the server is too old to say. ``proven``: the pin is not behind what the group's leader
    had committed when it proved its lead, after the request came; false: that was not asked for, or the server is too
    old."""

    index: U63
    pinned: bool
    held: bytes
    sealed: bytes = b""
    sealed_move: U63 = 0
    brought: list[Brought] = []  # noqa: RUF012
    leader: bool = False
    revision: U63 = 0
    proven: bool = False


class WatchChange(Message, frozen=True):
    """A change of one row. ``row`` is the row's number, ``kind`` one of :class:`ChangeKind`, ``key`` the encoded key
    fields, ``value`` the encoded record; None if it was deleted, or only keys are asked for. ``previous`` is the value
    before, if it was asked for: None if there was none, or if ``previous_known`` is false."""

    row: U32
    kind: U32
    key: bytes
    value: bytes | None = None
    previous: bytes | None = None
    previous_known: bool = False


class WatchEntry(Message, frozen=True):
    """One entry of the log: its ``index``, the number of its revision, the leader's clock when it was made, and the
    changes that pass the filters, all at once. ``marker`` if it is a step of a slot move."""

    index: U63
    revision: U63
    time_ms: U63
    changes: list[WatchChange]
    marker: SlotMarker | None = None


class WatchRows(Message, frozen=True):
    """Rows of the snapshot, as columns: of one row number, in order of their keys."""

    row: U32
    keys: list[bytes]
    values: list[bytes | None]


BEHIND_UNKNOWN_MS: Final = 10**12
"""What a replica says that has not heard yet, since it started, how far its leader is."""


class WatchProgress(Message, frozen=True):
    """Nothing up to the frame's ``index`` follows. ``behind_ms``: for how long the replica may have lacked what was
    acknowledged; 0 of a leader that is certain to lead, BEHIND_UNKNOWN_MS if it does not know."""

    behind_ms: U63


class WatchEvents(Message, frozen=True):
    """Payload of EVENT. ``index``: everything of the log up to here has been sent, as far as it passes the filters.
    ``rows`` are of the snapshot, and ``snapshot_done`` says that it is complete. ``ended``: why nothing follows."""

    index: U63
    entries: list[WatchEntry] = []  # noqa: RUF012
    rows: list[WatchRows] = []  # noqa: RUF012
    snapshot_done: bool = False
    progress: WatchProgress | None = None
    ended: ErrorBody | None = None


class WatchCredit(Message, frozen=True):
    """Payload of a CREDIT that a client sends under the id of a watch: the server may send so many bytes of EVENT
    payloads more."""

    bytes: U32
