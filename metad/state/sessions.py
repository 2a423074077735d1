"""Sessions: who serves a client, and what its broker keeps of it.

A session is two rows. The *owner* row (connected, broker, epoch, disconnected_ms) is small, changes at every reconnect
and is the same bytes for every session of a broker, so a takeover encodes nothing per item and logs a few dozen bytes.
The *properties* row changes when the broker says so. Reads put both together.

The rules: a takeover always wins, except that a past life of a broker (same name, lower epoch) is fenced. Everything
else may only be done by the owner.
"""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import (
    FencedError,
    IdentityExpiredError,
    InvalidRequestError,
    NotFoundError,
    NotOwnerError,
    TooLargeError,
)
from metad_wire.methods import encode
from metad_wire.tables.session import SESSION

from ..storage import keys
from .limits import check_reply
from .owners import SessionOwners
from .tables import PAGE_BYTES_MAX, Command, Reader, Verb, after_cursor, check_same_rows, mismatch, read_values, written
from .view import View

_OWNER, _PROPERTIES = SESSION.rows["owner"], SESSION.rows["properties"]


class OwnerRow(m.Message, frozen=True):
    """The owner row as stored."""

    connected: bool
    broker: str
    broker_epoch: int
    disconnected_ms: int


_decode_owner = msgspec.msgpack.Decoder(OwnerRow).decode
_DEFAULT_PROPERTIES = encode(m.SessionProperties())
# A Session on the wire is an array of 7: the key's 2 fields, the owner row's 4, the properties.
_SESSION_HEADER = b"\x97"
_LIST_READ_ROWS = 32  # properties read at once for a page: of the largest size they take 32 MiB for a moment


def _owner(broker: str, epoch: int) -> bytes:
    return encode(OwnerRow(True, broker, epoch, 0))


class _Owners:
    """The owners a reply names: each life of a broker once."""

    def __init__(self) -> None:
        self.table: list[m.Owner] = []
        self._by_row: dict[bytes, int] = {}
        self._by_owner: dict[tuple[str, int], int] = {}

    def add(self, row: bytes) -> int:
        number = self._by_row.get(row)
        if number is None:
            owner = _decode_owner(row)
            number = self._by_owner.get((owner.broker, owner.broker_epoch))
            if number is None:
                number = self._by_owner[owner.broker, owner.broker_epoch] = len(self.table)
                self.table.append(m.Owner(owner.broker, owner.broker_epoch))
            self._by_row[row] = number
        return number


def _evaluate_takeover(view: View, command: Command[m.SessionTakeover]) -> m.SessionTakeoverReply:
    body = command.body
    broker, epoch, restore = body.broker, body.broker_epoch, body.restore
    length = len(broker.encode())
    if length > m.BROKER_BYTES_MAX:
        raise InvalidRequestError(f"the broker's name takes {length} bytes, {m.BROKER_BYTES_MAX} are allowed")
    mine = _owner(broker, epoch)
    properties_prefix = keys.table_prefix(view.group, _PROPERTIES)
    known_owners = view.parts[SessionOwners]
    owner_prefix, owner_writes, writes = known_owners.prefix, view.writes_of(_OWNER), view.writes_of(_PROPERTIES)
    owners = _Owners()
    previous: list[int] = []
    restored: list[msgspec.Raw | None] = []
    restored_bytes = 0
    errors: list[m.ItemError] = []
    stored: dict[bytes, bytes | None] = {}
    rows = known_owners.before(view, command.rows)
    if restore:
        known = [
            properties_prefix + suffix
            for (_, item, suffix), row in zip(command.rows, rows, strict=True)
            if row is not None and not item.clean_start
        ]
        stored = dict(zip(known, view.get_many(known, command.reply_bytes_max), strict=True))
    for (position, item, suffix), row in zip(command.rows, rows, strict=True):
        key = owner_prefix + suffix
        if key in owner_writes:  # the same client twice in one batch
            row = owner_writes[key]
        if row is None:
            number = -1
        else:
            number = owners.add(row)
            last = owners.table[number]
            if last.broker_epoch > epoch and last.broker == broker:
                errors.append(mismatch(position, FencedError, "epoch", last.broker_epoch))
                previous.append(-1)
                restored.append(None)
                continue
        previous.append(number)
        properties = item.properties
        if restore:
            value = None
            if number >= 0 and not item.clean_start:
                written = properties_prefix + suffix
                value = writes[written] if written in writes else stored[written]
            restored.append(None if value is None else msgspec.Raw(value))
            restored_bytes += 0 if value is None else len(value)
            check_reply(restored_bytes, command.reply_bytes_max)
        owner_writes[key] = mine
        if properties is not None:
            writes[properties_prefix + suffix] = encode(properties)
        elif number < 0 or item.clean_start:
            writes[properties_prefix + suffix] = _DEFAULT_PROPERTIES
    if len(owner_writes) > 1:
        known_owners.wrote(owner_writes, command.rows)
    revisions = [m.Revision(view.name, view.revision)]
    found = restored if restore else []
    return m.SessionTakeoverReply(revisions, errors, owners.table, previous, found)  # type: ignore[arg-type]  # encoded


