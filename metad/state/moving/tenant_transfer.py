"""A tenant goes to another cluster, while both serve: the steps, each an entry of a group's log.

Where it is: the tenant *leaves* (whoever moves it reads its rows, and follows the log), is *frozen*, and has *left*.
Where it goes: it *comes*, in numbered batches of rows as they are stored, and *came*. Each step is taken in every group
of the cluster before the next one is taken anywhere.

Whoever moves it may die at any step. The next one begins an attempt, which makes those before void, and goes on behind
the positions that the groups of the new cluster keep: for each group that the tenant leaves how far its rows are
copied, and its log is followed. Rows are copied while they are written, so a row may be put twice; the log is followed
from where copying began, so each row ends as the log has it. A group says that the tenant *came* only if it has
followed each log up to the entry that froze the tenant there. So a move that was given up cannot end.

Connections do not come with sessions: an owner row that looks connected names :data:`NOBODY` from then on, a life that
is over when the tenant came. Times in rows are put ahead as in a slot move, by one difference for the whole move.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import FenceItem
from metad_wire.errors import ConflictError, StaleRouteError
from metad_wire.families.assignment import RESOURCES
from metad_wire.key import text
from metad_wire.methods import encode
from metad_wire.operator.moving import (
    CAME,
    COMES,
    FROZEN,
    LEAVES,
    LEFT,
    TenantCopied,
    TenantCopy,
    TenantPosition,
    TenantPut,
    TenantPutReply,
    TenantStep,
    TenantStepped,
)
from metad_wire.table import ROWS
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.session import SESSION
from metad_wire.tables.table import DECLARED

from ...storage import keys
from ..cluster.declarations import Declarations
from ..cluster.fences import Fences
from ..cluster.tenancy import ranges, tenant_at
from ..cluster.tenant_ends import TenantEnds
from ..cluster.tenant_moves import TenantMoves
from ..core.limits import LOOKED_AT_BYTES_MAX
from ..core.part import Origin, Writes
from ..core.slot_assignment import SlotAssignment, is_held, unpack
from ..core.verb import Command, Reader, Verb
from ..core.view import NO_ROWS, RowCache, View
from ..session.owners import CONNECTED
from .slot_migration import base_above, write_slots

NOBODY: Final = "(moved)"
"""The broker in the owner row of a session that was connected when its tenant moved."""
_OWNER: Final = SESSION.rows["owner"]
_PAGE_ROWS, _PAGE_BYTES = 1_000, 512 * 1024
_LOOKED_AT_ROWS: Final = 5_000  # for one page: most of the rows may be others'
_DROPPED_ROWS: Final = 500  # of one step
_decode_owner = msgspec.msgpack.Decoder(m.SessionOwner).decode


class Coming(msgspec.Struct, frozen=True, array_like=True):
    """The row of a group to which a tenant comes: the last attempt and batch, and how far it is."""

    attempt: int
    batch: int
    positions: dict[str, TenantPosition]


_decode_coming = msgspec.msgpack.Decoder(Coming).decode


def _coming_key(group: bytes, tenant: str) -> bytes:
    return keys.table_prefix(group, GROUP.rows["state"]) + b"coming" + text(tenant)


def _coming(view: View, tenant: str) -> Coming | None:
    row = view.get(_coming_key(view.group, tenant))
    return None if row is None else _decode_coming(row)


def _keep(view: View, tenant: str, coming: Coming | None) -> None:
    row = None if coming is None else encode(coming)
    view.writes_of(GROUP.rows["state"])[_coming_key(view.group, tenant)] = row


# --- the steps --------------------------------------------------------------------------------------------------------


def _evaluate(view: View, command: Command[TenantStep]) -> TenantStepped:
    body = command.body
    known = view.parts[TenantMoves].newest(body.tenant)
    now, coming = known, _coming(view, body.tenant)
    if body.step != "look":
        step = _STEPS.get(body.step)
        if step is None:
            raise ConflictError(f"no step {body.step!r}")
        now, coming = step(view, body, known, coming)
        if now != known:
            view.parts[TenantMoves].write(view, body.tenant, now)
        _keep(view, body.tenant, coming)
    return TenantStepped(
        [m.Revision(view.name, view.revision)],
        [],
        now,
        view.parts[SlotAssignment].holding.slots,
        view.now_ms,
        0 if coming is None else coming.batch,
        {} if coming is None else coming.positions,
    )


_Now = tuple[m.TenantMove | None, Coming | None]


def _check_begin(view: View, body: TenantStep) -> None:
    """Raise ConflictError where no move may begin."""
    held = view.parts[SlotAssignment].holding
    if held.sealed_move or held.opened_move > held.adopted_move:
        raise ConflictError(f"slots of {view.name} are moving: try again")
    if view.parts[TenantEnds].orders_of(body.tenant):
        raise ConflictError(f"tenant {body.tenant!r} is being ended here")


def _check_same(body: TenantStep, known: m.TenantMove | None) -> m.TenantMove:
    """Raise ConflictError unless this attempt of this move was begun."""
    if known is None or known.move != body.move:
        raise ConflictError(f"move {body.move} of tenant {body.tenant!r} is not under way here")
    if known.attempt != body.attempt:
        raise ConflictError(f"attempt {body.attempt} to move tenant {body.tenant!r} is void")
    return known


def _leave(view: View, body: TenantStep, known: m.TenantMove | None, coming: Coming | None) -> _Now:
    if known is not None and known.phase != CAME:
        if known.phase == COMES:
            raise ConflictError(f"tenant {body.tenant!r} comes from {known.other}")
        if known.move != body.move:
            raise ConflictError(f"tenant {body.tenant!r} moves to {known.other} already, by move {known.move}")
        if body.attempt < known.attempt:
            raise ConflictError(f"attempt {body.attempt} to move tenant {body.tenant!r} is void")
        return msgspec.structs.replace(known, attempt=body.attempt), coming
    _check_begin(view, body)
    if _has_resources(view, body.tenant):
        raise ConflictError(
            f"tenant {body.tenant!r} has resources, whose partitions are placed on brokers of this cluster: delete "
            "them first"
        )
    return m.TenantMove(body.tenant, body.move, LEAVES, body.attempt, body.other, 0), coming


def _has_resources(view: View, tenant: str) -> bool:
    record = DECLARED.rows["record"]
    if RESOURCES.kind != view.name.partition("-")[0]:
        return False
    prefix = keys.table_prefix(view.group, record) + RESOURCES.header + text(tenant)
    return bool(view.keys_under(record, prefix, 1))


def _freeze(view: View, body: TenantStep, known: m.TenantMove | None, coming: Coming | None) -> _Now:
    move = _check_same(body, known)
    if move.phase == LEAVES:
        at = {"index": view.index, "revision": view.revision, "at_ms": view.now_ms}
        return msgspec.structs.replace(move, phase=FROZEN, **at), coming
    if move.phase not in (FROZEN, LEFT):
        raise ConflictError(f"tenant {body.tenant!r} does not leave")
    return move, coming


def _thaw(view: View, body: TenantStep, known: m.TenantMove | None, coming: Coming | None) -> _Now:
    if known is None or known.move != body.move:
        return known, coming
    if known.phase not in (LEAVES, FROZEN) or known.attempt > body.attempt:
        raise ConflictError(f"move {body.move} of tenant {body.tenant!r} cannot be given up here")
    view.parts[Fences].slots_came(view)  # sessions were passed over meanwhile
    view.adopts = True
    return None, coming


def _left(view: View, body: TenantStep, known: m.TenantMove | None, coming: Coming | None) -> _Now:
    move = _check_same(body, known)
    if move.phase not in (FROZEN, LEFT):
        raise ConflictError(f"tenant {body.tenant!r} is not frozen")
    return msgspec.structs.replace(move, phase=LEFT, other=body.other), coming


def _come(view: View, body: TenantStep, known: m.TenantMove | None, coming: Coming | None) -> _Now:
    if known is not None and known.move == body.move:
        if known.phase == CAME:
            return known, None
        if known.phase != COMES or coming is None:
            raise ConflictError(f"tenant {body.tenant!r} moves within one cluster")
        if body.attempt < coming.attempt:
            raise ConflictError(f"attempt {body.attempt} to move tenant {body.tenant!r} is void")
        _raise_revision(view, body)
        # What is told of it stays: leases are given whole terms when that changes.
        return known, msgspec.structs.replace(coming, attempt=body.attempt, batch=0)
    if known is not None and known.phase != CAME:
        how = "comes from" if known.phase == COMES else "moves or has moved to"
        raise ConflictError(f"tenant {body.tenant!r} {how} {known.other}")
    _check_begin(view, body)
    if (table := _first_table(view, body.tenant)) is not None:
        raise ConflictError(f"tenant {body.tenant!r} has records of table {table} here: it comes only where it is not")
    _raise_revision(view, body)
    positions = {group: TenantPosition(ahead_ms=view.now_ms - time_ms) for group, time_ms in body.times.items()}
    comes = m.TenantMove(body.tenant, body.move, COMES, body.attempt, body.other, view.index)
    return comes, Coming(body.attempt, 0, positions)


def _first_table(view: View, tenant: str) -> str | None:
    """A table of which the group has rows of a tenant; None if it has none at all."""
    known = view.parts[Declarations].known
    for one in ranges(view.group, known, tenant):
        row = one.begin[keys.GROUP_PREFIX_BYTES]
        if not one.mixed and view.keys_under(row, one.begin, 1):
            return ROWS[row].name
    return None


def _raise_revision(view: View, body: TenantStep) -> None:
    """Let the group's revision be above all that the tenant's records have."""
    held = view.parts[SlotAssignment].holding
    base = base_above(held.base, view.revision, body.revision)
    if base != held.base:
        view.revision += base - held.base
        write_slots(view, msgspec.structs.replace(held, base=base))


def _came(view: View, body: TenantStep, known: m.TenantMove | None, coming: Coming | None) -> _Now:
    if known is not None and known.move == body.move and known.phase == CAME:
        return known, None
    if known is None or known.move != body.move or known.phase != COMES or coming is None:
        raise ConflictError(f"move {body.move} of tenant {body.tenant!r} is not under way here")
    if coming.attempt != body.attempt:
        raise ConflictError(f"attempt {body.attempt} to move tenant {body.tenant!r} is void")
    if body.frozen.keys() != coming.positions.keys():
        raise ConflictError(f"tenant {body.tenant!r} comes from other groups than that")
    for group, index in body.frozen.items():
        at = coming.positions[group]
        if not index or not at.copied or at.index < index:
            raise ConflictError(f"of {group} not everything has come: up to entry {at.index} of {index}")
    fences = view.parts[Fences]
    fences.raised(view, [FenceItem(NOBODY, known.index + 1, view.now_ms)])
    fences.slots_came(view)
    _raise_revision(view, body)
    view.adopts = True
    return msgspec.structs.replace(known, phase=CAME, attempt=body.attempt), None


def _give_up(view: View, body: TenantStep, known: m.TenantMove | None, coming: Coming | None) -> _Now:
    if known is None or known.move != body.move:
        return known, coming
    if known.phase != COMES or coming is None or coming.attempt != body.attempt:
        raise ConflictError(f"move {body.move} of tenant {body.tenant!r} cannot be given up here")
    if (table := _first_table(view, body.tenant)) is not None:
        raise ConflictError(f"rows of table {table} are not dropped yet")
    return None, None


_STEPS = {
    "leave": _leave,
    "freeze": _freeze,
    "thaw": _thaw,
    "left": _left,
    "come": _come,
    "came": _came,
    "give_up": _give_up,
}


# --- rows -------------------------------------------------------------------------------------------------------------


def _evaluate_put(view: View, command: Command[TenantPut]) -> TenantPutReply:
    body = command.body
    known, coming = view.parts[TenantMoves].newest(body.tenant), _coming(view, body.tenant)
    revisions = [m.Revision(view.name, view.revision)]
    if known is None or known.move != body.move or known.phase != COMES or coming is None:
        raise ConflictError(f"move {body.move} of tenant {body.tenant!r} is not under way here")
    if coming.attempt != body.attempt:
        raise ConflictError(f"attempt {body.attempt} to move tenant {body.tenant!r} is void")
    if body.drop:
        rows = _to_drop(view, body.tenant)
        positions = {group: TenantPosition(ahead_ms=at.ahead_ms) for group, at in coming.positions.items()}
        coming = msgspec.structs.replace(coming, positions=positions)
    elif body.batch <= coming.batch:
        return TenantPutReply(revisions, [])
    elif body.batch != coming.batch + 1:
        raise ConflictError(f"batch {body.batch} follows {coming.batch}")
    else:
        rows = _checked(view, body, known)
        coming = Coming(coming.attempt, body.batch, _moved_on(coming, body))
    _write(view, rows)
    _keep(view, body.tenant, coming)
    view.on_accept.append(lambda: _note_cached(view))
    return TenantPutReply(revisions, [], len(rows) if body.drop else 0)


def _moved_on(coming: Coming, body: TenantPut) -> dict[str, TenantPosition]:
    found = dict(coming.positions)
    for group, at in body.positions.items():
        if group not in found:
            raise ConflictError(f"the tenant does not come from {group}")
        found[group] = msgspec.structs.replace(at, ahead_ms=found[group].ahead_ms)
    return found


def _checked(view: View, body: TenantPut, known: m.TenantMove) -> Writes:
    """The rows as they are kept here. Raises ConflictError, StaleRouteError."""
    tenant, numbers = text(body.tenant), view.parts[Declarations].known.numbers_of_tenants
    mine = unpack(view.parts[SlotAssignment].holding.slots)
    rows: Writes = {}
    for key, value in body.rows.items():
        try:
            owner, slot = tenant_at(key, numbers), keys.slot_of_key(key)
        except (ValueError, IndexError):
            raise ConflictError(f"{key[:64]!r} is no key of a row") from None
        if owner != tenant or slot is None:
            raise ConflictError(f"{key[:64]!r} is no row of tenant {body.tenant!r}")
        if not mine[slot]:
            raise StaleRouteError
        if key[0] == _OWNER and value is not None and value[1] == CONNECTED:
            session = _decode_owner(value)
            value = encode(msgspec.structs.replace(session, broker=NOBODY, broker_epoch=known.index))
        rows[key] = value
    return rows


def _write(view: View, rows: Writes) -> None:
    # Only what every command knows to be there is in the row cache: the rest would be old once others write it.
    view.row_cache = False
    owners = [view.group + key for key in rows if key[0] == _OWNER]
    before = view.get_many(owners, LOOKED_AT_BYTES_MAX)
    view.overwrite(rows)
    if owners:
        view.replaces(_OWNER, before)


def _note_cached(view: View) -> None:
    cached = view.parts[RowCache]
    for row, writes in [(None, view.writes), *view.heard.items()]:
        if row is not None:
            if ROWS[row].row_cache:
                cached.add(writes)
        elif kept := {key: value for key, value in writes.items() if ROWS[key[keys.GROUP_PREFIX_BYTES]].row_cache}:
            cached.add(kept)


def _to_drop(view: View, tenant: str) -> Writes:
    """The next rows to drop."""
    known, wanted = view.parts[Declarations].known, text(tenant)
    numbers, found = known.numbers_of_tenants, Writes()
    for one in ranges(view.group, known, tenant):
        at, is_last = one.begin, False
        while not is_last and len(found) < _DROPPED_ROWS:
            page, is_last = view.scan(at, one.end, _DROPPED_ROWS - len(found), _PAGE_BYTES)
            for key, value in page:
                behind = key[keys.GROUP_PREFIX_BYTES :]
                if value is not None and (not one.mixed or tenant_at(behind, numbers) == wanted):
                    found[behind] = None
            at = page[-1][0] + b"\0" if page else at
        if len(found) >= _DROPPED_ROWS:
            break
    return found


def _read_copy(reader: Reader, command: Command[TenantCopy]) -> TenantCopied:
    body = command.body
    move = reader.parts[TenantMoves].applied_move(body.tenant)
    if move is None or move.move != body.move or move.phase not in (LEAVES, FROZEN):
        raise ConflictError(f"move {body.move} of tenant {body.tenant!r} is not under way here")
    applied = reader.engine.get(keys.applied(reader.group))
    index = 0 if applied is None else int.from_bytes(applied, "big")
    known, held, wanted = reader.parts[Declarations].known, reader.held, text(body.tenant)
    numbers, begin = known.numbers_of_tenants, reader.group + body.cursor + b"\0" if body.cursor else b""
    rows: dict[bytes, bytes] = {}
    last, size, looked_at = body.cursor, 0, 0
    for one in ranges(reader.group, known, body.tenant):
        at = max(one.begin, begin)
        while at < one.end:
            if len(rows) >= _PAGE_ROWS or size >= _PAGE_BYTES or looked_at >= _LOOKED_AT_ROWS:
                return TenantCopied(rows, last, index)
            asked = _PAGE_ROWS - len(rows)
            page = reader.engine.scan(at, one.end, asked, _PAGE_BYTES)
            looked_at += len(page)
            reader.spent += len(page)
            for key, value in page:
                behind = key[keys.GROUP_PREFIX_BYTES :]
                if (not one.mixed or tenant_at(behind, numbers) == wanted) and (held is None or is_held(held, key)):
                    rows[behind] = value
                    size += len(behind) + len(value)
            if not page:
                break
            last = page[-1][0][keys.GROUP_PREFIX_BYTES :]
            at = page[-1][0] + b"\0"
    return TenantCopied(rows, b"", index)


VERBS: tuple[Verb[Any, Any], ...] = (
    Verb(
        methods.GROUP_MOVE_TENANT,
        GROUP,
        rows=lambda _: NO_ROWS,
        evaluate=_evaluate,
        origin=Origin.MIGRATION,
        grows=lambda body: body.step in ("leave", "come"),
    ),
    # What comes is a change as those of clients are: a watch that is open shows it.
    Verb(
        methods.GROUP_PUT_TENANT,
        GROUP,
        rows=lambda _: NO_ROWS,
        evaluate=_evaluate_put,
        background=True,
        grows=lambda body: not body.drop,
    ),
    Verb(methods.GROUP_COPY_TENANT, GROUP, read=_read_copy),
)
