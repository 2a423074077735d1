"""Sessions: who serves a client, and what its broker keeps of it.

A session is two rows. The *owner* row is small, changes at every reconnect and is the same bytes for every session of a
broker, so a takeover encodes nothing per item and logs a few dozen bytes. The *properties* row changes when the broker
says so. Reads put both together.

The rules: a takeover always wins, except that a past life of a broker (same name, lower epoch) is fenced. Everything
else may only be done by the owner.

A session whose client has gone holds in its owner row when it ends, and when its will is due. Both are by the time of
the log, and :mod:`..core.due` has a row for each. The sweep carries them out; a takeover that comes first judges by its
own time. What belongs to a session goes with it: see :mod:`.session_end`. Who speaks for an earlier connection of a
session is refused: see :mod:`.attachments`.
"""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import SessionCopy
from metad_wire.errors import (
    ConflictError,
    InvalidItemError,
    NotFoundError,
)
from metad_wire.methods import encode
from metad_wire.tables.session import SESSION

from ...storage import keys
from ..cluster.fences import Fences
from ..core import due as index
from ..core.due import DUE
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.verb import (
    PAGE_BYTES_MAX,
    Command,
    Reader,
    Verb,
    mismatch,
    page_of,
    read_values,
    written,
)
from ..core.view import View
from . import attachments
from .owned import SHORT_OWNER, outlives
from .owned import refusal as _refusal
from .owners import CONNECTED, SessionOwners
from .session_end import end_sessions
from .session_parts import copy_properties, rows_of_sessions
from .takeover import owner_rows
from .wills import due_will

_OWNER, _PROPERTIES = SESSION.rows["owner"], SESSION.rows["properties"]


_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_decode_properties = msgspec.msgpack.Decoder(m.SessionProperties).decode
_NO_PROPERTIES = m.SessionProperties()
_DEFAULT_PROPERTIES = encode(_NO_PROPERTIES)
# A Session on the wire is an array of 9: the key's 2 fields, the owner row's 4, the properties, 2 deadlines.
_SESSION_HEADER = b"\x99"
_NO_DEADLINES = b"\0\0"
_LIST_READ_ROWS = 32  # properties read at once for a page: of the largest size they take 32 MiB for a moment


class _Shown(dict[bytes, tuple[bytes, bytes]]):
    """Owner row -> its fields that a session shows, encoded: those in front of the properties and those behind. A
    session is connected if its row says so and the life of its broker is not over."""

    def __init__(self, fences: Fences) -> None:
        super().__init__()
        self._fences = fences

    def __missing__(self, row: bytes) -> tuple[bytes, bytes]:
        if row[0] == SHORT_OWNER and not self._fences:
            fields = self[row] = row[1:], _NO_DEADLINES
            return fields
        owner = _decode_owner(row)
        fence = self._fences.applied_of(owner.broker)
        connected, since_ms = owner.connected, owner.disconnected_ms
        if connected and fence is not None and owner.broker_epoch < fence.least_epoch:
            connected, since_ms = False, fence.at_ms
        deadlines = encode(owner.expires_ms) + encode(owner.will_ms)
        fields = self[row] = encode((connected, owner.broker, owner.broker_epoch, since_ms))[1:], deadlines
        return fields


def _evaluate_update(view: View, command: Command[m.SessionUpdate]) -> m.WriteReply:
    broker, epoch = command.body.broker, command.body.broker_epoch
    mine, stolen = owner_rows(broker, epoch)
    suffixes, items = command.rows.keys, command.rows.items
    owners = view.parts[SessionOwners].before(view, command.rows)
    errors: list[m.ItemError] = []
    late = attachments.outdated(view, command.rows)
    if late or owners.count(mine) + owners.count(stolen) != len(owners):
        allowed: list[int] = []
        for position, owner in enumerate(owners):
            if owner not in (mine, stolen) and (refusal := _refusal(owner, broker, epoch, position)) is not None:
                errors.append(refusal)
            elif position in late:
                errors.append(late[position])
            else:
                allowed.append(position)
        suffixes, items = [suffixes[at] for at in allowed], [items[at] for at in allowed]
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    properties = dict(zip(suffixes, [encode(item.properties) for item in items], strict=True))
    view.write(_PROPERTIES, dict(zip(map(prefix.__add__, properties), properties.values(), strict=True)))
    copy_properties(view, properties)
    return written(view, errors)