def _forget_restored(reply: m.SessionTakeoverReply) -> m.SessionTakeoverReply:
    return msgspec.structs.replace(reply, properties=[])


def _recall_restored(
    reader: Reader, command: Command[m.SessionTakeover], reply: m.SessionTakeoverReply
) -> m.SessionTakeoverReply:
    if not command.body.restore:
        return reply
    check_same_rows(command, len(reply.previous))
    reader.check_still_held(command.rows)
    try:
        values = read_values(reader, command, _PROPERTIES)
    except TooLargeError:
        raise IdentityExpiredError(
            "this write was done before; the restored properties no longer fit a reply"
        ) from None
    restored = [
        msgspec.Raw(value) if value is not None and number >= 0 and not item.clean_start else None
        for item, number, value in zip(command.rows.items, reply.previous, values, strict=True)
    ]
    return msgspec.structs.replace(reply, properties=restored)


def _refusal(row: bytes | None, broker: str, epoch: int, position: int) -> m.ItemError | None:
    """Why this life of a broker may not touch a session with this owner row; None if it may."""
    if row is None:
        return m.ItemError(position, NotFoundError.code)
    owner = _decode_owner(row)
    if owner.broker != broker:
        return m.ItemError(position, NotOwnerError.code, f"owner is {owner.broker}")
    if owner.broker_epoch != epoch:
        return mismatch(position, FencedError, "epoch", owner.broker_epoch)
    return None


def _evaluate_update(view: View, command: Command[m.SessionUpdate]) -> m.WriteReply:
    broker, epoch = command.body.broker, command.body.broker_epoch
    mine = _owner(broker, epoch)
    suffixes, items = command.rows.keys, command.rows.items
    owners = view.parts[SessionOwners].before(view, command.rows)
    errors: list[m.ItemError] = []
    if owners.count(mine) != len(owners):
        allowed: list[int] = []
        for position, owner in enumerate(owners):
            if owner != mine and (refusal := _refusal(owner, broker, epoch, position)) is not None:
                errors.append(refusal)
            else:
                allowed.append(position)
        suffixes, items = [suffixes[at] for at in allowed], [items[at] for at in allowed]
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    properties = [encode(item.properties) for item in items]
    view.write(_PROPERTIES, dict(zip(map(prefix.__add__, suffixes), properties, strict=True)))
    return written(view, errors)


def _evaluate_disconnect(view: View, command: Command[m.SessionDisconnect]) -> m.WriteReply:
    broker, epoch = command.body.broker, command.body.broker_epoch
    mine = _owner(broker, epoch)
    gone = encode(OwnerRow(False, broker, epoch, view.now_ms))
    errors: list[m.ItemError] = []
    owners, writes = view.parts[SessionOwners], view.writes_of(_OWNER)
    for (position, _, suffix), row in zip(command.rows, owners.before(view, command.rows), strict=True):
        if row == mine:
            writes[owners.prefix + suffix] = gone
        elif (refusal := _refusal(row, broker, epoch, position)) is not None:
            errors.append(refusal)
        # Otherwise it is disconnected already: its first disconnect counts for the expiry.
    if len(writes) > 1:
        owners.wrote(writes, command.rows)
    return written(view, errors)


def _evaluate_delete(view: View, command: Command[m.SessionDelete]) -> m.WriteReply:
    body = command.body
    properties_prefix = keys.table_prefix(view.group, _PROPERTIES)
    errors: list[m.ItemError] = []
    owners = view.parts[SessionOwners]
    owner_writes, writes = view.writes_of(_OWNER), view.writes_of(_PROPERTIES)
    for (position, _, suffix), row in zip(command.rows, owners.before(view, command.rows), strict=True):
        key = owners.prefix + suffix
        if row is None or key in owner_writes:  # the second time in one batch it is gone already
            errors.append(m.ItemError(position, NotFoundError.code))
        elif body.broker and (refusal := _refusal(row, body.broker, body.broker_epoch, position)) is not None:
            errors.append(refusal)
        else:
            owner_writes[key] = None
            writes[properties_prefix + suffix] = None
    return written(view, errors)


