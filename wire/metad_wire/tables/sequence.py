"""Sequences: counters that only :data:`SEQUENCE_ADD` changes, so that everybody gets numbers of their own."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from .. import messages as m
from ..method import Lane
from ..table import Shown, Table
from ..text.fields import U63, Batch

SEQUENCE_MAX = 2**63 - 1
Delta = Annotated[int, Meta(ge=-SEQUENCE_MAX, le=SEQUENCE_MAX)]


class SequenceKey(m.Message, frozen=True):
    """Identity of a sequence; the namespace routes it."""

    namespace: str
    sequence: str


class SequenceRecord(m.Message, frozen=True):
    """A sequence as read. ``value``: the sum of what was added to it. ``version`` counts its writes."""

    namespace: str
    sequence: str
    value: U63
    version: U63
    create_revision: U63
    mod_revision: U63


class SequenceAddItem(m.Message, frozen=True):
    """Add ``delta`` to a sequence, which begins at 0. With a delta of 100 the caller has the 100 numbers up to the new
    value for itself."""

    namespace: str
    sequence: str
    delta: Delta = 1


class SequenceAdd(m.Message, frozen=True):
    """Add to sequences. Items of one namespace are done all at once, in order."""

    items: Batch[SequenceAddItem]


class SequenceAddReply(m.Message, frozen=True):
    """``values`` by position, after the item; 0 where it failed."""

    columns: ClassVar[dict[str, int | None]] = {"values": 0}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    values: list[U63]


class SequenceList(m.Message, frozen=True):
    """Sequences of one namespace whose name starts with ``prefix``, in order."""

    namespace: str
    prefix: str = ""
    page: m.Page = m.Page()
    min_revisions: m.Revisions = []  # noqa: RUF012


SEQUENCE = Table(
    "sequence",
    kind="data",
    rows={"sequence": 0x33},
    record=SequenceRecord,
    key=("namespace", "sequence"),
    routing=("namespace",),
    shows={"sequence": Shown(SequenceKey, SequenceRecord, counted=True)},
)
SEQUENCE_ADD = SEQUENCE.writes(0x0320, "add", SequenceAdd, SequenceAddReply, Lane.RECORDS)
SEQUENCE_GET = SEQUENCE.gets(0x0321, "get", SequenceKey, SequenceRecord, "Each sequence as it is.")
SEQUENCE_DELETE = SEQUENCE.batches(
    0x0322, "delete", SequenceKey, "Delete sequences: they begin at 0 again. Item errors: not_found.", named="keys"
)
SEQUENCE_LIST = SEQUENCE.lists(
    0x0323,
    "list",
    SequenceList,
    SequenceRecord,
    "Sequences of a namespace whose names start with ``prefix``, in order.",
)
