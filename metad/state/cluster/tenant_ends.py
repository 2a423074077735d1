"""Orders to end a tenant: a row of the group for each, until the group has carried it out.

One of everything (``tenants.end``) may wait first, and behind the sessions, wills and retained messages it is about all
other records (:mod:`.tenancy`). Groups of other kinds begin with those.

An order is about the sessions that the tenant has when its entry is evaluated, in the slots that the group holds then.
They are over from that entry on: a takeover that follows finds no session, and begins one. What they leave is cleared
up by steps (:mod:`..ends.tenant_steps`), each an entry, in the order of the keys. The row says how far they have come,
so the next leader goes on there, and the order is done when the row is gone.

A session that is taken over in front of that place says in its owner row which order it *outlives*; behind it, no step
comes any more. What else the tenant has is told apart by its revision: wills and messages of before have lower ones.

An order goes with its slots. A group that adopts slots has the source's orders for just these slots, with the source's
progress, and none of its own: what it had ordered for them before they left has been carried on by others since. No
step is taken while slots are sealed, so what an adoption carries is as far as the source has ever come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GROUP_KINDS
from metad_wire.errors import InvalidRequestError, StaleRouteError, TooLargeError
from metad_wire.key import SLOT_MASK, TEXT_END
from metad_wire.messages import CHANGE_BYTES_MAX
from metad_wire.methods import encode
from metad_wire.policy.fair_room import FairRoom
from metad_wire.tables import tenants as t
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.session import SESSION
from metad_wire.tables.tenants import TENANTS

from ...storage import keys
from ...storage.engine import Engine
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.slot_assignment import ALL_SLOTS, SlotAssignment, pack, unpack
from ..core.verb import Command, Reader, Verb, wanted_slots, written
from ..core.view import NO_ROWS, Numbers, Rows, View
from .tenant_moves import TenantMoves

_END: Final = GROUP.rows["end"]
ORDER_BYTES: Final = 1_024
"""What an order takes of the room at least: each takeover of its tenant looks at it."""
ORDERS_BYTES_MAX: Final = 256 * 1024
"""Of those of a group that are not carried out, for an adoption brings their rows in one entry. They count when an
order is made: a group may have more that came with slots, and then makes none until some are carried out."""
CARRIED_BYTES_MAX: Final = CHANGE_BYTES_MAX // 2
"""Of the rows that an adoption brings. The other half is for those of the target's own that it changes."""
SESSIONS, WILLS, RETAINED, REST, WAITING = range(5)
"""The phases of an order: it may begin with waiting, and ends with the rest. A part of the rows' format."""
_decode = msgspec.msgpack.Decoder(m.TenantEnd).decode


class Pending(NamedTuple):
    """An order, the end of its row's key, its slots: a boolean per slot; and the bytes of the row with its key."""

    row: bytes
    end: m.TenantEnd
    slots: Numbers
    size: int


def ends_in(engine: Engine, group: bytes, slots: bytes) -> list[m.TenantEnd]:
    """The orders in the state of a group, for these of its slots."""
    prefix, mine = keys.table_prefix(group, _END), unpack(slots)
    found = [_decode(value) for _, value in engine.scan(prefix, keys.after_prefix(prefix), 1 << 30)]
    kept = [(end, unpack(end.slots) & mine) for end in found]
    return [msgspec.structs.replace(end, slots=pack(left)) for end, left in kept if left.any()]


