"""What declared tables need in the groups that this node leads: the records of those that were dropped are deleted, so
are those whose time has come, and indexes that were added are built.

**Dropped tables.** Once a minute it goes through the tables of which a group has records, with one look at the store
for each. Which tables are dropped its copy of ``metadata-0`` says: those whose numbers were given, and which are not
there. A number is never given again, so what is deleted is nobody's, also where another node has not heard of the drop
yet and writes on: the next pass finds that.

**Added indexes** (:mod:`metad.state.core.indexes`). Once all slots of the group keep an index, a pass looks at all
records of the table, and has those written that lack rows. A pass keeps nothing but its place in memory. Another leader
begins anew, and only reads what is written already; so does this one after an error, and once other slots are held.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from metad_wire.cluster import GroupId
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.messages import KEY_BYTES_MAX
from metad_wire.methods import TABLE_EXPIRE, TABLE_INDEX, TABLE_SWEEP
from metad_wire.tables.declaration import FIRST_NUMBER
from metad_wire.tables.table import DECLARED, DUES, INDEXES, TableExpire, TableIndexStep, TableSweep

from ... import log_events
from ...logs import event
from ...state.cluster.declarations import Declarations
from ...state.cluster.tenant_moves import TenantMoves
from ...state.core.due import RECORD_DUE, RecordDues
from ...state.core.indexes import STATE, IndexStates
from ...state.core.plain import DeclaredRecords
from ...state.core.slot_assignment import HeldSlots, pack, unpack
from ...state.core.view import Flags
from ...state.machine import Machine
from ...storage import keys
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_PASS_S: Final = 60.0
_BYTES: Final = 256 * 1024
_TABLES: Final = 64
"""Looked at in one go."""
_NUMBER_BYTES: Final = 4
_ROWS: Final = (DECLARED.rows["record"], INDEXES.rows["index"], STATE)
_LOOK_S: Final = 1.0
"""How often a group looks whether an index was added."""
_PASS_ROWS: Final = 500
_PASS_BYTES: Final = 1024 * 1024
"""So many records are looked at in one go."""
_FOREIGN_ROWS: Final = 1_000
"""Of what is due, looked at in one go: many may be of slots that the group does not hold."""


class DroppedRecords(Chore):
    """Has those of one group deleted."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._begin_s = 0.0
        """No pass begins before."""
        self._number = 0
        """The next table is this or behind it; 0 between two passes."""
        self._table = 0
        """In which of :data:`_ROWS` this pass is."""

    def begin(self, room: int, done: Done) -> bool:
        if self._asking or not self._leads():
            return False
        now_s = self._environment.now()
        if not self._number:
            if now_s < self._begin_s:
                return False
            self._number, self._begin_s = FIRST_NUMBER, now_s + _PASS_S
        found = self._find()
        if found:
            self._ask(TABLE_SWEEP, TableSweep(found, self._table == 1, self._table == 2), partial(self._answered, done))
        else:
            self._environment.call_soon(partial(done, 0))
        return True

    def _find(self) -> list[bytes]:
        """The keys of records of the next dropped table, some of them. None between passes, or if there was no such
        table among those that were looked at."""
        machine, known = self._driver.machine, self._driver.machine.parts[Declarations].known
        prefix = keys.table_prefix(self._driver.group.prefix, _ROWS[self._table])
        engine, end = machine.reader.engine, keys.after_prefix(prefix)
        for _ in range(_TABLES):
            rows = engine.scan(prefix + self._number.to_bytes(_NUMBER_BYTES, "big"), end, 1)
            if not rows:
                self._table = (self._table + 1) % len(_ROWS)
                self._number = FIRST_NUMBER if self._table else 0
                return []
            number = int.from_bytes(rows[0][0][len(prefix) :][:_NUMBER_BYTES], "big")
            if known.is_dropped(number):
                begin = prefix + number.to_bytes(_NUMBER_BYTES, "big")
                rows = engine.scan(begin, keys.after_prefix(begin), self._batch.size, _BYTES)
                held = [key[len(prefix) :] for key, _ in rows if self._holds(key)]
                if held:
                    self._number = number
                    return held
            self._number = number + 1
        return []

    def _answered(self, done: Done, outcome: bytes | MetadError) -> None:
        done(0 if isinstance(outcome, bytes) else None)


