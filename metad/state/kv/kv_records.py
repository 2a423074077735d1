"""Key-value records as commands write them: those of a plain table, and some that are attached to a lease.

On disk a record is the wire's Kv, without its last field if it is attached to none. Where a group has no leases at all,
its records are written as those of any plain table are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from metad_wire import messages as m
from metad_wire.errors import InvalidRequestError, NotFoundError, QuotaExceededError
from metad_wire.methods import encode
from metad_wire.tables.kv import KV
from metad_wire.tables.lease import LEASE_NAME_BYTES_MAX

from ...storage import keys
from ..core.limits import check_change
from ..core.plain import Plain, conflict
from ..core.verb import Command, written
from ..core.view import Head, HeadCache, View
from ..live.live_leases import LiveLeases
from .lease_keys import Attachments


class RecordHead(m.Message, frozen=True):
    """A record's numbers, without making objects of the rest."""

    namespace: msgspec.Raw
    key: msgspec.Raw
    value: msgspec.Raw  # encoded
    version: int
    create_revision: int
    mod_revision: int
    lease: str = ""


decode_head = msgspec.msgpack.Decoder(RecordHead).decode


def lease_of(head: Head | None) -> str:
    """The lease that a record with this head is attached to; empty if there is none."""
    return head[2] if head is not None and len(head) > 2 else ""


def _encode_row(item: m.KvPutItem, version: int, create_revision: int, revision: int) -> bytes:
    return encode((item.namespace, item.key, item.value, version, create_revision, revision))


def _encode_rows(
    items: Sequence[m.KvPutItem], versions: Sequence[int], created: Sequence[int], revision: int
) -> list[bytes]:
    # 100,000 puts a second pass here: the encoding is spelled out once more.
    return [
        encode((item.namespace, item.key, item.value, version, create_revision, revision))
        for item, version, create_revision in zip(items, versions, created, strict=True)
    ]


class KvRecords(Plain):
    """The plain table, where some records may be attached to leases."""

    def __init__(self) -> None:
        super().__init__(KV, _encode_row, decode_head, _encode_rows)

    def read_head(self, view: View, key: bytes) -> Head | None:
        value = view.get(key)
        head: Head | None = None
        if value is not None:
            row = decode_head(value)
            head = (row.version, row.create_revision)
            if row.lease:
                head = (*head, row.lease)
        view.parts[HeadCache].add({key: head})
        return head

    def takes_turns(self, view: View, command: Command[Any], known: Sequence[Head | None]) -> bool:
        return bool(command.body.lease) or (view.parts[LiveLeases].any and any(map(lease_of, known)))

    def put_in_turn(
        self, view: View, command: Command[Any], targets: list[bytes]
    ) -> tuple[list[m.ItemError], list[int]]:
        lease = command.body.lease
        if not lease and not view.parts[LiveLeases].any:
            return super().put_in_turn(view, command, targets)
        if len(lease.encode()) > LEASE_NAME_BYTES_MAX:  # it would be in the error of each item
            raise InvalidRequestError(f"the name of the lease takes over {LEASE_NAME_BYTES_MAX} bytes")
        errors: list[m.ItemError] = []
        versions: list[int] = []
        records = LeasedRecords(self, view)
        for position, item, suffix in command.rows:
            current = records.head(suffix)
            error: m.ItemError | None = None
            if item.expected_version is not None and item.expected_version != (current[0] if current else 0):
                error = conflict(position, current, item.expected_version)
            elif lease and lease != lease_of(current):
                error = records.fault(position, item.namespace, lease, (suffix,))
            if error is None:
                versions.append(records.put(item.namespace, item.key, suffix, item.value, lease))
            else:
                errors.append(error)
                versions.append(0)
        records.finish()
        return errors, versions

    def evaluate_delete(self, view: View, command: Command[Any]) -> m.WriteReply:
        if not view.parts[LiveLeases].any:
            return super().evaluate_delete(view, command)
        errors: list[m.ItemError] = []
        records = LeasedRecords(self, view)
        for position, item, suffix in command.rows:
            current = records.head(suffix)
            if current is None:
                errors.append(m.ItemError(position, NotFoundError.code))
            elif item.expected_version is not None and item.expected_version != current[0]:
                errors.append(conflict(position, current, item.expected_version))
            else:
                records.delete(item.namespace, suffix)
        records.finish()
        return written(view, errors)


RECORDS = KvRecords()


class LeasedRecords:
    """The records that one command writes, and the leases that they are attached to. ``suffix`` is a record's key
    behind the byte of its row. Call :meth:`finish` behind the last write."""

    def __init__(self, plain: KvRecords, view: View) -> None:
        self._view = view
        self._prefix = plain.prefix(view.group)
        self.heads = plain.heads(view)
        self.writes = view.writes_of(plain.row)
        self.attachments = Attachments(view)

    def finish(self) -> None:
        """Write what has become of the leases."""
        self.attachments.finish()

    def head(self, suffix: bytes) -> Head | None:
        """The numbers of a record as the command must believe them."""
        return self.heads.get(self._prefix + suffix)

    def fault(self, position: int, namespace: str, lease: str, suffixes: Sequence[bytes]) -> m.ItemError | None:
        """Why an item may not attach records to a lease; None if it may."""
        prefix = keys.text(namespace)
        key = prefix + keys.text(lease)
        if self.attachments.get(key) is None:
            return m.ItemError(position, NotFoundError.code, f"there is no lease {lease}")
        names_bytes = sum(map(len, suffixes)) - len(suffixes) * len(prefix)
        if not self.attachments.has_room(key, len(suffixes), names_bytes):
            return m.ItemError(position, QuotaExceededError.code, f"lease {lease} has as many keys as it may have")
        return None

    def put(self, namespace: str, key: str, suffix: bytes, value: bytes | msgspec.Raw, lease: str) -> int:
        """Write a record, attached to this lease or to none; returns its version."""
        at = self._prefix + suffix
        self._attach(namespace, suffix, lease_of(self.heads.get(at)), lease)
        version, created = self.heads.next(at, lease)
        record = (namespace, key, value, version, created, self._view.revision)
        row = self.writes[at] = encode((*record, lease) if lease else record)
        self._grow(len(at) + len(row))
        return version

    def delete(self, namespace: str, suffix: bytes) -> None:
        """Delete a record, if there is one."""
        at = self._prefix + suffix
        self._attach(namespace, suffix, lease_of(self.heads.get(at)), "")
        self.heads.delete(at, self.writes)
        self._grow(len(at))

    def drop(self, suffix: bytes) -> None:
        """Delete a record whose lease ends. It is there, for the lease has a row that says so; to read it, with all
        others of the lease, could be too much for one command."""
        at = self._prefix + suffix
        self.writes[at] = self.heads.written[at] = None
        self._view.grown += len(self._prefix) + len(suffix)

    def _attach(self, namespace: str, suffix: bytes, before: str, after: str) -> None:
        if before == after:
            return
        prefix = keys.text(namespace)
        name = suffix[len(prefix) :]
        if before:
            self.attachments.detach(prefix, before, name)
        if after:
            self.attachments.attach(prefix, after, name)

    def _grow(self, size: int) -> None:
        self._view.grown += size
        check_change(self._view.grown)
