"""Carries out what orders to end tenants ask for beside sessions, wills and retained messages: all other records.

They are deleted by the verbs of their tables, as a client would: so indexes, leases, resources and whatever else
belongs to them are right. A pass goes through all places of the group where a tenant can have records. Another follows
until one has found nothing: then the order is carried out. A pass keeps nothing but its place in memory, and another
leader begins one of its own. Some records go by themselves, and are waited for: wills that are to be published, and
resources, whose brokers delete what they have first.

An order whose grace is over begins here, too.

The leader of a group counts what tenants have there whose records are limited (:class:`TenantCount`), a page at a time.
It spends a twentieth of its time on that at most: what is few is counted every second, and of millions of records a
count takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from metad_wire import messages as m
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.families.assignment import RESOURCES
from metad_wire.method import Method
from metad_wire.methods import (
    ASSIGNMENT_DELETE,
    CONSUMER_LEAVE,
    KV_DELETE,
    LEASE_REVOKE,
    OFFSET_DELETE_GROUPS,
    SEQUENCE_DELETE,
    TABLE_DELETE,
    TENANTS_REST,
)
from metad_wire.table import ROWS, Table
from metad_wire.tables.consumer import CONSUMER
from metad_wire.tables.kv import KV
from metad_wire.tables.lease import LEASE
from metad_wire.tables.offset import OFFSET
from metad_wire.tables.sequence import SEQUENCE
from metad_wire.tables.session import SESSION
from metad_wire.tables.table import PlainTable
from metad_wire.tables.tenants import TenantsRest
from metad_wire.tables.will import WILL

from ...state.cluster.declarations import Declarations, KnownTables
from ...state.cluster.quotas import NOTHING, Held, KnownQuotas, Quotas
from ...state.cluster.tenancy import Place, count_rows, places, rows_of
from ...state.cluster.tenant_ends import REST, WAITING, Pending, TenantEnds
from ...state.core.slot_assignment import is_held
from ...state.machine import Machine
from ...storage.keys import GROUP_PREFIX_BYTES, table_prefix
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_PASS_ROWS: Final = 500
"""Looked at in one go, about half a millisecond."""
_AGAIN_S: Final = 1.0
"""Between two passes, and two counts."""
_COUNT_REST: Final = 20
"""Behind each page that is counted, in durations of that."""


class _Way(NamedTuple):
    """How records are deleted: by which method, whose items have so many fields of the key."""

    method: Method[Any, Any]
    fields: int


_WAYS: Final[dict[int, _Way]] = {
    CONSUMER.rows["member"]: _Way(CONSUMER_LEAVE, 3),
    CONSUMER.rows["group"]: _Way(OFFSET_DELETE_GROUPS, 2),
    OFFSET.rows["offset"]: _Way(OFFSET_DELETE_GROUPS, 2),
    OFFSET.rows["generation"]: _Way(OFFSET_DELETE_GROUPS, 2),
    LEASE.rows["lease"]: _Way(LEASE_REVOKE, 2),
    KV.rows["record"]: _Way(KV_DELETE, 2),
    SEQUENCE.rows["sequence"]: _Way(SEQUENCE_DELETE, 2),
}
"""By row. Those that are not here, and of no declared table, belong to others and go with them. A consumer group that
has members goes in the pass behind the one that has sent them away."""


class _Part(NamedTuple):
    """Of a pass: a place, its table, and how its records are deleted; None: they go by themselves."""

    place: Place
    table: Table[Any]
    way: _Way | None


def parts_of(group: bytes, known: KnownTables) -> list[_Part]:
    """All that a pass goes through."""
    found: list[_Part] = []
    for place in places(group, known):
        if place.number:
            table: Table[Any] = known.records(place.number).table
            assert isinstance(table, PlainTable)
            way = None if table.ruled_by else _Way(TABLE_DELETE, len(table.key))
            if table.number == RESOURCES.number:
                way = _Way(ASSIGNMENT_DELETE, len(table.key))
            found.append(_Part(place, table, way))
        elif place.row in _WAYS or place.row == WILL.rows["due"]:
            found.append(_Part(place, ROWS[place.row], _WAYS.get(place.row)))
    return found


class _Pass:
    """Of an order: what it goes through, where it is, and whether it has found anything."""

    def __init__(self, machine: Machine, row: bytes, parts: list[_Part]) -> None:
        self.machine = machine
        self.row = row
        """Of the order."""
        self.parts = parts
        """The one where it is, and those behind."""
        self.at = b""
        """The next key is this or behind it."""
        self.found = False

    def next_part(self) -> None:
        self.parts, self.at = self.parts[1:], b""


class TenantRest(Chore):
    """Has the rest of tenants deleted in one group."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._pass: _Pass | None = None
        self._again_s: dict[bytes, float] = {}
        """Orders whose last pass has found something, and when the next one may begin."""

    def begin(self, room: int, done: Done) -> bool:
        machine = self._driver.machine
        if self._asking or not self._leads() or machine.holding.sealed_move:
            return False
        orders = machine.parts[TenantEnds].pending()
        for pending in orders:
            if pending.end.phase == WAITING and pending.end.begins_ms <= self._past_ms():
                self._ask_rest(pending, done)
                return True
        rest = {pending.row: pending for pending in orders if pending.end.phase == REST}
        now_s, one = self._environment.now(), self._pass
        if one is None or one.machine is not machine or one.row not in rest:
            self._again_s = {row: at_s for row, at_s in self._again_s.items() if row in rest}
            begin = next((row for row in rest if self._again_s.get(row, 0.0) <= now_s), None)
            if begin is None:
                return False
            known = machine.parts[Declarations].known
            one = self._pass = _Pass(machine, begin, parts_of(self._driver.group.prefix, known))
        self._go_on(one, rest[one.row], min(room, self._batch.size), done)
        return True

    def _go_on(self, one: _Pass, pending: Pending, room: int, done: Done) -> None:
        keys: list[bytes] = []
        while one.parts and not (keys := self._find(pending, one, max(1, room))) and not one.at:
            one.next_part()  # it has nothing there
        one.found = one.found or bool(keys)
        if not one.parts:
            self._pass = None
            if one.found:
                self._again_s[one.row] = self._environment.now() + _AGAIN_S
                self._environment.call_soon(partial(done, 0))
            else:
                self._ask_rest(pending, done)
            return
        part = one.parts[0]
        if part.way is None or not keys:
            if part.way is None:
                one.next_part()
            self._environment.call_soon(partial(done, 0))
            return
        items = _items(part, part.way, keys)
        first = table_prefix(self._driver.group.prefix, part.place.row) + keys[0]
        answered = partial(self._answered, one, part.way.method, first, done, len(items))
        if part.way.method is TABLE_DELETE:
            self._ask(TABLE_DELETE, TABLE_DELETE.body(part.place.number, items), answered)
        else:
            self._ask(part.way.method, part.way.method.body(items), answered)

    def _find(self, pending: Pending, one: _Pass, count: int) -> list[bytes]:
        """The keys of the next records, behind the byte of the row. The pass is behind them then; at no place where
        there is no row left."""
        prefix = one.parts[0].place.prefix(self._driver.group.prefix)
        rows = rows_of(one.machine.reader.engine, prefix, pending.end.tenant, one.at, _PASS_ROWS)
        one.at = b"" if not rows else one.at
        found: list[bytes] = []
        for key, _ in rows:
            if len(found) == count:
                break
            one.at = key + b"\0"
            if is_held(pending.slots, key) and self._holds(key):
                found.append(key[GROUP_PREFIX_BYTES + 1 :])
        return found

    def _ask_rest(self, pending: Pending, done: Done) -> None:
        def answered(outcome: bytes | MetadError) -> None:
            done(0 if isinstance(outcome, bytes) and TENANTS_REST.decode_reply(outcome).done else None)

        self._ask(TENANTS_REST, TenantsRest(pending.row, pending.end.phase), answered)

    def _answered(
        self,
        one: _Pass,
        method: Method[Any, Any],
        first: bytes,
        done: Done,
        asked: int,
        outcome: bytes | MetadError,
    ) -> None:
        if isinstance(outcome, bytes):
            if method is OFFSET_DELETE_GROUPS and any(OFFSET_DELETE_GROUPS.decode_reply(outcome).left):
                one.at = first
            done(asked)
            return
        if isinstance(outcome, TooLargeError) and asked > 1:
            one.at = first
        done(asked if isinstance(outcome, TooLargeError) else None)


