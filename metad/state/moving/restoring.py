"""A backup is put into a group of a new cluster: the steps, each an entry of the group's log.

The group gives up its slots (*begin*), takes rows in numbered batches, and has its slots back (*end*). Between, it
serves nothing, as one whose slots are moving: they are sealed by a move that no map orders, so no other move of the
group begins. A row of its state says how far it has come, so whoever restores goes on after a crash of any party: it
begins a new attempt, which voids the earlier one, drops what that left, and brings everything again.

Nothing of the old cluster's nodes and clients lives on: all lives of brokers are over, request identities are not
restored, and what is behind the end of the restore is all that a watch can begin from. The group's revision goes on
above every revision in the backup, so no record ever has an older one than before. Times in the rows are of this
group's log (:mod:`.slot_migration`): what had ten minutes left in the backup has ten minutes from now on.
"""

from __future__ import annotations

from typing import Final

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA
from metad_wire.errors import ConflictError
from metad_wire.methods import encode
from metad_wire.operator.backup import Restore, Restored
from metad_wire.table import ROWS, moving_rows
from metad_wire.tables.access import AUDIT
from metad_wire.tables.broker import BROKER
from metad_wire.tables.cluster import CLUSTER, GROUP
from metad_wire.tables.feature import FEATURE

from ...storage import keys
from ..cluster.brokers import ended
from ..cluster.fences import Fences
from ..cluster.tenant_ends import TenantEnds
from ..core.part import Origin, Writes
from ..core.slot_assignment import RESTORES, RestoreState, SlotAssignment, decode_restore, restore_key, unpack
from ..core.verb import Command, Verb
from ..core.view import View
from .slot_migration import base_above, write_slots

KEPT_ROWS: Final = frozenset(
    byte
    for byte, table in ROWS.items()
    if table.kind == METADATA.kind and not table.moves and table not in (CLUSTER, AUDIT, FEATURE)
)
"""The rows of ``metadata-0`` that are in no slot and that a restore brings. The map and the features are the new
cluster's own, and the audit trail is about the old one."""
_DROPPED_ROWS: Final = 500  # of one step


def _evaluate(view: View, command: Command[Restore]) -> Restored:
    body = command.body
    known = decode_restore(view.get(restore_key(view.group)))
    dropped = 0
    if body.step == "check":
        return _looked(view, body, known)
    if known is not None and known.backup != body.backup:
        raise ConflictError(
            f"{view.name} {'was' if known.done_at else 'is being'} restored from backup {known.backup}: begin with an "
            "empty cluster"
        )
    if known is None or not known.done_at:
        if body.step == "begin":
            known, dropped = _begin(view, body, known)
        elif body.step == "cancel":
            return _cancel(view, body, known)
        elif known is None or body.attempt != known.attempt:
            raise _void(view, body)
        elif body.step == "rows":
            known = _rows(view, body, known)
        elif body.step == "end":
            known = _end(view, body, known)
        else:
            raise ConflictError(f"no step {body.step!r}")
        if not dropped:
            view.writes_of(GROUP.rows["state"])[restore_key(view.group)] = encode(known)
    return _said(view, known, dropped)


def _looked(view: View, body: Restore, known: RestoreState | None) -> Restored:
    """How it is, or why a restore may not begin."""
    if known is not None:
        return msgspec.structs.replace(_said(view, known), backup=known.backup)
    _check(view)
    return _said(view, RestoreState(body.backup, 0, 0, view.parts[SlotAssignment].holding.slots))


def _said(view: View, known: RestoreState, dropped: int = 0) -> Restored:
    revisions = [m.Revision(view.name, view.revision)]
    return Restored(revisions, [], known.slots, known.began_ms, bool(known.done_at), dropped)


def _check(view: View) -> None:
    """Raise ConflictError unless the group is as it was made."""
    held = view.parts[SlotAssignment].holding
    if held.sealed_move or held.opened_move > held.adopted_move:
        raise ConflictError(f"slots of {view.name} are moving")
    if (table := _first_table(view)) is not None:
        raise ConflictError(f"{view.name} has records of table {table} already: restore into an empty cluster")


def _void(view: View, body: Restore) -> ConflictError:
    return ConflictError(f"attempt {body.attempt} to restore {view.name} is over: a later restore has taken its place")