def _evaluate_disconnect(view: View, command: Command[m.SessionDisconnect]) -> m.WriteReply:
    broker, epoch = command.body.broker, command.body.broker_epoch
    errors: list[m.ItemError] = []
    owners = view.parts[SessionOwners]
    before = owners.before(view, command.rows)
    late = attachments.outdated(view, command.rows)
    spoken_for = attachments.is_kept(view, broker)
    going: dict[bytes, tuple[m.SessionDisconnectItem, bytes]] = {}
    for (position, item, session), row in zip(command.rows, before, strict=True):
        if (refusal := _refusal(row, broker, epoch, position)) is not None:
            errors.append(refusal)
        elif position in late:
            errors.append(late[position])
        elif session in going and item.attachment and spoken_for:
            errors.append(attachments.refusal(position, view.revision))  # its connection has ended in this batch
        elif row is not None and row[1] == CONNECTED:
            going.setdefault(session, (item, row))
        # Otherwise it is disconnected already: its first disconnect counts for the expiry.
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    stored = view.get_many([prefix + session for session in going], LOOKED_AT_BYTES_MAX)
    writes, due = view.writes_of(_OWNER), view.writes_of(DUE)
    rows: dict[m.SessionOwner, bytes] = {}  # most have the same deadlines
    ended: list[bytes] = []
    for (session, (item, row)), value in zip(going.items(), stored, strict=True):
        properties = _NO_PROPERTIES if value is None else _decode_properties(value)
        will = None if item.will_discard else properties.will
        interval_s = properties.expiry_interval_s if item.expiry_interval_s is None else item.expiry_interval_s
        if will is not None and not min(will.delay_s, interval_s):
            due_will(view, item.tenant, item.client_id, will, view.revision)
            will = None
        if not interval_s:
            writes[owners.prefix + session] = None
            ended.append(session)
            continue
        gone = index.away(broker, epoch, view.now_ms, interval_s, will, view.now_ms, outlives(row))
        if gone not in rows:
            rows[gone] = encode(gone)
        writes[owners.prefix + session] = rows[gone]
        index.note(due, view.group, session, gone)
    attachments.disconnected(view, broker, {session: row for session, (_, row) in going.items()})
    end_sessions(view, ended)
    replaced: list[bytes | None] = [row for _, row in going.values()]
    view.replaces(_OWNER, replaced)
    return written(view, errors)


def _evaluate_delete(view: View, command: Command[m.SessionDelete]) -> m.WriteReply:
    body = command.body
    errors: list[m.ItemError] = []
    owners = view.parts[SessionOwners]
    writes, due = view.writes_of(_OWNER), view.writes_of(DUE)
    before = owners.before(view, command.rows)
    late = attachments.outdated(view, command.rows)
    fences = view.parts[Fences]
    ended: dict[bytes, bytes] = {}
    for (position, item, session), row in zip(command.rows, before, strict=True):
        if item.attachment and not body.broker:
            errors.append(m.ItemError(position, InvalidItemError.code, "attachment: needs the broker that has it"))
            continue
        if row is None or session in ended:  # the second time in one batch it is gone already
            errors.append(m.ItemError(position, NotFoundError.code))
            continue
        owner = _decode_owner(row)
        if body.broker and (refusal := _refusal(row, body.broker, body.broker_epoch, position)) is not None:
            errors.append(refusal)
        elif position in late:
            errors.append(late[position])
        elif item.disconnected_ms and item.disconnected_ms != (since_ms := _disconnected_ms(fences, owner)):
            errors.append(mismatch(position, ConflictError, "disconnected_ms", since_ms, item.disconnected_ms))
        else:
            ended[session] = row
            writes[owners.prefix + session] = None
            index.drop(due, view.group, session, owner)
    end_sessions(view, list(ended))
    replaced: list[bytes | None] = list(ended.values())
    view.replaces(_OWNER, replaced)
    return written(view, errors)


