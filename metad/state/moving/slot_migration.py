"""The steps in which slots move from one group to another. :mod:`..core.slot_assignment` has the row that they change.

The cluster map only says where to ask. A slot moves in steps, each an entry in the log of one of the two groups:

1. the target *opens* an attempt to move, which makes every earlier one void, and *imports* rows in numbered batches;
   nobody sees them, for the slots are not its own;
2. the source *seals* the slots: from that entry on it refuses them, and what it wrote before is all there is;
3. the target imports the rest and *adopts* the slots;
4. the source *closes* the move, and both drop rows of slots that are not theirs.

A target opens no attempt while slots of its own are sealed: until they are closed their rows are kept, and where such
a slot comes back, a row that was deleted meanwhile would be there again. An attempt is for certain slots, which the
target does not hold; rows of others are refused, whoever sends them.

Steps 2 and 3, and a seal that is taken back, leave a marker in their entry, so that who follows the logs of both groups
knows which group's changes of a slot count. An adoption's marker says where in the source's log the slots were sealed.
The source sends rows with times of the target's log (:func:`translated`). One of an older version sends its own, and
says when it sealed: then the adoption raises the target's log time to that.
A group also keeps which move brought each slot.

A group takes part in one move at a time, in the order of their numbers. A slot is held by one group or, between 2 and
3, by none. If the source's leader is lost, its successor opens the next attempt: the target says whether it had adopted
already; if not, the source takes the slots back and begins again.

**Times in rows that move.** Each log has a time of its own, and two of them may be hours apart. So what crosses from
one to the other is how long ago something was, or how long it lasts. The mover learns at the beginning of an attempt
how far the target's log is ahead of the source's, and puts every time that it sends ahead by just that: what has its
deadline in ten minutes there has it in ten minutes here. One attempt has one difference, also for a row that is sent
again, or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from metad_wire import cluster as c
from metad_wire import messages as m
from metad_wire import methods
from metad_wire.errors import ConflictError
from metad_wire.methods import encode
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.consumer import CONSUMER, ConsumerGroupInfo
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.retained import RETAINED, Retained
from metad_wire.tables.session import SESSION
from metad_wire.tables.will import WILL, WillClaimant, WillDue
from metad_wire.watch import MarkerStep, SlotMarker

from ...storage import keys
from ..cluster.fences import Fences
from ..cluster.tenant_ends import TenantEnds
from ..cluster.tenant_moves import TenantMoves
from ..core import tails
from ..core.due import DUE
from ..core.part import Origin, Writes
from ..core.slot_assignment import AssignedSlots, SlotAssignment, SlotMoves, decode_moves, moves_key, pack, unpack
from ..core.verb import Command, Verb
from ..core.view import Numbers, View


def _places(record: type[Any], *fields: str) -> tuple[int, ...]:
    names = [field.name for field in msgspec.structs.fields(record)]
    return tuple(map(names.index, fields))


TIMES: Final[dict[int, tuple[int, ...]]] = {
    SESSION.rows["owner"]: _places(m.SessionOwner, "disconnected_ms", "expires_ms", "will_ms"),
    WILL.rows["due"]: _places(WillDue, "due_ms"),
    WILL.rows["claim"]: _places(WillClaimant, "until_ms"),
    RETAINED.rows["message"]: _places(Retained, "expires_ms"),
    OFFSET.rows["offset"]: _places(m.Offset, "committed_ms"),
    CONSUMER.rows["group"]: _places(ConsumerGroupInfo, "since_ms"),
}
"""Row -> where its value has times of the log. 0 is none. The rows of what is due have one in their keys."""
_decode = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_time = msgspec.msgpack.Decoder(int).decode


def put_ahead(time_ms: int, ahead_ms: int) -> int:
    """The same moment by a log that is ahead by so much; 0 stays 0."""
    return max(1, time_ms + ahead_ms) if time_ms else 0


def ends_ahead(ends: Iterable[m.TenantEnd], ahead_ms: int) -> list[m.TenantEnd]:
    """Orders to end tenants, as a log has them that is ahead by so much."""
    ahead = partial(put_ahead, ahead_ms=ahead_ms)
    return [msgspec.structs.replace(end, at_ms=ahead(end.at_ms), begins_ms=ahead(end.begins_ms)) for end in ends]


def translated(rows: Mapping[bytes, bytes | None], ahead_ms: int) -> dict[bytes, bytes | None]:
    """Rows, by their keys behind the group's prefix, as a log has them that is ahead by so much. None: a deletion."""
    if not ahead_ms:
        return dict(rows)
    found: dict[bytes, bytes | None] = {}
    for key, value in rows.items():
        if key[0] == DUE:
            at_ms = put_ahead(int.from_bytes(key[1:9], "big"), ahead_ms)
            found[key[:1] + keys.u64(at_ms) + key[9:]] = value
        elif value is not None and key[0] in TIMES:
            found[key] = _translated(value, TIMES[key[0]], ahead_ms)
        else:
            found[key] = value
    return found


