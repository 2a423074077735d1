"""Sequences: counters that are only added to, so that each caller gets numbers of its own.

With a ``delta`` of 100 the caller has the 100 numbers up to the value in the answer. As a write with an identity, an
addition is done once.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from .. import messages as m
from ..method import Lane
from ..table import Shown, Table
from ..text.fields import U63, Batch

SEQUENCE_MAX = 2**63 - 1
"""The value of a sequence: ``conflict``."""
Delta = Annotated[int, Meta(ge=-SEQUENCE_MAX, le=SEQUENCE_MAX)]


class SequenceKey(m.Message, frozen=True):
    """Identity of a sequence; the namespace routes it."""

    namespace: str
    sequence: str


class SequenceRecord(m.Message, frozen=True):
    """A sequence as read."""

    namespace: str
    sequence: str
    value: U63
    """The sum of what was added."""
    version: U63
    create_revision: U63
    mod_revision: U63


class SequenceAddItem(m.Message, frozen=True):
    """With a delta of 100 the caller has the 100 numbers up to the new value for itself."""

    namespace: str
    sequence: str
    delta: Delta = 1
    """May be negative."""


class SequenceAdd(m.Message, frozen=True):
    """A sequence that does not exist begins at 0. Items of one group are done in one entry, in order. Item error:
    ``conflict`` if the value would be below 0 or not fit a u63."""

    items: Batch[SequenceAddItem]


class SequenceAddReply(m.Message, frozen=True):
    """The value of each sequence."""

    columns: ClassVar[dict[str, int | None]] = {"values": 0}

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    values: list[U63]
    """By position: the value after the item."""


class SequenceList(m.Message, frozen=True):
    """Lists sequences of one namespace."""

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