def _session(suffix_fields: bytes, owner: bytes, properties: bytes | None) -> bytes:
    """The wire's Session out of its parts: array bodies behind one header."""
    return _SESSION_HEADER + suffix_fields + owner[1:] + (properties or _DEFAULT_PROPERTIES)


def _read_get(reader: Reader, command: Command[m.SessionGet]) -> m.SessionGetReply:
    values = read_values(reader, command, _PROPERTIES)
    rows, raw = command.rows, msgspec.Raw
    known_owners = reader.parts[SessionOwners]
    owners = known_owners.get_many(rows)
    sessions: list[msgspec.Raw | None] = []
    for at, (item, owner, properties) in enumerate(zip(rows.items, owners, values, strict=True)):
        if properties is None:  # both rows exist or none
            sessions.append(None)
            continue
        if owner is None:
            (owner,) = known_owners.read(rows, (at,))
            if owner is None:  # pragma: no cover - both rows are written in one entry
                raise AssertionError(f"session without owner: {rows.keys[at]!r}")
        sessions.append(raw(_SESSION_HEADER + encode(item)[1:] + owner[1:] + properties))
    return m.SessionGetReply(sessions)  # type: ignore[arg-type]  # encoded


def _read_list(reader: Reader, command: Command[m.SessionList]) -> m.SessionListReply:
    body = command.body
    if body.client_id_prefix and body.tenant is None:
        raise InvalidRequestError("client_id_prefix needs a tenant")
    table = keys.table_prefix(reader.group, _OWNER)
    start = b""
    if body.tenant is not None:
        start = keys.text(body.tenant) + keys.text_prefix(body.client_id_prefix)
    begin = after_cursor(reader.group, _OWNER, start, body.page.cursor)
    keep = None
    if body.broker is not None:
        # The broker follows the one-byte boolean, so the filter is a comparison of bytes.
        broker = encode(body.broker)

        def keep(row: bytes) -> bool:
            return row.startswith(broker, 2)

    end = keys.after_prefix(table + start)
    scan = reader.scan(begin, end, body.page.limit, keep)
    properties_prefix = keys.table_prefix(reader.group, _PROPERTIES)
    skip = len(table)
    suffixes = [key[skip:] for key, _ in scan.rows]
    reader.spent += 4 * len(suffixes)  # a session is put together of two rows, one by one
    sessions: list[msgspec.Raw] = []
    size = 0
    # Owner rows are small and properties are not: a page of large sessions ends before the bytes get out of hand.
    for at in range(0, len(suffixes), _LIST_READ_ROWS):
        part = suffixes[at : at + _LIST_READ_ROWS]
        values = reader.engine.get_many([properties_prefix + suffix for suffix in part])
        for suffix, value, (_, owner) in zip(part, values, scan.rows[at : at + _LIST_READ_ROWS], strict=True):
            tenant, offset = keys.split_text(suffix, 0)
            client_id, _ = keys.split_text(suffix, offset)
            record = _session(encode(tenant) + encode(client_id), owner, value)
            sessions.append(msgspec.Raw(record))
            size += len(record)
            if size >= PAGE_BYTES_MAX and len(sessions) < len(suffixes):
                return m.SessionListReply(sessions, suffix)  # type: ignore[arg-type]  # encoded
    cursor = b"" if scan.stopped_at is None else scan.stopped_at[skip:]
    return m.SessionListReply(sessions, cursor)  # type: ignore[arg-type]  # encoded


VERBS = (
    Verb(
        methods.SESSION_TAKEOVER,
        SESSION,
        evaluate=_evaluate_takeover,
        forget=_forget_restored,
        recall=_recall_restored,
    ),
    Verb(methods.SESSION_DISCONNECT, SESSION, evaluate=_evaluate_disconnect),
    Verb(methods.SESSION_UPDATE, SESSION, evaluate=_evaluate_update),
    Verb(methods.SESSION_GET, SESSION, read=_read_get),
    Verb(methods.SESSION_DELETE, SESSION, evaluate=_evaluate_delete),
    Verb(methods.SESSION_LIST, SESSION, read=_read_list),
)
