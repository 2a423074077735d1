"""The messages of backups: what copies a node's state while it serves, and what puts a backup into a new cluster.

A backup is taken from nodes that together have all groups. A node makes a *checkpoint*: its files as they are at one
moment, which stay as they are while they are read. Each group is as of one entry of its log. wire/PROTOCOL.md,
"Backups".
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from ..cluster import FenceItem
from ..messages import ItemError, Message, Revision, TenantEnd
from ..text.fields import U32, U63, PerGroup

READ_BYTES_MAX: Final = 1024 * 1024
"""Of one answer with a piece of a file, or with entries of a log; an entry alone may be longer."""
FILES_MAX: Final = 65_536
"""Of one checkpoint."""
TAIL_BYTES: Final = 16 * 1024
"""The end of a file, by which one that never changes is told from others: RocksDB writes there what identifies it."""


class BackupBegin(Message, frozen=True):
    """Makes a checkpoint of what a node has, and keeps it until ``backup.end``, until nobody has read it for ten
    minutes, or for a day. It has everything that was acknowledged before the request came, in all groups that it
    answers for. Asked again with the same id, the node answers the same. ``conflict`` if the node keeps two others that
    are being read, converts rows of an older format, or a group does not say how far it is; ``no_room`` if its disk is
    short of room. Needs the right to read ``backup``, or an administrator where roles do not count."""

    id: Annotated[str, Meta(max_length=64)]
    """Chosen by who asks."""
    stale: bool = False
    """Take what is there of groups that have no leader."""


class BackupGroup(Message, frozen=True):
    """Says how far a group is in a checkpoint."""

    group: str
    index: U63
    """Everything up to this entry of its log is in the checkpoint, and perhaps more."""
    revision: U63
    """Of that entry."""
    stale: bool = False
    """It may lack what was acknowledged before."""
    now_ms: U63 = 0
    """The time of its log, as it goes on where nothing is written."""


class BackupFile(Message, frozen=True):
    """Names a file of a checkpoint."""

    name: str
    size: U63
    """In bytes."""
    tail: bytes
    """SHA-256 of its last bytes, ``TAIL_BYTES`` at most. Two ``.sst`` files of one node of the same length and with
    the same tail are the same."""


class BackupBegun(Message, frozen=True):
    """A checkpoint is there."""

    node_id: str
    store_id: str
    """Of the data directory."""
    cluster_id: str
    version: str
    """Of the server."""
    wall_ms: U63
    """The node's calendar when it was made."""
    groups: PerGroup[BackupGroup]
    files: Annotated[list[BackupFile], Meta(max_length=FILES_MAX)]
    format: U32 = 0
    """Of the data directory, which says how rows are stored; 0: the node does not say it."""


class BackupRead(Message, frozen=True):
    """Reads a piece of a file of a checkpoint. ``not_found`` if there is no such checkpoint, or no such file in it."""

    id: str
    name: str
    offset: U63
    size: Annotated[int, Meta(ge=1, le=READ_BYTES_MAX)]
    """In bytes."""


class BackupPiece(Message, frozen=True):
    """A piece of a file; shorter than asked for only at its end."""

    data: bytes


class BackupEnd(Message, frozen=True):
    """Drops a checkpoint. One that is not there is dropped already."""

    id: str
    backup: Annotated[str, Meta(max_length=128)] = ""
    """Name of the backup that is complete now, for the audit trail; empty: it is not."""


class BackupLog(Message, frozen=True):
    """Reads a group's log, from a replica that has applied what it answers. ``log_cut`` if the log does not reach back
    so far. Needs what ``backup.begin`` does."""

    group: str
    after: U63
    """Index of the entry before the first that is wanted."""
    size: Annotated[int, Meta(ge=1, le=READ_BYTES_MAX)]
    """Bytes of entries, about; one entry at least."""


class BackupEntries(Message, frozen=True):
    """Entries of a group's log, as they are stored."""

    entries: list[bytes]
    """Behind ``after``, without gaps; none if there are no more."""
    applied: U63
    """Index of the last entry that the replica has applied."""
    wall_ms: U63
    """The node's calendar when it answered."""
    cluster_id: str


class Restore(Message, frozen=True):
    """A step of putting a backup into a group of a new cluster. In this order:

    0. ``check``: nothing is done. It fails as ``begin`` would, but where another backup is being put into the group, or
       was, it says which.
    1. ``begin``: the group gives up its slots, and serves nothing until the end. ``conflict`` if it has records, or if
       another backup is being put into it. Begun again, it drops what an earlier attempt has left.
    2. ``rows``, in batches without gaps. ``conflict`` if the attempt is void, or a row is in no slot of the group's.
    3. ``end``: the group serves again. All lives of brokers are over, the group's revision is above ``revision``, and
       watches begin anew.

    All of them answer what is true already once ``end`` was done for this backup. Before, ``cancel`` drops what is
    there and gives the group its slots again, as if nothing had been restored."""

    step: str = "check"
    """One of these."""
    backup: Annotated[str, Meta(max_length=64)] = ""
    """Id of the backup."""
    attempt: U63 = 0
    """Grows with each attempt."""
    batch: U63 = 0
    """With ``rows`` and ``end``: 1 for the first after ``begin``."""
    rows: dict[bytes, bytes] = {}  # noqa: RUF012
    """Key without its group prefix to row. Their times are of the group's log."""
    revision: U63 = 0
    """With ``end``: the highest revision of a group in the backup."""
    fences: list[FenceItem] = []  # noqa: RUF012
    """With ``end``: of all brokers that the backup knows."""
    ends: list[TenantEnd] = []  # noqa: RUF012
    """With ``end``: orders to end tenants that are not carried out, with times of the group's log; they count for those
    of their slots that the group has."""


class Restored(Message, frozen=True):
    """A step was taken."""

    revisions: list[Revision]
    """Of the entry."""
    errors: list[ItemError]
    """Always empty."""
    slots: bytes = b""
    """Bit map of the slots of the group."""
    now_ms: U63 = 0
    """The time of the group's log when it gave up its slots: the times in ``rows`` are put ahead to this."""
    done: bool = False
    """The group has all of the backup, and serves."""
    dropped: U32 = 0
    """With ``begin`` and ``cancel``: rows of an attempt that this step has dropped; ask again until it is 0."""
    backup: str = ""
    """With ``check``: the backup that is being put into the group, or was; empty: none."""