def _translated(value: bytes, places: tuple[int, ...], ahead_ms: int) -> bytes:
    fields = _decode(value)
    for place in places:
        if place < len(fields) and (time_ms := _decode_time(fields[place])):  # a row may have fewer fields
            fields[place] = msgspec.Raw(encode(put_ahead(time_ms, ahead_ms)))
    return encode(fields)


_FIELDS, _MOVES_FIELDS = tails.fields(AssignedSlots), tails.fields(SlotMoves)
_encode = msgspec.msgpack.Encoder().encode


def _evaluate(view: View, command: Command[c.GroupCommand]) -> c.GroupReply:
    body = command.body
    step = _STEPS.get(body.step)
    if step is None:
        raise ConflictError(f"no step {body.step!r}")
    assignment = view.parts[SlotAssignment]
    held = assignment.decode(view.get(assignment.key))
    adopted = body.step == "open" and held.adopted_move == body.move
    changed = held if adopted else step(view, body, held)
    if changed is not held:
        view.revision += changed.base - held.base
        write_slots(view, changed)
    return c.GroupReply([m.Revision(view.name, view.revision)], [], adopted, view.index, view.now_ms)


def write_slots(view: View, changed: AssignedSlots) -> None:
    """Let the command that is evaluated change the slots that the group holds."""
    key = view.parts[SlotAssignment].key
    _write(view, key, view.get(key), changed, _FIELDS)


def _write(view: View, key: bytes, stored: bytes | None, changed: AssignedSlots | SlotMoves, fields: int) -> None:
    """Replace a row of the group's state."""
    written = _encode(changed)
    written = written if stored is None else tails.keep(stored, written, fields)
    view.writes_of(GROUP.rows["state"])[key] = written


def _note_moves(view: View, mine: Numbers, move: int = 0, moved: bytes = b"") -> None:
    """Keep which moves have brought the slots of the mask ``mine``; ``move`` brings ``moved``."""
    key = moves_key(view.group)
    stored = view.get(key)
    taken = unpack(moved)
    kept = {number: unpack(slots) & mine & ~taken for number, slots in decode_moves(stored).brought.items()}
    if move:
        kept[move] = taken
    brought = {number: pack(slots) for number, slots in kept.items() if slots.any()}
    _write(view, key, stored, SlotMoves(brought), _MOVES_FIELDS)


def _open(view: View, body: c.GroupCommand, held: AssignedSlots) -> AssignedSlots:
    view.parts[TenantMoves].check_still()
    if held.sealed_move:
        raise ConflictError(f"slots are sealed by move {held.sealed_move}, which is not closed yet")
    if (unpack(held.slots) & unpack(body.slots)).any():
        raise ConflictError("some of the slots are held already")
    if held.adopted_move > body.move or (held.opened_move, held.opened_attempt) >= (body.move, body.attempt):
        raise ConflictError(f"attempt {held.opened_attempt} of move {held.opened_move} was opened")
    return msgspec.structs.replace(
        held, opened_move=body.move, opened_attempt=body.attempt, opened_batch=0, opened_slots=body.slots
    )


def _check_open(body: c.GroupCommand, held: AssignedSlots) -> bool:
    """Raise where the attempt is void; False where this batch is there already."""
    if held.adopted_move == body.move:
        raise ConflictError(f"move {body.move} is done")
    if (held.opened_move, held.opened_attempt) != (body.move, body.attempt):
        raise ConflictError("another attempt was opened")
    if body.slots != held.opened_slots:
        raise ConflictError("the slots are not of this attempt")
    if body.batch <= held.opened_batch:
        return False
    if body.batch != held.opened_batch + 1:
        raise ConflictError(f"batch {body.batch} follows {held.opened_batch}")
    return True


