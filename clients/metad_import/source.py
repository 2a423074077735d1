"""What an import reads: the rows of a source, which key of metad each becomes, and what cannot be carried over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from metad_client import MetadError
from metad_wire.messages import KvKey, KvPutItem
from metad_wire.tables.kv import KV

BATCH_ROWS: Final = 1_000
"""Rows of one step: a request of metad has no more items."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Of values in one step, about: a few steps are in memory at a time."""
NOT_CARRIED: Final = {
    "key_not_utf8": "a key of metad is UTF-8 text",
    "key_too_long": "the key and its namespace are too long for metad",
    "value_too_large": "the value is too large for metad",
    "ephemeral": "it is ephemeral: its owner must make it anew, as a key with a lease",
    "no_access": "the user of the import may not read it",
    "lease_over": "its lease ended while the import cut over",
    "lease_full": "a lease of metad has as many keys as it may have",
    "refused": "metad refuses it",
    "conflict": "a client of metad has changed it; `copy --overwrite` puts what the source has",
}
"""Why a row does not become a key, by the code in the file of what was refused."""
CARRIED_WITHOUT: Final = {
    "lease": "`cut` copies it, with a lease etcd-ID of the time that is left; its holder must keep that alive at metad",
    "sequential": "the counter of its parent is not carried: the next sequential name must be drawn from m.sequences",
    "acl": "its ACL is not carried: grant roles of metad for the namespace",
}
"""What a row loses that does become a key."""
ALWAYS: Final = {
    "etcd": "revisions and versions begin anew at metad: create_revision, mod_revision and version of a key are not "
    "carried, and neither is its history",
    "zookeeper": "versions begin anew at metad: zxids, version, cversion, aversion and times of a znode are not "
    "carried, and neither are watches and quotas. ZooKeeper does not tell which znodes are containers or have a time "
    "to live: they become keys that stay",
}


class ImportFailedError(MetadError):
    """An import cannot go on. The text says why, in one line."""


class SourceError(ImportFailedError):
    """The source cannot be reached, or refuses."""


class CompactedError(SourceError):
    """The source has dropped the history that was asked for."""


class Row(msgspec.Struct, frozen=True):
    """One key of the source."""

    key: bytes
    revision: int
    """Of the source, at its last write."""
    value: bytes | None
    """None: :meth:`Source.filled` reads it."""
    size: int
    """Of the value, in bytes."""
    lease: int = 0
    """Of etcd; 0: none."""
    fault: str = ""
    """A code of :data:`NOT_CARRIED`, if it is clear from the source alone."""
    notes: tuple[str, ...] = ()
    """Codes of :data:`CARRIED_WITHOUT`."""


class Head(NamedTuple):
    """What a source has now. It has the same rows as before as long as ``keys`` and ``newest`` are the same: a put
    raises ``newest``, and a delete lowers ``keys`` unless a put makes up for it."""

    keys: int
    newest: int
    """The highest :attr:`Row.revision`."""
    revision: int
    """The source has all changes up to it."""


class Changes(NamedTuple):
    """What a watch has told."""

    rows: dict[bytes, Row | None]
    """By key; None: it was deleted."""
    revision: int
    """All changes up to it were told."""
    grown: int
    """How many more keys there are than before."""
    events: int


class Watch(Protocol):
    """Changes of a source behind a revision, in order."""

    async def next(self, idle_s: float) -> Changes | None:
        """What comes next; None if nothing does for so long. Raises SourceError, CompactedError."""

    async def close(self) -> None:
        """End it."""


class Source(Protocol):
    """Where an import reads. It never writes there."""

    kind: str
    identity: str
    """What distinguishes it from others of its kind."""
    keeps_history: bool
    """It can be read as of a past moment, and tells what has changed since."""

    async def open(self) -> None:
        """Connect. Raises SourceError."""

    async def close(self) -> None:
        """Disconnect."""

    async def head(self) -> Head:
        """What there is now. Raises SourceError."""

    def rows(self, head: Head, after: bytes, *, thorough: bool = False) -> AsyncIterator[list[Row]]:
        """All rows whose key is above ``after``, in order, in batches; as of ``head`` where the source keeps its past.
        ``thorough``: with all notes. Raises SourceError, CompactedError."""

    async def filled(self, rows: Sequence[Row]) -> list[Row | None]:
        """Read the values that rows lack; None for those that are gone. Raises SourceError."""

    async def watch(self, after: int) -> Watch | None:
        """Changes behind a revision; None if the source can only be read again. Raises SourceError."""

    async def left_ms(self, lease: int) -> int:
        """How much time a lease of etcd has left; 0: it is over. Raises SourceError."""


class Names(msgspec.Struct, frozen=True):
    """Which key of metad a key of the source becomes."""

    prefix: str
    """What all keys begin with, but for ``root``."""
    root: str
    """The key that is the prefix itself; it need not be there."""
    into: str
    """Namespace."""
    split: int = 0
    """So many parts of the path behind the prefix belong to the namespace: ``INTO/part/part``."""
    strip: bool = False
    """Keys do without the prefix."""

    def target(self, key: str) -> KvKey:
        """The key of metad."""
        behind = "" if key == self.root else key[len(self.prefix) :]
        parts = behind.strip("/").split("/")[: self.split] if behind.strip("/") else []
        return KvKey("/".join([self.into, *parts]), behind if self.strip else key)

    def origin(self, found: KvKey) -> str | None:
        """The key of the source that becomes this one; None if there can be none."""
        key = found.key
        if self.strip:
            key = self.prefix + key if key else self.root
        elif not key.startswith(self.prefix) and key != self.root:
            return None
        return key if self.target(key) == found else None

    @property
    def shared_prefix(self) -> str:
        """What all keys of metad begin with."""
        return "" if self.strip else self.root

    def fault(self, row: Row, ledger: str) -> str:
        """The code of :data:`NOT_CARRIED` if a row cannot be carried; empty if it can. ``ledger``: the namespace in
        which its key is noted, too."""
        if row.fault:
            return row.fault
        try:
            key = row.key.decode()
        except UnicodeDecodeError:
            return "key_not_utf8"
        at = self.target(key)
        if KV.key_fault(at) is not None or KV.key_fault(KvKey(ledger, key)) is not None:
            return "key_too_long"
        if row.size > KV.value_bytes_max or (
            row.value is not None and KV.value_fault(KvPutItem(at.namespace, at.key, row.value)) is not None
        ):
            return "value_too_large"
        return ""
