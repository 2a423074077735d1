"""Which keys are attached to which lease: a row for each, beside the name of the lease in the record itself.

Commands that write records tell an :class:`Attachments` what becomes of a record's lease. A lease's row counts its
keys, so that no lease has more than one entry can delete.
"""

from __future__ import annotations

import msgspec

from metad_wire.methods import encode
from metad_wire.tables.kv import KV
from metad_wire.tables.lease import LEASE, LEASE_KEY_BYTES_MAX, LEASE_KEYS_MAX, Lease

from ...storage import keys
from ..core import tails
from ..core.view import View

_ROW, _KEY_ROW = LEASE.rows["lease"], LEASE.rows["key"]
_RECORD_PREFIX_BYTES = len(keys.table_prefix(b"\0\0\0", KV.rows["record"]))
_FIELDS = tails.fields(Lease)
_decode = msgspec.msgpack.Decoder(Lease).decode


class Attachments:
    """What one command does to the keys of leases. Call :meth:`finish` behind the last change."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._lease_prefix = keys.table_prefix(view.group, _ROW)
        self._key_prefix = keys.table_prefix(view.group, _KEY_ROW)
        self._stored: dict[bytes, bytes | None] = {}
        self._found: dict[bytes, Lease | None] = {}
        self._changed: dict[bytes, tuple[int, int]] = {}  # keys and their bytes

    def get(self, lease: bytes) -> Lease | None:
        """The lease of this key, before the command; None if there is none."""
        if lease not in self._found:
            stored = self._stored[lease] = self._view.get(self._lease_prefix + lease)
            self._found[lease] = None if stored is None else _decode(stored)
        return self._found[lease]

    def has_room(self, lease: bytes, count: int, names_bytes: int) -> bool:
        """Whether so many keys more may be attached to a lease that there is; their names have so many bytes as in a
        key."""
        keys_now, bytes_now = self._counts(lease)
        size = 2 * names_bytes + count * self._row_bytes(lease)
        return keys_now + count <= LEASE_KEYS_MAX and bytes_now + size <= LEASE_KEY_BYTES_MAX

    def attach(self, namespace: bytes, lease: str, name: bytes) -> None:
        """A record that was not attached to the lease is so now. ``namespace`` and ``name`` are as in a key."""
        self._change(namespace, lease, name, 1)

    def detach(self, namespace: bytes, lease: str, name: bytes) -> None:
        """A record that was attached to the lease is so no longer."""
        self._change(namespace, lease, name, -1)

    def keys_of(self, lease: bytes) -> list[bytes]:
        """The names of the keys attached to a lease, as in a key, before the command."""
        prefix = self._key_prefix + lease
        return [key[len(prefix) :] for key in self._view.keys_with(prefix, LEASE_KEYS_MAX)]

    def end(self, lease: bytes, names: list[bytes]) -> None:
        """Delete a lease, to which these keys were attached."""
        self._view.writes_of(_ROW)[self._lease_prefix + lease] = None
        prefix = self._key_prefix + lease
        self._view.writes_of(_KEY_ROW).update(dict.fromkeys([prefix + name for name in names]))
        self._view.grown += len(self._lease_prefix) + len(lease) + sum([len(prefix) + len(name) for name in names])
        self._found[lease] = None
        self._changed.pop(lease, None)

    def finish(self) -> None:
        """Write how many keys the leases have now."""
        view, writes = self._view, self._view.writes_of(_ROW)
        for lease, (count, size) in self._changed.items():
            before, stored = self._found[lease], self._stored[lease]
            assert before is not None
            assert stored is not None
            after = msgspec.structs.replace(
                before, version=before.version + 1, mod_revision=view.revision, keys=count, key_bytes=size
            )
            row = writes[self._lease_prefix + lease] = tails.keep(stored, encode(after), _FIELDS)
            view.grown += len(self._lease_prefix) + len(lease) + len(row)

    def _row_bytes(self, lease: bytes) -> int:
        """Of the rows that an attached key has in a deletion, but for its name: the record's and its own."""
        namespace = lease.index(keys.TEXT_END) + len(keys.TEXT_END)
        return _RECORD_PREFIX_BYTES + namespace + len(self._key_prefix) + len(lease)

    def _counts(self, lease: bytes) -> tuple[int, int]:
        if lease in self._changed:
            return self._changed[lease]
        found = self.get(lease)
        return (0, 0) if found is None else (found.keys, found.key_bytes)

    def _change(self, namespace: bytes, name_of_lease: str, name: bytes, by: int) -> None:
        lease = namespace + keys.text(name_of_lease)
        if self.get(lease) is None:
            return  # the lease ends in this very command
        count, size = self._counts(lease)
        self._changed[lease] = count + by, size + by * (self._row_bytes(lease) + 2 * len(name))
        key = self._key_prefix + lease + name
        self._view.writes_of(_KEY_ROW)[key] = b"" if by > 0 else None
        self._view.grown += len(key)