class TenantEnds(StatePart):
    """The orders of one group: those of the newest entries that were evaluated or applied."""

    rows = (_END,)

    def __init__(self, context: PartContext) -> None:
        self._prefix = keys.table_prefix(context.group, _END)
        self._engine = context.engine

    def load(self) -> None:
        found = self._engine.scan(self._prefix, keys.after_prefix(self._prefix), 1 << 30)
        self._applied: dict[bytes, Pending] = {}
        self._set(self._applied, dict(found))
        self.forget()

    def forget(self) -> None:
        self._newest = dict(self._applied)
        self._changed: dict[bytes, int] = {}  # row -> the entry in flight that changed it last

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        self._set(self._newest, writes)
        self._changed.update(dict.fromkeys(writes, index))

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        self._set(self._applied, writes)
        # Or a later entry that is in flight has changed it.
        last = {key: value for key, value in writes.items() if index >= self._changed.get(key, 0)}
        self._set(self._newest, last)
        for key in last:
            self._changed.pop(key, None)

    def _set(self, pending: dict[bytes, Pending], writes: Mapping[bytes, bytes | None]) -> None:
        for key, value in writes.items():
            row = key[len(self._prefix) :]
            if value is None:
                pending.pop(row, None)
            else:
                end = _decode(value)
                pending[row] = Pending(row, end, unpack(end.slots), len(key) + len(value))

    # --- asked while commands are evaluated --------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether there is an order that is not carried out."""
        return bool(self._newest)

    def newest(self, row: bytes) -> Pending | None:
        """The order of a row, with the progress of the newest entry."""
        return self._newest.get(row)

    def ends_all(self, tenant: str) -> bool:
        """Whether an order is being carried out to delete everything of a tenant."""
        return any(each.end.everything and each.end.tenant == tenant for each in self._newest.values())

    def orders_of(self, tenant: str) -> int:
        """How many orders about a tenant are not carried out."""
        return sum(each.end.tenant == tenant for each in self._newest.values())

    def over(self, rows: Rows) -> dict[int, list[m.TenantEnd]]:
        """The positions of sessions that no step has come to yet, with the orders, the first one first."""
        tenants: dict[bytes, list[Pending]] = {}
        for each in sorted(self._newest.values(), key=_number):
            if each.end.phase == SESSIONS:
                tenants.setdefault(keys.text(each.end.tenant), []).append(each)
        found: dict[int, list[m.TenantEnd]] = {}
        for position, (session, crc) in enumerate(zip(rows.keys, rows.crcs.tolist(), strict=True)):
            tenant, end, _ = session.partition(TEXT_END)
            for each in tenants.get(tenant + end, ()):
                if each.slots[crc & SLOT_MASK] and session > each.end.cursor:
                    found.setdefault(position, []).append(each.end)
        return found

    # --- asked by reads, and by the sweep ----------------------------------------------------------------

    def pending(self) -> list[Pending]:
        """Those of the applied state, the first one first."""
        return sorted(self._applied.values(), key=_number)

    def carried(self) -> list[m.TenantEnd]:
        """The same, for the group that adopts slots of this one."""
        return [each.end for each in self.pending()]

    def check_carried(self) -> None:
        """Raise TooLargeError where an adoption could not bring them all. Some are carried out before it can."""
        if sum(each.size for each in self._applied.values()) > CARRIED_BYTES_MAX:
            raise TooLargeError(
                f"the orders to end tenants take over {CARRIED_BYTES_MAX} bytes: no slots move with them"
            )

    # --- written -----------------------------------------------------------------------------------------

    def order(self, view: View, end: m.TenantEnd) -> None:
        """Let the command that is evaluated make an order. One that asks for the same, and has less of it to do, is
        replaced; one that has begun not by one that waits. Those who order share the room for orders."""
        slots, writes = unpack(end.slots), view.writes_of(_END)
        for each in self._newest.values():
            old = each.end
            if _asked(old) == _asked(end) and (old.phase == WAITING or end.phase != WAITING):
                self._keep(writes, each, each.slots & ~slots)
        key, value = self._key(end.tenant, end.number, 0), encode(end)
        room = FairRoom("bytes of orders to end tenants", ORDERS_BYTES_MAX, ends="when it is carried out")
        orders = [each for each in self._newest.values() if writes.get(self._prefix + each.row, b"") is not None]
        for each in orders:
            room.hold(each.end.ordered_by, max(ORDER_BYTES, each.size))
        if not room.has_room(end.ordered_by, max(ORDER_BYTES, len(key) + len(value))):
            raise TooLargeError(
                f"{len(orders)} orders to end tenants are not carried out yet: wait for them. "
                f"{end.ordered_by or 'This node'} has {room.held_by(end.ordered_by)} of the {room.size_max} bytes of "
                "all orders, and may have no more than is left free"
            )
        writes[key] = value
        view.grown = sum(len(key) + len(value or b"") for key, value in writes.items())

    def take_back(self, view: View, tenant: str, slots: Numbers) -> None:
        """Let the command that is evaluated take back orders whose grace is not over."""
        writes = view.writes_of(_END)
        for each in self._newest.values():
            if each.end.tenant == tenant and each.end.phase == WAITING:
                self._keep(writes, each, each.slots & ~slots)

    def progress(self, view: View, row: bytes, end: m.TenantEnd | None) -> None:
        """Let the command that is evaluated note how far an order has come; None: it is carried out."""
        view.writes_of(_END)[self._prefix + row] = None if end is None else encode(end)

    def adopted(self, view: View, move: int, bits: bytes, ends: Iterable[m.TenantEnd]) -> None:
        """Let the adoption that is evaluated bring the orders of the group that had the slots."""
        moved, writes = unpack(bits), view.writes_of(_END)
        for each in self._newest.values():
            self._keep(writes, each, each.slots & ~moved)
        for number, end in enumerate(ends, 1):
            slots = unpack(end.slots) & moved
            if slots.any():
                row = msgspec.structs.replace(end, slots=pack(slots))
                writes[self._key(end.tenant, move, number)] = encode(row)

    def _keep(self, writes: Writes, each: Pending, slots: Numbers) -> None:
        """Leave an order only these of its slots."""
        if not slots.any():
            writes[self._prefix + each.row] = None
        elif not (slots == each.slots).all():
            writes[self._prefix + each.row] = encode(msgspec.structs.replace(each.end, slots=pack(slots)))

    def _key(self, tenant: str, number: int, carried: int) -> bytes:
        """Of an order that came as the entry of a revision, or (``carried`` from 1 on) with a move."""
        return self._prefix + keys.text(tenant) + keys.u64(number) + keys.u64(carried)


