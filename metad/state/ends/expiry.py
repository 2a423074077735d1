"""What the time of a log ends: sessions whose clients have been away for too long, the silence of their wills, and
retained messages (:func:`.retained.expire`), and records of declared tables.

The sweep names what it has found in the rows of :mod:`..core.due`. Each item counts only if the session is still away
with that very deadline, and only once the deadline has passed. An item that is no more what it was loses its row.

The sessions of a broker whose life is over look connected in their owner rows, because a fence is one write and they
are many. The sweep names those, too, and they get their deadlines, which count from the fence on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import NotFoundError
from metad_wire.methods import encode
from metad_wire.tables.session import SESSION
from metad_wire.tables.table import DECLARED, DUES, TableExpire, TableExpired

from ...storage import keys
from ..cluster.declarations import Declarations
from ..cluster.fences import Fences
from ..cluster.tenant_moves import TenantMoves
from ..core import due as index
from ..core.due import DUE, RECORD_DUE, DueKind, due_key
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.part import Origin
from ..core.slot_assignment import SlotAssignment
from ..core.verb import Command, Verb, written
from ..core.view import HeadCache, Heads, Rows, View, column
from ..retained import retained
from ..session.owned import owner_left
from ..session.owners import CONNECTED, SessionOwners
from ..session.session_end import end_sessions
from ..session.wills import wills_due

_OWNER, _PROPERTIES = SESSION.rows["owner"], SESSION.rows["properties"]
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode
_decode_properties = msgspec.msgpack.Decoder(m.SessionProperties).decode


def _evaluate(view: View, command: Command[c.SessionSweep]) -> c.SessionSweepReply:
    rows, messages = _split(command.rows)
    owners = view.parts[SessionOwners]
    before = dict(zip(rows.keys, owners.before(view, rows), strict=True))
    now: dict[bytes, m.SessionOwner | None] = {}
    writes, due = view.writes_of(_OWNER), view.writes_of(DUE)
    wills: list[tuple[c.SessionDue, bytes]] = []
    ended: list[bytes] = []
    expired, waiting = retained.expire(view, messages) if messages else (0, 0)
    for _, item, session in rows:
        row = before[session]
        if session not in now:
            now[session] = None if row is None or row[1] == CONNECTED else _decode_owner(row)
        owner = now[session]
        ends = item.kind == DueKind.EXPIRY
        if owner is None or item.at_ms != (owner.expires_ms if ends else owner.will_ms):
            due[due_key(view.group, item.at_ms, item.kind, session)] = None
        elif not _has_passed(view, item.at_ms):
            waiting += 1
        else:
            if owner.will_ms:
                wills.append((item, session))
            index.drop(due, view.group, session, owner)
            if ends:
                ended.append(session)
                now[session] = writes[owners.prefix + session] = None
            else:
                left = now[session] = _without_will(owner)
                writes[owners.prefix + session] = encode(left)
                if left.expires_ms:
                    due[due_key(view.group, left.expires_ms, DueKind.EXPIRY, session)] = b""
    wills_due(view, wills)
    end_sessions(view, ended)
    skip = len(owners.prefix)
    replaced = [before[key[skip:]] for key in writes]
    view.replaces(_OWNER, replaced)
    return c.SessionSweepReply([m.Revision(view.name, view.revision)], [], len(ended), len(wills), waiting, expired)


def _split(rows: Rows) -> tuple[Rows, list[tuple[int, bytes]]]:
    """Those of sessions; and when which retained messages are due."""
    sessions: list[int] = []
    messages: list[tuple[int, bytes]] = []
    for at, item, key in rows:
        if item.kind == DueKind.RETAINED:
            messages.append((item.at_ms, key))
        else:
            sessions.append(at)
    if not messages:
        return rows, messages
    return rows.at(sessions), messages


def _has_passed(view: View, at_ms: int) -> bool:
    return at_ms <= view.past_ms


def _without_will(owner: m.SessionOwner) -> m.SessionOwner:
    """The owner row of a session whose will is due now: it is not due again."""
    return msgspec.structs.replace(owner, will_ms=0)


def _evaluate_lose(view: View, command: Command[c.SessionLose]) -> m.WriteReply:
    owners, fences = view.parts[SessionOwners], view.parts[Fences]
    writes, due = view.writes_of(_OWNER), view.writes_of(DUE)
    prefix = keys.table_prefix(view.group, _PROPERTIES)
    before = dict(zip(command.rows.keys, owners.before(view, command.rows), strict=True))
    stored = view.get_many([prefix + session for session in before], LOOKED_AT_BYTES_MAX)
    replaced: list[bytes | None] = []
    for (session, row), properties in zip(before.items(), stored, strict=True):
        owner = None if row is None else _decode_owner(row)
        if owner is None or (fence := fences.over(owner)) is None:
            continue
        kept = m.SessionProperties() if properties is None else _decode_properties(properties)
        left = owner_left(view, owner, fence, kept)
        writes[owners.prefix + session] = encode(left)
        index.note(due, view.group, session, left)
        replaced.append(row)
    view.replaces(_OWNER, replaced)
    holding = view.parts[SlotAssignment].holding
    looked_at = holding.slots == command.body.slots and holding.adopted_move == command.body.adopted_move
    looked_at = looked_at and view.parts[TenantMoves].changes == command.body.tenant_moves
    if command.body.swept and looked_at and not holding.sealed_move:
        fences.swept(view, command.body.swept)
    return written(view, [])


def _evaluate_records(view: View, command: Command[TableExpire]) -> TableExpired:
    """Of declared tables. A row whose record says another time, or whose table was dropped, says nothing any more."""
    prefix, writes = keys.table_prefix(view.group, RECORD_DUE), view.writes_of(RECORD_DUE)
    known = view.parts[Declarations].known
    waiting, gone = 0, Heads()
    for item in command.body.items:
        at_ms, key = DUES.split(item)
        if at_ms > view.past_ms:
            waiting += 1
            continue
        with contextlib.suppress(NotFoundError):
            records = known.records(DECLARED.number_of(key))
            if records.end(view, key, at_ms):
                gone[records.prefix(view.group) + key] = None
        writes[prefix + item] = None
    view.on_accept.append(partial(view.parts[HeadCache].add, gone))
    return TableExpired([m.Revision(view.name, view.revision)], [], len(gone), waiting)


def _record_rows(body: TableExpire) -> Rows:
    return Rows(body.items, body.items, column(DUES.slots_of(body.items), len(body.items)))


def _rows(body: c.SessionSweep | c.SessionLose) -> Rows:
    sessions, crcs = SESSION.keys(body.items)
    return Rows(body.items, sessions, column(crcs, len(sessions)))


_verb: Callable[..., Verb[Any, Any]] = partial(Verb, origin=Origin.EXPIRY, background=True, grows=False)
VERBS = (
    _verb(methods.TABLE_EXPIRE, DECLARED, rows=_record_rows, evaluate=_evaluate_records),
    _verb(methods.SESSION_SWEEP, SESSION, rows=_rows, evaluate=_evaluate),
    _verb(methods.SESSION_LOSE, SESSION, rows=_rows, evaluate=_evaluate_lose),
)
