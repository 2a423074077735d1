"""The steps in which an order to end a tenant (:mod:`..cluster.tenant_ends`) is carried out.

A step names what the leader has found behind the place to which the order has come: sessions, then the wills that are
due if they are to be dropped, then the retained messages if they are to go. The evaluation leaves alone what has come
since the order. A step that begins elsewhere than where the order is does nothing, so none is done twice or left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.key import SLOT_MASK
from metad_wire.tables.session import SESSION
from metad_wire.tables.tenants import TENANTS, TenantsRest, TenantsRestReply
from metad_wire.tables.will import WILL

from ...storage import keys
from ..cluster.tenant_ends import REST, RETAINED, SESSIONS, WAITING, WILLS, TenantEnds, begun
from ..cluster.tenant_moves import TenantMoves
from ..core import due as index
from ..core.due import DUE
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.slot_assignment import SlotAssignment
from ..core.verb import Command, Verb
from ..core.view import NO_ROWS, Rows, View, column
from ..retained import retained
from ..session.owners import CONNECTED, SessionOwners
from ..session.session_end import end_sessions
from ..session.wills import wills_due

_OWNER = SESSION.rows["owner"]
_WILL, _CLAIM = WILL.rows["due"], WILL.rows["claim"]
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode


def _next_phase(end: m.TenantEnd) -> int | None:
    """What an order does behind its phase; None: it is carried out then."""
    if end.phase == SESSIONS and not end.publish_wills:
        return WILLS
    if end.phase < RETAINED and end.retained:
        return RETAINED
    return REST if end.everything else None


def _evaluate(view: View, command: Command[c.SessionEndStep]) -> c.SessionEndStepReply:
    body, ends = command.body, view.parts[TenantEnds]
    revisions = [m.Revision(view.name, view.revision)]
    pending = ends.newest(body.order)
    if (
        pending is None
        or (pending.end.phase, pending.end.cursor) != (body.phase, body.begin)
        or view.parts[SlotAssignment].holding.sealed_move
    ):
        return c.SessionEndStepReply(revisions, [], False)
    end = pending.end
    # Slots may have come back since the leader looked: another order is for them.
    at = [at for at, crc in enumerate(command.rows.crcs.tolist()) if pending.slots[crc & SLOT_MASK]]
    rows = command.rows.at(at)
    ended = _end_sessions(view, end, rows) if end.phase == SESSIONS else 0
    others = _drop_wills(view, end, rows.keys) if end.phase == WILLS else 0
    if end.phase == RETAINED:
        others = retained.delete_older(view, rows.keys, end.number)
    ends.progress(view, body.order, _behind(end, body, ended, others))
    return c.SessionEndStepReply(revisions, [], True, ended)


def _behind(end: m.TenantEnd, step: c.SessionEndStep, ended: int, others: int) -> m.TenantEnd | None:
    """The order behind a step that has ended so many sessions, and deleted so many others; None: it is carried out."""
    phase = _next_phase(end) if step.last else end.phase
    if phase is None:
        return None
    cursor = b"" if step.last else step.cursor
    sessions, others = end.sessions + ended, end.others + others
    return msgspec.structs.replace(end, phase=phase, cursor=cursor, sessions=sessions, others=others)


def _end_sessions(view: View, end: m.TenantEnd, rows: Rows) -> int:
    """End those of these sessions that do not outlive the order. Returns how many."""
    owners = view.parts[SessionOwners]
    writes, due = view.writes_of(_OWNER), view.writes_of(DUE)
    ended: dict[bytes, bytes] = {}
    wills: list[tuple[c.SessionEndItem, bytes]] = []
    for (_, item, session), row in zip(rows, owners.before(view, rows), strict=True):
        owner = None if row is None else _decode_owner(row)
        if row is None or owner is None or owner.outlives >= end.number:
            continue
        ended[session] = row
        writes[owners.prefix + session] = None
        index.drop(due, view.group, session, owner)
        if end.publish_wills and (row[1] == CONNECTED or owner.will_ms):
            wills.append((item, session))
    wills_due(view, wills)
    end_sessions(view, list(ended))
    replaced: list[bytes | None] = list(ended.values())
    view.replaces(_OWNER, replaced)
    return len(ended)


def _drop_wills(view: View, end: m.TenantEnd, suffixes: Sequence[bytes]) -> int:
    """Drop those of these wills that were due before the order, whoever has claimed them. Returns how many."""
    prefix, claim_prefix = keys.table_prefix(view.group, _WILL), keys.table_prefix(view.group, _CLAIM)
    stored = view.get_many([prefix + suffix for suffix in suffixes], LOOKED_AT_BYTES_MAX)
    wills, claims = view.writes_of(_WILL), view.writes_of(_CLAIM)
    before = f"{end.number:016x}"
    dropped = 0
    for suffix, row in zip(suffixes, stored, strict=True):
        if row is not None and WILL.fields_of(suffix, 3)[2] < before:
            wills[prefix + suffix] = claims[claim_prefix + suffix] = None
            dropped += 1
    return dropped


def _rows(body: c.SessionEndStep) -> Rows:
    suffixes, crcs = (WILL if body.phase == WILLS else SESSION).keys(body.items)
    return Rows(body.items, suffixes, column(crcs, len(suffixes)))


def _evaluate_rest(view: View, command: Command[TenantsRest]) -> TenantsRestReply:
    """The end of what has no items: of waiting, and of what chores delete by the verbs of its tables."""
    body, ends = command.body, view.parts[TenantEnds]
    pending = ends.newest(body.order)
    done = (
        pending is not None
        and pending.end.phase == body.phase
        and body.phase in (WAITING, REST)
        and not view.parts[SlotAssignment].holding.sealed_move
        and not (body.phase == WAITING and pending.end.begins_ms > view.past_ms)
    )
    if done and pending is not None:
        end = pending.end
        ends.progress(view, body.order, begun(view.group, end, view.revision) if body.phase == WAITING else None)
        if body.phase == REST and ends.orders_of(end.tenant) == 1:
            view.parts[TenantMoves].ended(view, end.tenant)
    return TenantsRestReply([m.Revision(view.name, view.revision)], [], done)


VERBS = (
    Verb(methods.SESSION_END_STEP, SESSION, rows=_rows, evaluate=_evaluate, background=True, grows=False),
    Verb(
        methods.TENANTS_REST,
        TENANTS,
        rows=lambda _: NO_ROWS,
        evaluate=_evaluate_rest,
        background=True,
        grows=False,
    ),
)
