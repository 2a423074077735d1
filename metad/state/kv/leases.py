"""Leases: granted, kept alive, revoked, or over; with a lease end the keys attached to it, in one entry.

Only the leader of the group knows whether a lease is over: it hears of the holders (:mod:`..live.live_leases`), and
orders the end through the log (:mod:`metad.node.chores.leases`).
"""

from __future__ import annotations

from functools import partial

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError, InvalidItemError, NotFoundError, QuotaExceededError, TooLargeError
from metad_wire.methods import encode
from metad_wire.tables import lease as w
from metad_wire.tables.kv import KV
from metad_wire.tables.lease import LEASE

from ...storage import keys
from ..core import tails
from ..core.limits import ENTRY_BYTES_FULL, check_change
from ..core.part import Origin
from ..core.verb import Command, Reader, Verb, read_list, read_values, written
from ..core.view import View
from ..live.live_leases import LEASE_BYTES, LiveLeases
from .kv_records import RECORDS, LeasedRecords, decode_head, lease_of
from .lease_keys import Attachments

_FIELDS = tails.fields(w.Lease)
_decode = msgspec.msgpack.Decoder(w.Lease).decode
REVOKED_KEYS_MAX = 10_000
"""Keys that one request deletes with its leases: some 100 ms, for which nobody else is served."""
_ROW, _KEY_ROW, _RECORD = LEASE.rows["lease"], LEASE.rows["key"], KV.rows["record"]


def _evaluate_grant(view: View, command: Command[w.LeaseGrant]) -> w.LeaseGrantReply:
    prefix, writes = keys.table_prefix(view.group, _ROW), view.writes_of(_ROW)
    errors: list[m.ItemError] = []
    names: list[str | None] = []
    made = size = 0
    room = view.parts[LiveLeases].room
    for position, item, suffix in command.rows:
        name, key = item.lease, prefix + suffix
        before, size = size, size + LEASE_BYTES + len(item.holder.encode()) + len(item.attributes)
        if not room.has_room(command.holder, before + size):  # what this command takes is not free any more
            held = f"{command.holder or 'this node'} has leases of {room.held_by(command.holder)} bytes"
            why = f"{held} of the group's {room.size_max}, and may have no more than is left free: revoke some"
            errors.append(m.ItemError(position, QuotaExceededError.code, why))
            names.append(None)
            continue
        if len(name.encode()) > w.LEASE_NAME_BYTES_MAX:
            why = f"the name of the lease takes over {w.LEASE_NAME_BYTES_MAX} bytes"
            errors.append(m.ItemError(position, InvalidItemError.code, why))
            names.append(None)
            continue
        if name:
            if view.get(key) is not None:
                errors.append(m.ItemError(position, ConflictError.code, f"there is a lease {name} already"))
                names.append(None)
                continue
        else:
            # Revisions of a namespace only grow, also over moves of its slot, so the name was never in use. Other
            # commands of the entry have the same revision. Clients that guess it may have leases of such names: with
            # steps that double few of them are met.
            step = 1
            while not name or view.get(key) is not None:
                made += step
                step *= 2
                name = f"{view.revision:x}.{made}"
                key = prefix + keys.text2(item.namespace, name)
        revision = view.revision
        granted = (item.namespace, name, item.ttl_ms, item.holder, item.attributes)
        writes[key] = encode((*granted, 1, revision, revision, 0, 0, 0, command.holder))
        names.append(name)
    return w.LeaseGrantReply([m.Revision(view.name, view.revision)], errors, names)


def _end(view: View, records: LeasedRecords, attachments: Attachments, suffix: bytes, lease: w.Lease) -> None:
    """Delete a lease and the records attached to it."""
    namespace = keys.text(lease.namespace)
    names = attachments.keys_of(suffix)
    for name in names:
        records.drop(namespace + name)
    attachments.end(suffix, names)
    check_change(view.grown)


def _evaluate_revoke(view: View, command: Command[m.Items[w.LeaseKey]]) -> m.WriteReply:
    errors: list[m.ItemError] = []
    records = LeasedRecords(RECORDS, view)
    attachments = records.attachments
    found = [attachments.get(suffix) for suffix in dict.fromkeys(command.rows.keys)]
    if sum([lease.keys for lease in found if lease is not None]) > REVOKED_KEYS_MAX:
        raise TooLargeError(f"these leases have over {REVOKED_KEYS_MAX} keys: revoke fewer of them at once")
    for position, _, suffix in command.rows:
        lease = attachments.get(suffix)
        if lease is None:
            errors.append(m.ItemError(position, NotFoundError.code))
        else:
            _end(view, records, attachments, suffix, lease)
    return written(view, errors)


