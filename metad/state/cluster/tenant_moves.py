"""Tenants that go to another cluster, or come from one: a row of the group for each, until that is over.

Every group of the two clusters has such a row, whether it has anything of the tenant or not; so it need not go with
slots, but to a group that was added later. From the entry that *freezes* the tenant on, nothing of it changes where it
was, whoever asks; before it *came*, nothing of it changes where it goes, but by what is brought. So at any time one
cluster accepts its writes, or none. :mod:`..moving.tenant_transfer` has the steps.

Requests are looked at only while there is such a tenant. One about several tenants is done for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from metad_wire.errors import ConflictError, MetadError, TenantMovedError, TenantMovingError
from metad_wire.key import TEXT_END, text
from metad_wire.messages import TenantMove
from metad_wire.methods import encode
from metad_wire.operator.moving import COMES, FROZEN, LEAVES, LEFT
from metad_wire.refused import Refused, without
from metad_wire.table import TABLES
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.tenants import is_scoped
from metad_wire.watch import WatchFilter

from ...storage import keys
from ..core.entry import Entry
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.verb import Command, Verb
from ..core.view import View
from .declarations import Declarations, KnownTables
from .tenancy import tenant_at

_MOVE: Final = GROUP.rows["move"]
_CLOSED: Final = frozenset((FROZEN, LEFT, COMES))
_AGAIN_MS: Final = 500
"""When to come again with what was refused while the tenant is on its way."""
_decode = msgspec.msgpack.Decoder(TenantMove).decode
Moves = dict[bytes, TenantMove]
"""By the names of tenants as encoded, with their ends."""
EndsAll = Callable[[str], bool]
"""Says whether an order is being carried out to delete everything of a tenant."""


def tenant_of(key: bytes) -> bytes:
    """The tenant with which a key begins, behind the byte of its row; encoded with its end."""
    return key[: key.index(TEXT_END) + len(TEXT_END)]


def _under_way(moves: Moves) -> list[TenantMove]:
    return [move for move in moves.values() if move.phase in (LEAVES, FROZEN, COMES)]


def _closed(moves: Moves) -> Moves:
    return {tenant: move for tenant, move in moves.items() if move.phase in _CLOSED}


class TenantMoves(StatePart):
    """Those of one group, of the newest entries that were evaluated or applied."""

    rows = (_MOVE,)

    def __init__(self, context: PartContext) -> None:
        self._prefix = keys.table_prefix(context.group, _MOVE)
        self._engine = context.engine
        self.changes = 0
        """How many entries that change one were evaluated or applied here, since the start of the node."""

    def load(self) -> None:
        found = self._engine.scan(self._prefix, keys.after_prefix(self._prefix), 1 << 30)
        self._applied: Moves = {}
        self._set(self._applied, dict(found))
        self.forget()

    def forget(self) -> None:
        self._newest = dict(self._applied)
        self._changed: dict[bytes, int] = {}  # row -> the entry in flight that changed it last
        self._learn()

    def _learn(self) -> None:
        self.closed = _closed(self._newest)
        """Those about which commands are refused. Empty nearly always."""
        self.closed_to_reads = _closed(self._applied)

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        self._set(self._newest, writes)
        self._changed.update(dict.fromkeys(writes, index))
        self.changes += 1
        self._learn()

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        self._set(self._applied, writes)
        # Or a later entry that is in flight has changed it.
        last = {key: value for key, value in writes.items() if index >= self._changed.get(key, 0)}
        self._set(self._newest, last)
        for key in last:
            self._changed.pop(key, None)
        self.changes += 1
        self._learn()

    def _set(self, moves: Moves, writes: Mapping[bytes, bytes | None]) -> None:
        for key, value in writes.items():
            tenant = key[len(self._prefix) :]
            if value is None:
                moves.pop(tenant, None)
            else:
                moves[tenant] = _decode(value)

    # --- asked by steps ----------------------------------------------------------------------------------

    def newest(self, tenant: str) -> TenantMove | None:
        """The move of a tenant; None: there is none."""
        return self._newest.get(text(tenant))

    def applied_move(self, tenant: str) -> TenantMove | None:
        """The same of the applied state."""
        return self._applied.get(text(tenant))

    def check_still(self) -> None:
        """Raise ConflictError where slots may not move to or from the group."""
        for move in _under_way(self._newest):
            raise ConflictError(f"tenant {move.tenant!r} moves to or from another cluster: no slots move meanwhile")

    def under_way(self) -> list[TenantMove]:
        """Those of the applied state that are neither over nor given up."""
        return _under_way(self._applied)

    def all(self) -> list[TenantMove]:
        """Those of the applied state."""
        return [*self._applied.values()]

    def carried(self) -> list[TenantMove]:
        """What a group has to know that adopts slots of this one."""
        return [move for move in self._applied.values() if move.phase == LEFT]

    # --- written -----------------------------------------------------------------------------------------

    def write(self, view: View, tenant: str, move: TenantMove | None) -> None:
        """Let the command that is evaluated say how the move of a tenant is; None: it is over."""
        view.writes_of(_MOVE)[self._prefix + text(tenant)] = None if move is None else encode(move)

    def adopted(self, view: View, moved: Iterable[TenantMove]) -> None:
        """Let the adoption that is evaluated bring what another group knows."""
        for move in moved:
            if self.newest(move.tenant) is None:
                self.write(view, move.tenant, move)

    def ended(self, view: View, tenant: str) -> None:
        """Let the command that is evaluated forget a tenant that has left, and of which nothing is left here."""
        known = self.newest(tenant)
        if known is not None and known.phase == LEFT:
            self.write(view, tenant, None)

    # --- asked about requests ----------------------------------------------------------------------------

    def holds_back(self, key: bytes, known: KnownTables) -> bool:
        """Whether a row of the group belongs to a tenant that is on its way, or has left."""
        tenant = tenant_at(key[keys.GROUP_PREFIX_BYTES :], known.numbers_of_tenants)
        return tenant in self.closed or tenant in self.closed_to_reads

    def check_order(self, tenant: str) -> bool:
        """Raise ConflictError where a tenant may not be ended; whether it has left."""
        known = self.newest(tenant)
        if known is not None and known.phase in (LEAVES, FROZEN, COMES):
            raise ConflictError(f"tenant {tenant!r} moves to or from {known.other}: end it afterwards")
        return known is not None and known.phase == LEFT


def refusal(move: TenantMove) -> MetadError:
    """Why a request about a tenant is refused."""
    if move.phase == LEFT:
        return TenantMovedError(f"tenant {move.tenant!r} has moved to {move.other}: ask there")
    where = f"comes from {move.other}" if move.phase == COMES else f"moves to {move.other}"
    return TenantMovingError(
        f"tenant {move.tenant!r} {where}, and is not served for a moment; nothing was done",
        retry_after_ms=_AGAIN_MS,
        retry_jitter_ms=_AGAIN_MS // 2,
    )


def _ends_it(command: Command[Any], move: TenantMove, ends_all: EndsAll) -> bool:
    """Whether a command of this node may be a part of ending a tenant that has left."""
    return move.phase == LEFT and not command.holder and ends_all(move.tenant)


def admitted(
    verb: Verb[Any, Any], command: Command[Any], closed: Moves, ends_all: EndsAll
) -> tuple[Command[Any], Refused | None]:
    """A command without its items about tenants that are not served, and these. Raises the error if it is about such a
    tenant as a whole."""
    table, rows, body = verb.table, command.rows, command.body
    if not is_scoped(table):  # also steps of moves
        return command, None
    if "items" not in body.__struct_fields__:
        move = closed.get(text(verb.tenant(body).decode()))
        if move is not None and not _ends_it(command, move, ends_all):
            raise refusal(move)
        return command, None
    reasons: dict[int, MetadError] = {}
    for at, key in enumerate(rows.keys):
        begin = table.ordered_by
        end = key.find(TEXT_END, begin) + len(TEXT_END)
        move = closed.get(key[begin:end])
        if move is not None and not _ends_it(command, move, ends_all):
            reasons[at] = refusal(move)
    if not reasons:
        return command, None
    kept = [at for at in range(len(rows)) if at not in reasons]
    if command.method.mutates and len(body.items) == len(rows):
        body = msgspec.structs.replace(body, items=without(body.items, reasons))
    left = Command(command.method, body, rows.at(kept), command.reply_bytes_max, command.size, command.items)
    for name in ("arrived_s", "background", "digest", "holder", "life", "refused", "registered", "verb", "vouch"):
        setattr(left, name, getattr(command, name))
    return left, Refused(len(rows), reasons)


def check_writes(view: View, verb: Verb[Any, Any], command: Command[Any], closed: Moves, ends_all: EndsAll) -> None:
    """Raise the error if a command writes anything of a tenant that is not served, whatever it asked for."""
    if verb.table is GROUP:  # a step of a move, of slots or of the tenant
        return
    numbers = view.parts[Declarations].known.numbers_of_tenants
    for writes in (view.writes, *view.heard.values()):
        for key in writes:
            move = closed.get(tenant_at(key[keys.GROUP_PREFIX_BYTES :], numbers))
            if move is not None and not _ends_it(command, move, ends_all):
                raise refusal(move)


def moved_away(moves: Iterable[TenantMove], tables: KnownTables, filters: Iterable[WatchFilter]) -> MetadError | None:
    """Why a watch with these filters shows nothing any more: one of them is about a tenant that has left. None: none
    is."""
    left = {move.tenant: move for move in moves if move.phase == LEFT}
    for one in filters if left else ():
        move = left.get(str(one.fields[0])) if one.fields else None
        table = TABLES.get(one.table) or tables.watched(one.table, one.number)
        if move is not None and table is not None and is_scoped(table):
            return refusal(move)
    return None


def said_by(entry: Entry) -> list[TenantMove]:
    """The moves of which an entry says how they are."""
    return [_decode(value) for value in entry.heard.get(_MOVE, {}).values() if value is not None]