def _items(part: _Part, way: _Way, keys: list[bytes]) -> list[Any]:
    make: Callable[..., Any] = way.method.item
    if way.method is TABLE_DELETE:
        return [m.TableDeleteItem(part.table.fields_of(key, way.fields)) for key in keys]
    fields = dict.fromkeys(tuple(part.table.fields_of(key, way.fields)) for key in keys)
    return [make(*one) for one in fields]


class TenantCount(Chore):
    """Counts what one group has of tenants whose records are limited."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._tenants: list[str] = []
        """That are not counted yet, this time."""
        self._held = NOTHING
        """What was counted of the first of them, up to here."""
        self._begin = b""
        self._again_s = 0.0
        self._quotas: KnownQuotas | None = None
        """That have heard of what the group has."""

    def begin(self, room: int, done: Done) -> bool:
        group = self._driver.group
        if not self._leads():
            self._stop()
            return False
        machine = self._driver.machine
        quotas = machine.parts[Quotas].shared
        if not quotas.limited:
            self._stop()
            return False
        begun_s = self._environment.now()
        if begun_s < self._again_s:
            return False
        self._tenants = self._tenants or [*quotas.limited]
        tenant, known = self._tenants[0], machine.parts[Declarations].known
        held = machine.slots.mask
        page = count_rows(machine.reader.engine, group.prefix, known, tenant, held, self._begin)
        records, size = (sum(numbers) for numbers in zip(*page.found.values(), strict=True)) if page.found else (0, 0)
        sessions, _ = page.found.get(SESSION.name, (0, 0))
        self._held, self._begin = self._held.plus(Held(sessions, records, size)), page.begin
        now_s = self._environment.now()
        self._again_s = now_s + _COUNT_REST * (now_s - begun_s)
        if not page.begin:
            self._quotas = quotas
            quotas.count(group.name, tenant, self._held)
            self._tenants, self._held = self._tenants[1:], NOTHING
            if not self._tenants:
                self._again_s = max(self._again_s, now_s + _AGAIN_S)
        self._environment.call_soon(partial(done, 0))
        return True

    def _stop(self) -> None:
        self._tenants, self._begin, self._held = [], b"", NOTHING
        if self._quotas is not None:
            self._quotas.forget(self._driver.group.name)
            self._quotas = None