def _disconnected_ms(fences: Fences, owner: m.SessionOwner) -> int:
    """Since when a session is disconnected, as reads show it: also where the sweep has yet to come to it."""
    fence = fences.over(owner)
    return owner.disconnected_ms if fence is None else fence.at_ms


def _session(suffix_fields: bytes, shown: tuple[bytes, bytes], properties: bytes | None) -> bytes:
    """The wire's Session out of its parts: array bodies behind one header."""
    owner, deadlines = shown
    return _SESSION_HEADER + suffix_fields + owner + (properties or _DEFAULT_PROPERTIES) + deadlines


def _read_get(reader: Reader, command: Command[m.Get[m.SessionKey]]) -> m.GetReply[m.Session]:
    values = read_values(reader, command, _PROPERTIES)
    rows, raw = command.rows, msgspec.Raw
    known_owners = reader.parts[SessionOwners]
    owners = known_owners.get_many(rows)
    unknown = [at for at, owner in enumerate(owners) if owner is None and values[at] is not None]
    for at, owner in zip(unknown, known_owners.read(rows, unknown) if unknown else (), strict=True):
        owners[at] = owner
    sessions: list[msgspec.Raw | None] = []
    shown = _Shown(reader.parts[Fences])
    for item, owner, properties in zip(rows.items, owners, values, strict=True):
        if properties is None:  # both rows exist or none
            sessions.append(None)
            continue
        if owner is None:  # pragma: no cover - both rows are written in one entry
            raise AssertionError(f"session without owner: {item}")
        fields, deadlines = shown[owner]
        sessions.append(raw(_SESSION_HEADER + encode(item)[1:] + fields + properties + deadlines))
    return m.GetReply(sessions)  # type: ignore[arg-type]  # encoded


def _read_list(reader: Reader, command: Command[m.SessionList]) -> m.ListReply[m.Session]:
    body, keep = command.body, None
    if body.broker is not None:
        # The broker follows the one-byte boolean, so the filter is a comparison of bytes.
        broker = encode(body.broker)

        def keep(row: bytes) -> bool:
            return row.startswith(broker, 2)

    rows, cursor = page_of(reader, command, _OWNER, keep)
    prefix = keys.table_prefix(reader.group, _PROPERTIES)
    reader.spent += 4 * len(rows)  # a session is put together of two rows, one by one
    sessions: list[msgspec.Raw] = []
    shown = _Shown(reader.parts[Fences])
    size = 0
    # Owner rows are small and properties are not: a page of large sessions ends before the bytes get out of hand.
    for at in range(0, len(rows), _LIST_READ_ROWS):
        part = rows[at : at + _LIST_READ_ROWS]
        values = reader.engine.get_many([prefix + suffix for suffix, _ in part])
        for (suffix, owner), value in zip(part, values, strict=True):
            tenant, offset = keys.split_text(suffix, 0)
            client_id, _ = keys.split_text(suffix, offset)
            record = _session(encode(tenant) + encode(client_id), shown[owner], value)
            sessions.append(msgspec.Raw(record))
            size += len(record)
            if size >= PAGE_BYTES_MAX and len(sessions) < len(rows):
                return m.ListReply(sessions, suffix)  # type: ignore[arg-type]  # encoded
    return m.ListReply(sessions, cursor)  # type: ignore[arg-type]  # encoded


def _evaluate_copy(view: View, command: Command[SessionCopy]) -> m.WriteReply:
    sessions = command.rows.keys
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    stored = view.get_many(list(map(prefix.__add__, sessions)), LOOKED_AT_BYTES_MAX)
    found = {session: value for session, value in zip(sessions, stored, strict=True) if value is not None}
    copy_properties(view, found)
    return written(view, [])


VERBS = (
    Verb(methods.SESSION_COPY, SESSION, rows=rows_of_sessions, evaluate=_evaluate_copy, background=True),
    Verb(methods.SESSION_DISCONNECT, SESSION, evaluate=_evaluate_disconnect, grows=False),
    Verb(methods.SESSION_UPDATE, SESSION, evaluate=_evaluate_update),
    Verb(methods.SESSION_GET, SESSION, read=_read_get),
    Verb(methods.SESSION_DELETE, SESSION, evaluate=_evaluate_delete, grows=False),
    Verb(methods.SESSION_LIST, SESSION, read=_read_list),
)