def _evaluate_expire(view: View, command: Command[w.LeaseExpire]) -> m.WriteReply:
    live = view.parts[LiveLeases]
    records = LeasedRecords(RECORDS, view)
    attachments = records.attachments
    for _, _, suffix in command.rows:
        # The holder may have been heard of since the order was given, or another order was first.
        if live.is_over(suffix) and (lease := attachments.get(suffix)) is not None:
            _end(view, records, attachments, suffix, lease)
        if view.grown > ENTRY_BYTES_FULL // 2:
            break  # the others are still over, and ordered again
    return written(view, [])


def _evaluate_keys(view: View, command: Command[m.Items[w.LeaseKeyItem]], *, attach: bool) -> m.WriteReply:
    table = keys.table_prefix(view.group, _RECORD)
    errors: list[m.ItemError] = []
    records = LeasedRecords(RECORDS, view)
    for position, item, _ in command.rows:
        suffix = keys.text2(item.namespace, item.key)
        row = view.get(table + suffix)
        before = lease_of(records.head(suffix))
        error: m.ItemError | None = None
        if row is None:
            error = m.ItemError(position, NotFoundError.code, f"there is no key {item.key}")
        elif attach and before != item.lease:
            error = records.fault(position, item.namespace, item.lease, (suffix,))
        elif not attach and before != item.lease:
            error = m.ItemError(position, ConflictError.code, f"the key is attached to {before or 'no lease'}")
        if error is not None:
            errors.append(error)
        elif row is not None and (before != item.lease or not attach):
            lease = item.lease if attach else ""
            records.put(item.namespace, item.key, suffix, decode_head(row).value, lease)
    records.finish()
    return written(view, errors)


def _read_keep_alive(reader: Reader, command: Command[w.LeaseKeepAlive]) -> w.LeaseKeepAliveReply:
    live = reader.parts[LiveLeases]
    reader.spent += len(command.rows)
    return w.LeaseKeepAliveReply([live.renew(suffix, command.arrived_s) for suffix in command.rows.keys])


def _read_get(reader: Reader, command: Command[m.Get[w.LeaseKey]]) -> m.GetReply[w.Lease]:
    values = read_values(reader, command, _ROW)
    suffixes = command.rows.keys
    found = [row and _as_read(reader, suffix, row) for suffix, row in zip(suffixes, values, strict=True)]
    return m.GetReply(found)  # type: ignore[arg-type]  # encoded


def _as_read(reader: Reader, suffix: bytes, row: bytes) -> msgspec.Raw:
    """A lease as the wire has it: its row, and how much time is left, which no row says."""
    lease = msgspec.structs.replace(_decode(row), left_ms=reader.parts[LiveLeases].left_ms(suffix))
    return msgspec.Raw(tails.keep(row, encode(lease), _FIELDS))


def _key_name(reader: Reader, suffix: bytes, row: bytes) -> str:
    """The key that a row attaches to a lease."""
    return keys.split_text(suffix, len(keys.text2(*LEASE.fields_of(suffix, 2))))[0]


VERBS = (
    Verb(methods.LEASE_GRANT, LEASE, evaluate=_evaluate_grant),
    Verb(methods.LEASE_REVOKE, LEASE, evaluate=_evaluate_revoke, grows=False),
    Verb(methods.LEASE_KEEP_ALIVE, LEASE, read=_read_keep_alive),
    Verb(methods.LEASE_GET, LEASE, read=_read_get),
    Verb(methods.LEASE_LIST, LEASE, read=partial(read_list, row=_ROW, shown=_as_read)),
    Verb(methods.LEASE_KEYS, LEASE, read=partial(read_list, row=_KEY_ROW, shown=_key_name)),
    Verb(methods.LEASE_ATTACH, LEASE, evaluate=partial(_evaluate_keys, attach=True)),
    Verb(methods.LEASE_DETACH, LEASE, evaluate=partial(_evaluate_keys, attach=False), grows=False),
    Verb(methods.LEASE_EXPIRE, LEASE, evaluate=_evaluate_expire, origin=Origin.EXPIRY, grows=False),
)