def _import(view: View, body: c.GroupCommand, held: AssignedSlots) -> AssignedSlots:
    if not _check_open(body, held):
        return held
    meant = unpack(body.slots)
    for key in body.rows:
        slot = keys.slot_of_key(key)
        if slot is None or not meant[slot]:
            raise ConflictError("a row is not of this attempt")
    view.overwrite(body.rows)
    return msgspec.structs.replace(held, opened_batch=body.batch)


def _adopt(view: View, body: c.GroupCommand, held: AssignedSlots) -> AssignedSlots:
    _check_open(body, held)
    mine = unpack(held.slots) | unpack(body.slots)
    slots = pack(mine)
    _note_moves(view, mine | unpack(held.sealed), body.move, body.slots)
    view.marker = SlotMarker(MarkerStep.ADOPTED, body.move, body.slots, body.other, body.sealed_index)
    fences = view.parts[Fences]
    fences.raised(view, body.fences)
    fences.slots_came(view)
    view.parts[TenantEnds].adopted(view, body.move, body.slots, body.ends)
    view.parts[TenantMoves].adopted(view, body.moved)
    base = base_above(held.base, view.revision, body.revision)
    view.adopts = True
    view.now_ms = max(view.now_ms, body.sealed_ms)
    return msgspec.structs.replace(held, slots=slots, adopted_move=body.move, base=base)


def base_above(base: int, revision: int, before: int) -> int:
    """The base by which this revision, and so every later one, is above that of the group that had the slots."""
    return base + max(0, before + 1 - revision)


def _seal(view: View, body: c.GroupCommand, held: AssignedSlots) -> AssignedSlots:
    view.parts[TenantMoves].check_still()
    if held.sealed_move:
        raise ConflictError(f"slots are sealed by move {held.sealed_move}")
    mine = unpack(held.slots)
    moving = unpack(body.slots)
    if (moving & ~mine).any():
        raise ConflictError("not all of the slots are here")
    view.marker = SlotMarker(MarkerStep.SEALED, body.move, body.slots, body.other)
    return msgspec.structs.replace(held, slots=pack(mine & ~moving), sealed=body.slots, sealed_move=body.move)


def _unseal(view: View, body: c.GroupCommand, held: AssignedSlots) -> AssignedSlots:
    if held.sealed_move != body.move:
        return held
    slots = pack(unpack(held.slots) | unpack(held.sealed))
    view.marker = SlotMarker(MarkerStep.UNSEALED, body.move, held.sealed)
    return msgspec.structs.replace(held, slots=slots, sealed=b"", sealed_move=0)


def _close(view: View, body: c.GroupCommand, held: AssignedSlots) -> AssignedSlots:
    if held.sealed_move != body.move:
        return held
    _note_moves(view, unpack(held.slots))
    return msgspec.structs.replace(held, sealed=b"", sealed_move=0)


def _drop(view: View, body: c.GroupCommand, held: AssignedSlots) -> AssignedSlots:
    mine = unpack(held.slots) | unpack(held.sealed)
    if held.opened_move > held.adopted_move and (
        # An attempt clears up before its first batch. One that is void must not clear up after its successor's.
        (body.move, body.attempt) != (held.opened_move, held.opened_attempt) or held.opened_batch
    ):
        raise ConflictError("rows are being imported")
    dropped: Writes = {}
    for key in body.rows:
        slot = keys.slot_of_key(key)
        if slot is not None and not mine[slot]:
            dropped[key] = None
    view.overwrite(dropped)
    return held


_STEPS = {
    "open": _open,
    "import": _import,
    "adopt": _adopt,
    "seal": _seal,
    "unseal": _unseal,
    "close": _close,
    "drop": _drop,
}


def _brings(body: c.GroupCommand) -> bool:
    return body.step in ("open", "import")


VERBS = (Verb(methods.GROUP_COMMAND, GROUP, evaluate=_evaluate, origin=Origin.MIGRATION, grows=_brings),)