def _number(pending: Pending) -> int:
    return pending.end.number


def _asked(end: m.TenantEnd) -> tuple[Any, ...]:
    """What an order asks for."""
    return end.tenant, end.publish_wills, end.retained, end.everything


def begun(group: bytes, end: m.TenantEnd, revision: int) -> m.TenantEnd:
    """An order of everything that waits no longer, from this revision on. Only groups of sessions have them."""
    of_sessions = group[0] == GROUP_KINDS.index(SESSION.kind) + 1
    return msgspec.structs.replace(end, number=revision, phase=SESSIONS if of_sessions else REST)


def _asked_slots(view: View, body: m.SessionEndTenant | t.TenantsEnd | t.TenantsKeep) -> Numbers:
    """The slots that an order is about."""
    length = len(body.tenant.encode())
    if length > m.KEY_BYTES_MAX:
        raise InvalidRequestError(f"the tenant's name takes {length} bytes, {m.KEY_BYTES_MAX} are allowed")
    if len(body.slots) not in (0, len(ALL_SLOTS)):
        raise InvalidRequestError(f"slots: a bit map of {len(body.slots)} bytes, not {len(ALL_SLOTS)}")
    held = view.parts[SlotAssignment].mask
    slots = unpack(body.slots or ALL_SLOTS)
    if held is None:
        return slots
    if body.slots and (slots & ~held).any():
        raise StaleRouteError
    return slots & held


def _evaluate_order(view: View, command: Command[m.SessionEndTenant]) -> m.WriteReply:
    body, slots = command.body, _asked_slots(view, command.body)
    view.parts[TenantMoves].check_order(body.tenant)
    end = m.TenantEnd(
        body.tenant,
        view.revision,
        view.now_ms,
        body.publish_wills,
        body.retained,
        pack(slots),
        ordered_by=command.holder,
    )
    view.parts[TenantEnds].order(view, end)
    return written(view, [])


def _evaluate_end(view: View, command: Command[t.TenantsEnd]) -> m.WriteReply:
    body, slots = command.body, _asked_slots(view, command.body)
    if body.grace_ms > t.GRACE_MS_MAX:
        raise InvalidRequestError(f"grace_ms: {body.grace_ms}, {t.GRACE_MS_MAX} at most")
    has_left = view.parts[TenantMoves].check_order(body.tenant)
    end = m.TenantEnd(
        body.tenant,
        view.revision,
        view.now_ms,
        body.publish_wills and not has_left,  # its wills are where it is
        True,
        pack(slots),
        WAITING,
        ordered_by=command.holder,
        everything=True,
        begins_ms=view.now_ms + body.grace_ms if body.grace_ms else 0,
    )
    view.parts[TenantEnds].order(view, end if body.grace_ms else begun(view.group, end, view.revision))
    return written(view, [])


def _evaluate_keep(view: View, command: Command[t.TenantsKeep]) -> m.WriteReply:
    view.parts[TenantEnds].take_back(view, command.body.tenant, _asked_slots(view, command.body))
    return written(view, [])


def _read_endings(reader: Reader, command: Command[Any]) -> Any:
    """Of both methods."""
    body = command.body
    wanted = wanted_slots(reader, body.slots)
    found = [
        each.end
        for each in reader.parts[TenantEnds].pending()
        if body.tenant in (None, each.end.tenant) and (wanted is None or bool((each.slots & wanted).any()))
    ]
    reader.spent += len(found)
    return command.method.reply(found)


VERBS = (
    Verb(methods.SESSION_END_TENANT, SESSION, rows=lambda _: NO_ROWS, evaluate=_evaluate_order, grows=False),
    Verb(methods.SESSION_ENDINGS, SESSION, read=_read_endings),
    Verb(methods.TENANTS_END, TENANTS, rows=lambda _: NO_ROWS, evaluate=_evaluate_end, grows=False),
    Verb(methods.TENANTS_KEEP, TENANTS, rows=lambda _: NO_ROWS, evaluate=_evaluate_keep, grows=False),
    Verb(methods.TENANTS_ENDINGS, TENANTS, read=_read_endings),
)