class _Pass(NamedTuple):
    """Through the records of a table. ``indexes``: how many it has. ``held``: a bit map of the slots whose records are
    there to be looked at, by the applied state. It ends where that changes: a slot that went, and came again, brings
    records where the pass has been. ``todo``: the slots that it is about."""

    machine: Machine
    records: DeclaredRecords
    indexes: int
    held: bytes
    todo: Flags


def _kind_of(group: str) -> str:
    known = GroupId.parse(group)
    return "" if known is None else known.kind


class IndexBuild(Chore):
    """Has those of one group built."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._look_s = 0.0
        """Nothing is looked for before."""
        self._pass: _Pass | None = None
        self._at = b""
        """Where the pass goes on."""
        self._again_s: dict[int, float] = {}
        """Tables that a pass could not complete, and when the next one may begin."""
        self._kind = _kind_of(driver.group.name)

    def begin(self, room: int, done: Done) -> bool:
        if self._asking:
            return False
        machine, one = self._driver.machine, self._pass
        if not self._leads() or machine.holding.sealed_move:
            self._pass = None
            return False
        if one is not None and (one.machine, one.held) != (machine, machine.parts[HeldSlots].held):
            one = self._pass = None
        if one is None:
            return self._begin_pass(machine, done)
        items, behind = self._lacking(one)
        if items:
            step = TableIndexStep(one.records.table.number, one.indexes, items)
            self._ask(TABLE_INDEX, step, partial(self._answered, done, behind))
        elif behind:
            self._at = behind
            self._environment.call_soon(partial(done, 0))
        else:
            self._pass = None
            self._ask_slots(one.records, one.indexes, one.todo, done, complete=True)
        return True

    def _begin_pass(self, machine: Machine, done: Done) -> bool:
        """Begin with the next table that has something to do here, if there is one."""
        if (now_s := self._environment.now()) < self._look_s:
            return False
        self._look_s = now_s + _LOOK_S
        known, states, held = (
            machine.parts[Declarations].known,
            machine.parts[IndexStates],
            machine.parts[HeldSlots].held,
        )
        mine: Any = unpack(held)
        for table in known.with_added_indexes(self._kind):
            records, count = known.records(table.number), len(table.indexes)
            unkept, todo = states.unkept(table), states.incomplete(table, count)
            unkept &= mine
            todo &= mine
            if unkept.any():
                self._look_s = 0.0
                self._ask_slots(records, count, unkept, done, complete=False)
                return True
            if todo.any() and now_s >= self._again_s.get(table.number, 0.0):
                self._at = records.prefix(self._driver.group.prefix) + table.header[:_NUMBER_BYTES]
                self._pass = _Pass(machine, records, count, held, todo)
                self._environment.call_soon(partial(done, 0))
                return True
        return False

    def _ask_slots(self, records: DeclaredRecords, count: int, slots: Flags, done: Done, *, complete: bool) -> None:
        """Let slots keep so many indexes, or be complete of them. Those that are left are found again."""
        mine: Any = unpack(self._driver.machine.holding.slots) & slots
        if not mine.any():
            self._environment.call_soon(partial(done, 0))
            return
        step = TableIndexStep(records.table.number, count, [], pack(mine), complete)
        self._ask(TABLE_INDEX, step, partial(self._answered, done, b""))

    def _lacking(self, one: _Pass) -> tuple[list[bytes], bytes]:
        """The keys of the next records that lack a row, and behind what was looked at; no place if that was all."""
        prefix = one.records.prefix(self._driver.group.prefix)
        end, skip = keys.after_prefix(prefix + one.records.table.header[:_NUMBER_BYTES]), len(prefix)
        engine = one.machine.reader.engine
        found = engine.scan(self._at, end, _PASS_ROWS, _PASS_BYTES)
        index_prefix = keys.table_prefix(self._driver.group.prefix, INDEXES.rows["index"])
        indexes = one.records.indexes(one.indexes, one.records.table.first_indexes)
        wanted: list[tuple[bytes, bytes]] = []  # rows, and the records that have to have them
        for key, value in found:
            slot, record = one.records.table.slot_of(key[skip:]), one.records.decoded_indexed(value)
            if slot is None or not one.todo[slot]:
                continue
            for index in indexes:
                if index.bytes_of(record) > KEY_BYTES_MAX:
                    one.todo[slot] = False
                    self._again_s[one.records.table.number] = self._environment.now() + _PASS_S
                    event(log_events.INDEX_WAITS, table=one.records.table.name, index=index.name, key=repr(key[skip:]))
                else:
                    wanted += [(index_prefix + row, key[skip:]) for row in index.rows_of(record)]
        there = engine.get_many([row for row, _ in wanted])
        items = [*dict.fromkeys(key for (_, key), value in zip(wanted, there, strict=True) if value is None)]
        if len(items) > self._batch.size:
            items = items[: self._batch.size]
            return items, prefix + items[-1] + b"\0"
        return items, found[-1][0] + b"\0" if found else b""

    def _answered(self, done: Done, behind: bytes, outcome: bytes | MetadError) -> None:
        if isinstance(outcome, bytes):
            self._at = behind
            done(0)
        elif isinstance(outcome, TooLargeError):
            done(0)  # the next batch is smaller
        else:
            self._pass = None  # the next one finds out what has become of the group
            done(None)


class RecordExpiry(Chore):
    """Has the records of one group deleted whose time has come. What is really over is decided when that is evaluated.
    As the sweep of sessions, it looks behind what it has had deleted: :class:`.RecordDues` knows where that is."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._prefix = keys.table_prefix(driver.group.prefix, RECORD_DUE)
        self._held: tuple[Machine, bytes, int] | None = None
        """For which machine, holding which slots, the place is right: rows of other slots were passed, and those of
        tenants that were on their way, which have changed so often."""

    @property
    def overdue_ms(self) -> int:
        """For how long the oldest time has come of a record that is there; 0 if none has, or another node leads."""
        if not self._leads():
            return 0
        now_ms = self._driver.machine.time.newest_ms
        return max((now_ms - DUES.split(item)[0] for item in self._find(now_ms, 1)[0]), default=0)

    def begin(self, room: int, done: Done) -> bool:
        if not (past_ms := self._ends_until_ms()):
            return False
        dues = self._dues()
        first = dues.first
        items, behind, is_more = self._find(past_ms, max(1, min(self._batch.size, room)))
        self._keeps_up(not is_more)
        if items:
            self._ask(TABLE_EXPIRE, TableExpire(items), partial(self._answered, done, items, first, behind))
            return True
        dues.first = max(first, behind)
        if is_more:
            self._environment.call_soon(partial(done, 0))
        return is_more

    def _dues(self) -> RecordDues:
        machine = self._driver.machine
        changes = machine.parts[TenantMoves].changes
        dues, held = machine.parts[RecordDues], (machine, machine.parts[HeldSlots].held, changes)
        if held != self._held:
            self._held, dues.first = held, self._prefix
        return dues

    def _find(self, past_ms: int, count: int) -> tuple[list[bytes], bytes, bool]:
        """The next rows whose time has come, of slots that the group holds; the place behind all that were looked at;
        and whether there may be more."""
        begin, end = self._dues().first, self._prefix + DUES.key_for(past_ms + 1, b"")
        rows = self._driver.machine.reader.engine.scan(begin, end, _FOREIGN_ROWS)
        held = [key for key, _ in rows if self._serves(key)]
        if len(held) > count:
            return [key[len(self._prefix) :] for key in held[:count]], held[count - 1] + b"\0", True
        is_more = len(rows) == _FOREIGN_ROWS
        return [key[len(self._prefix) :] for key in held], rows[-1][0] + b"\0" if is_more else max(begin, end), is_more

    def _answered(
        self, done: Done, items: list[bytes], first: bytes, behind: bytes, outcome: bytes | MetadError
    ) -> None:
        if isinstance(outcome, bytes):
            reply, dues = TABLE_EXPIRE.decode_reply(outcome), self._driver.machine.parts[RecordDues]
            self._counts["records"] += reply.ended
            if dues.first == first and not reply.waiting:  # or an earlier row has come
                dues.first = behind
            done(None if reply.waiting else len(items))
        else:
            done(len(items) if isinstance(outcome, TooLargeError) else None)