def _begin(view: View, body: Restore, known: RestoreState | None) -> tuple[RestoreState, int]:
    if known is None:
        _check(view)
        held = view.parts[SlotAssignment].holding
        changed = msgspec.structs.replace(held, slots=b"", sealed=held.slots, sealed_move=RESTORES)
        write_slots(view, changed)
        return RestoreState(body.backup, body.attempt, 0, held.slots, 0, view.now_ms), 0
    if body.attempt < known.attempt:
        raise _void(view, body)
    dropped = _drop(view)
    return msgspec.structs.replace(known, attempt=body.attempt, batch=0), dropped


def _cancel(view: View, body: Restore, known: RestoreState | None) -> Restored:
    """The group is as it was made, once all rows are dropped."""
    if known is None:
        return _said(view, RestoreState(body.backup, body.attempt, 0, view.parts[SlotAssignment].holding.slots))
    if dropped := _drop(view):
        return _said(view, known, dropped)
    held = view.parts[SlotAssignment].holding
    write_slots(view, msgspec.structs.replace(held, slots=known.slots, sealed=b"", sealed_move=0))
    view.writes_of(GROUP.rows["state"])[restore_key(view.group)] = None
    return _said(view, known)


def _drop(view: View) -> int:
    """Drop some of the rows that an attempt has left; how many."""
    rows: Writes = {}
    for row in _rows_of(view.name):
        prefix = keys.table_prefix(view.group, row)
        rows = dict.fromkeys(view.keys_under(row, prefix, _DROPPED_ROWS))
        if rows:
            break
    view.overwrite({key[keys.GROUP_PREFIX_BYTES :]: None for key in rows})
    return len(rows)


def _rows_of(group: str) -> list[int]:
    """The rows that a restore brings to a group."""
    kind, _, _ = group.partition("-")
    return [*moving_rows(kind), *(sorted(KEPT_ROWS) if group == METADATA.name else ())]


def _first_table(view: View) -> str | None:
    """A table of which the group has records; None if it has none at all."""
    for row in _rows_of(view.name):
        if view.keys_under(row, keys.table_prefix(view.group, row), 1):
            return ROWS[row].name
    return None


def _is_next(body: Restore, known: RestoreState) -> bool:
    """Raise where a batch is missing; False where this one is there already."""
    if body.batch > known.batch + 1:
        raise ConflictError(f"batch {body.batch} follows {known.batch}")
    return body.batch == known.batch + 1


def _rows(view: View, body: Restore, known: RestoreState) -> RestoreState:
    if not _is_next(body, known):
        return known
    mine = unpack(known.slots)
    rows: Writes = {}
    for key, value in body.rows.items():
        try:
            slot = keys.slot_of_key(key)
        except (ValueError, IndexError):
            raise ConflictError(f"{key[:64]!r} is no key of a row") from None
        if slot is None:
            if key[0] not in KEPT_ROWS or view.name != METADATA.name:
                raise ConflictError(f"{key[:64]!r} is of no table that a restore brings")
        elif not mine[slot]:
            raise ConflictError(f"a row is in slot {slot}, which {view.name} has not")
        rows[key] = ended(view, value) if key[0] == BROKER.rows["record"] else value
    view.overwrite(rows)
    return msgspec.structs.replace(known, batch=body.batch)


def _end(view: View, body: Restore, known: RestoreState) -> RestoreState:
    if not _is_next(body, known):
        raise ConflictError(f"batch {body.batch} was rows")
    held = view.parts[SlotAssignment].holding
    fences = view.parts[Fences]
    fences.raised(view, body.fences)
    fences.slots_came(view)
    view.parts[TenantEnds].adopted(view, RESTORES, known.slots, body.ends)
    changed = msgspec.structs.replace(
        held,
        slots=known.slots,
        sealed=b"",
        sealed_move=0,
        base=base_above(held.base, view.revision, body.revision),
    )
    view.revision += changed.base - held.base
    view.adopts = True
    write_slots(view, changed)
    return msgspec.structs.replace(known, batch=body.batch, done_at=view.index)


def _brings(body: Restore) -> bool:
    return body.step == "rows"


VERBS = (Verb(methods.GROUP_RESTORE, GROUP, evaluate=_evaluate, origin=Origin.MIGRATION, grows=_brings),)
