"""The changes that an entry of the log makes, as watches report them. Each is made and encoded once for all streams."""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from metad_wire import messages as m
from metad_wire.methods import encode
from metad_wire.tables import ROWS
from metad_wire.tables.cluster import CLUSTER
from metad_wire.tables.session import SESSION
from metad_wire.watch import ChangeKind, StreamFlag, WatchChange

from ..state.entry import Entry
from ..storage.keys import GROUP_PREFIX_BYTES
from .filters import OWNER

KEY_AT: Final = GROUP_PREFIX_BYTES + 1
"""Where the fields of a key begin, behind the group and the row."""
_PROPERTIES: Final = SESSION.rows["properties"]
_CLUSTER_MAP: Final = CLUSTER.rows["map"]
_VARIANTS: Final = int(StreamFlag.KEYS_ONLY | StreamFlag.PREVIOUS)
_KEYS_ONLY, _PREVIOUS = int(StreamFlag.KEYS_ONLY), int(StreamFlag.PREVIOUS)
_OVERHEAD_BYTES: Final = 24  # of a change, beside its key and values
_EXPIRY: Final = 2  # the origin of entries that delete what has expired

_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_decode_values = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


@functools.lru_cache(4_096)  # the row is the same bytes for all sessions of a broker's life
def broker_of(owner: bytes | None) -> str:
    """The broker in an owner row; empty if there is no row."""
    return _decode_owner(owner).broker if owner else ""


@functools.cache
def _revisions_at(row: int) -> tuple[int, int]:
    """Where a counted record has the revision that created it, and the one that wrote it."""
    names = [field.name for field in msgspec.structs.fields(ROWS[row].shows[row].record)]
    return names.index("create_revision"), names.index("mod_revision")


def _is_created(row: int, value: bytes) -> bool:
    """Whether the entry that wrote a counted record also created it."""
    created, written = _revisions_at(row)
    fields = _decode_values(value)
    return bytes(fields[created]) == bytes(fields[written])


class Change:
    """A change of one row, shared by all streams that report it. ``before``: the value it replaced, None if there was
    none, once ``before_known``."""

    __slots__ = ("_encoded", "before", "before_known", "key", "kind", "size", "value")

    def __init__(self, key: bytes, value: bytes | None, kind: ChangeKind) -> None:
        self.key = key
        """With group and row in front."""
        self.value = value
        self.kind = kind
        self.size = len(key) + _OVERHEAD_BYTES + (0 if value is None else len(value))
        """Bytes that it takes in a frame, about."""
        self.before: bytes | None = None
        self.before_known = False
        self._encoded: dict[int, msgspec.Raw] = {}

    def replaces(self, before: bytes | None) -> None:
        """The value that the change replaces is known. Not once it was reported."""
        self.before, self.before_known = before, True

    def encoded(self, flags: int) -> msgspec.Raw:
        """As a stream with these flags reports it."""
        variant = flags & _VARIANTS
        found = self._encoded.get(variant)
        if found is None:
            value = None if variant & _KEYS_ONLY else self.value
            known = bool(variant & _PREVIOUS) and self.before_known
            before = self.before if known and not variant & _KEYS_ONLY else None
            found = self._encoded[variant] = msgspec.Raw(
                encode(WatchChange(self.key[KEY_AT - 1], self.kind, self.key[KEY_AT:], value, before, known))
            )
        return found


class EntryChanges:
    """The changes of one entry, made when they are asked for."""

    __slots__ = ("_made", "_owners", "entry")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._made: dict[bytes, Change] = {}
        self._owners: dict[bytes, bytes] | None = None

    def change(self, key: bytes, value: bytes | None) -> Change:
        """The change that this write of the entry is."""
        change = self._made.get(key)
        if change is None:
            row = key[KEY_AT - 1]
            change = self._made[key] = Change(key, value, self._kind(row, key, value))
            if row == OWNER and (before := self._owner_before(key)) is not None:
                change.replaces(before or None)
        return change

    def brokers(self, key: bytes, value: bytes | None) -> set[str]:
        """The brokers that an owner row names, now and before."""
        return {broker_of(value), broker_of(self._owner_before(key))} - {""}

    def _kind(self, row: int, key: bytes, value: bytes | None) -> ChangeKind:
        if value is None:
            return ChangeKind.EXPIRED if self.entry.origin == _EXPIRY else ChangeKind.DELETED
        if row == OWNER:
            return self._kind_of_owner(key)
        if row == _PROPERTIES:
            owner = key[: KEY_AT - 1] + bytes((OWNER,)) + key[KEY_AT:]
            return self._kind_of_owner(owner) if owner in self.entry.heard.get(OWNER, ()) else ChangeKind.CHANGED
        if row == _CLUSTER_MAP:
            return ChangeKind.CHANGED
        if ROWS[row].shows[row].counted:
            return ChangeKind.CREATED if _is_created(row, value) else ChangeKind.CHANGED
        return ChangeKind.WRITTEN

    def _kind_of_owner(self, key: bytes) -> ChangeKind:
        before = self._owner_before(key)
        if before is None:
            return ChangeKind.WRITTEN
        return ChangeKind.CHANGED if before else ChangeKind.CREATED

    def _owner_before(self, key: bytes) -> bytes | None:
        """The owner row that the entry replaces; empty if there was none, None if the entry does not say."""
        if self._owners is None:
            values = self.entry.replaced(OWNER)
            self._owners = {} if values is None else dict(zip(self.entry.heard[OWNER], values, strict=True))
        return self._owners.get(key)
