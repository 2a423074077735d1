"""The changes that an entry of the log makes, as watches report them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import msgspec

from metad_wire import messages as m
from metad_wire.families.assignment import BY_REPLICA
from metad_wire.key import split_text
from metad_wire.tables import ROWS
from metad_wire.tables.cluster import CLUSTER
from metad_wire.tables.session import SESSION
from metad_wire.tables.table import DECLARED, INDEXES
from metad_wire.watch import ChangeKind

from ..state.core.entry import Entry
from ..storage.keys import GROUP_PREFIX_BYTES
from .filters import OWNER

Change: TypeAlias = tuple[int, int, bytes, bytes | None, bytes | None, bool]
"""The fields of a WatchChange, in their order: row, kind, key, value, previous, previous_known. A tuple, because a
catch-up makes a million of them, and so that an event is encoded in one go."""

ROW_AT: Final = GROUP_PREFIX_BYTES
"""Where a key has the row."""
KEY_AT: Final = ROW_AT + 1
"""Where the fields of a key begin."""
_PROPERTIES: Final = SESSION.rows["properties"]
_CLUSTER_MAP: Final = CLUSTER.rows["map"]
_EXPIRY: Final = 2  # the origin of entries that delete what has expired
# Plain numbers: an enum's member takes several times as long to encode.
_CREATED, _CHANGED = int(ChangeKind.CREATED), int(ChangeKind.CHANGED)
_DELETED, _EXPIRED, _WRITTEN = int(ChangeKind.DELETED), int(ChangeKind.EXPIRED), int(ChangeKind.WRITTEN)

_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode


@functools.lru_cache(4_096)  # the row is the same bytes for all sessions of a broker's life
def broker_of(owner: bytes | None) -> str:
    """The broker in an owner row; empty if there is no row."""
    return _decode_owner(owner).broker if owner else ""


class _Replicas(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a partition."""

    tenant: msgspec.Raw
    resource: msgspec.Raw
    kind: msgspec.Raw
    partition: msgspec.Raw
    resource_id: msgspec.Raw
    replicas: list[str]


class _PartitionRow(msgspec.Struct, frozen=True, array_like=True):
    record: _Replicas


_decode_partition = msgspec.msgpack.Decoder(_PartitionRow).decode
_RECORD, _INDEX = DECLARED.rows["record"], INDEXES.rows["index"]


def brokers_in(row: int, value: bytes | None) -> Iterable[str]:
    """The brokers that a row names to which it is told: the owner of a session, the replicas of a partition."""
    if row == OWNER:
        return {broker_of(value)} - {""}
    return _decode_partition(value).record.replicas if value else ()


@functools.cache
def _revisions_of(row: int) -> Callable[[bytes], Any] | None:
    """Decodes the two revisions of a record that has them, and nothing else of it; None for rows without."""
    shown = ROWS[row].shown(row)
    if shown is None or not shown.counted:
        return None
    fields = [
        (field.name, int if field.name in ("create_revision", "mod_revision") else msgspec.Raw)
        for field in msgspec.structs.fields(shown.record)
        if field.required  # the others are behind these, and a row may lack them
    ]
    return msgspec.msgpack.Decoder(msgspec.defstruct("Revisions", fields, array_like=True, gc=False)).decode


class EntryChanges:
    """The changes of one entry, made when they are asked for."""

    __slots__ = ("_gone", "_owners", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._gone: dict[bytes, list[str]] | None = None
        self._owners: dict[bytes, bytes] | None = None

    def change(self, key: bytes, value: bytes | None) -> Change:
        """The change that this write of the entry is, without the value before."""
        row = key[ROW_AT]
        if value is None:
            kind = _EXPIRED if self.entry.origin == _EXPIRY else _DELETED
        elif (revisions_of := _revisions_of(row)) is not None:
            revisions = revisions_of(value)
            kind = _CREATED if revisions.create_revision == revisions.mod_revision else _CHANGED
        elif row == OWNER:
            kind = self._kind_of_owner(key)
        elif row == _PROPERTIES:
            owner = key[:ROW_AT] + bytes((OWNER,)) + key[KEY_AT:]
            kind = self._kind_of_owner(owner) if owner in self.entry.heard.get(OWNER, ()) else _CHANGED
        else:
            kind = _CHANGED if row == _CLUSTER_MAP else _WRITTEN
        return row, kind, key[KEY_AT:], value, None, False

    def brokers(self, key: bytes, value: bytes | None) -> set[str]:
        """The brokers to which a change of an owner row or a partition is told: those that it names, now and before."""
        if key[ROW_AT] == _RECORD:
            return {*brokers_in(_RECORD, value), *self._left(key)}
        return {broker_of(value), broker_of(self.owner_before(key))} - {""}

    def _left(self, key: bytes) -> Iterable[str]:
        """The brokers that a partition names no longer: the entry deletes their rows in the index."""
        if self._gone is None:
            self._gone = {}
            begin = key[:ROW_AT] + bytes((_INDEX,))
            header = begin + BY_REPLICA.header
            for row, value in self.entry.writes.items():
                if value is None and row.startswith(header):
                    broker, _ = split_text(row, len(header))
                    record = key[:KEY_AT] + BY_REPLICA.record_key(row[len(begin) :])
                    self._gone.setdefault(record, []).append(broker)
        return self._gone.get(key, ())

    def owner_before(self, key: bytes) -> bytes | None:
        """The owner row that the entry replaces; empty if there was none, None if the entry does not say."""
        if self._owners is None:
            values = self.entry.replaced(OWNER)
            self._owners = {} if values is None else dict(zip(self.entry.heard[OWNER], values, strict=True))
        return self._owners.get(key)

    def _kind_of_owner(self, key: bytes) -> int:
        before = self.owner_before(key)
        if before is None:
            return _WRITTEN
        return _CHANGED if before else _CREATED


def with_previous(change: Change, before: bytes | None) -> Change:
    """The change, and the value that it replaces; None if there was none."""
    return (*change[:4], before, True)


def keys_only(change: Change) -> Change:
    """The change without values."""
    return (*change[:3], None, None, change[5])
