"""The tables that programs have declared: their rows in ``metadata-0``, and what a node knows of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import METADATA, SLOTS
from metad_wire.declaration import Declaration, difference, fault_of
from metad_wire.errors import (
    ConflictError,
    InvalidItemError,
    InvalidRequestError,
    NotFoundError,
    QuotaExceededError,
    UnknownTableError,
)
from metad_wire.families import FAMILIES
from metad_wire.method import MALFORMED, Method
from metad_wire.methods import encode
from metad_wire.policy.fair_room import FairRoom, Place
from metad_wire.table import TABLES
from metad_wire.tables.declaration import (
    DECLARATION,
    FIRST_NUMBER,
    TABLES_MAX,
    DeclarationKey,
    Declare,
    DeclaredTable,
    DeclareReply,
)
from metad_wire.tables.table import DECLARED, INDEX_STATES, INDEXES, PlainTable, SharedRows, TableIndexStep, TableSweep
from metad_wire.tables.tenants import SCOPES

from ...config import Config
from ...storage import keys
from ...storage.engine import Engine
from ..core.indexes import IndexStates
from ..core.limits import check_change
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.plain import DeclaredRecords
from ..core.slot_assignment import unpack
from ..core.verb import Command, Reader, Verb, read_keys, read_list, written
from ..core.view import HeadCache, Rows, View, column

_TABLE, _COUNT = DECLARATION.rows["table"], DECLARATION.rows["count"]
_GROUP = keys.group_prefix(METADATA)
_PREFIX, _COUNT_KEY = keys.table_prefix(_GROUP, _TABLE), keys.table_prefix(_GROUP, _COUNT)
_decode = msgspec.msgpack.Decoder(DeclaredTable).decode


class _Counted(m.Message, frozen=True):
    """The last number that was given, and how many tables there are."""

    last: int = FIRST_NUMBER - 1
    tables: int = 0


_decode_count = msgspec.msgpack.Decoder(_Counted).decode


class _Named(m.Message, frozen=True):
    """The first field of a request about a declared table."""

    table: int


_decode_named = msgspec.msgpack.Decoder(m.Request[_Named]).decode


class _Sent(m.Message, frozen=True):
    """An item of a put whose record is not decoded."""

    record: msgspec.Raw


class _SentPut(m.Message, frozen=True):
    """A put whose records are not decoded."""

    table: int
    known: int
    items: list[_Sent]


_ITEM_BYTES = 3  # of an item with its record at least
_SLIGHT_BYTES = 4 * 1024
_decode_sent = msgspec.msgpack.Decoder(m.Request[_SentPut]).decode


class KnownTables:
    """The declared tables as one node knows them: those in its copy of ``metadata-0``, and those in the code."""

    def __init__(self, config: Config | None = None) -> None:
        # A table, and what is done with its records, is made when it is first asked for: it takes a millisecond or two,
        # and most tables have their records in other nodes' groups.
        self._by_number: dict[int, PlainTable[Any] | DeclaredTable] = {}
        self._made: dict[int, DeclaredRecords] = {}
        self._numbers: dict[str, int] = {}
        self._last = 0
        self._grown: dict[int, str] = {}  # the kinds of their groups
        self._scoped: frozenset[int] | None = None  # None: not looked at since a table came or went
        self.replace((), _Counted())

    def replace(self, tables: Iterable[DeclaredTable], count: _Counted) -> None:
        """Forget all, and know these."""
        self._by_number, self._made = {table.number: table for table in FAMILIES.values()}, {}
        self._numbers, self._grown = {name: table.number for name, table in FAMILIES.items()}, {}
        self._scoped = None
        for table in tables:
            self.add(table)
        self._last = count.last

    def add(self, declared: DeclaredTable) -> None:
        """A table is declared, or has grown."""
        number = declared.number
        self._by_number[number], self._numbers[declared.name] = declared, number
        self._grown.pop(number, None)
        if declared.first_indexes is not None:
            self._grown[number] = declared.declaration.kind
        self._made.pop(number, None)
        self._scoped = None
        self._last = max(self._last, number)

    def drop(self, name: str) -> None:
        """A table is no more."""
        number = self._numbers.pop(name, None)
        if number is not None:
            del self._by_number[number]
            self._grown.pop(number, None)
            self._made.pop(number, None)
            self._scoped = None

    def _table(self, number: int) -> PlainTable[Any]:
        found = self._by_number[number]
        if isinstance(found, DeclaredTable):
            found = self._by_number[number] = found.table()
        return found

    def check(self, number: int, name: str = "") -> None:
        """Raise UnknownTableError if the table may have been declared a moment ago, NotFoundError if there is none."""
        if number in self._by_number:
            return
        if number > self._last:
            raise UnknownTableError(f"this node has not heard of table {number} yet")
        raise NotFoundError(f"there is no table {name or number}: it was dropped")

    def records(self, number: int) -> DeclaredRecords:
        """What is done with the records of this table. Raises as :meth:`check`."""
        made = self._made.get(number)
        if made is None:
            self.check(number)
            made = self._made[number] = DeclaredRecords(self._table(number))
        return made

    def with_added_indexes(self, kind: str) -> list[PlainTable[Any]]:
        """The tables of this kind of groups that have more indexes than they were declared with."""
        return [self._table(number) for number, of_kind in self._grown.items() if of_kind == kind]

    def of_tenants(self, kind: str = "") -> list[PlainTable[Any]]:
        """Those whose keys begin with a tenant or a namespace, of this kind of groups or any."""

        def is_wanted(found: PlainTable[Any] | DeclaredTable) -> bool:
            said = found.declaration if isinstance(found, DeclaredTable) else found
            return kind in ("", said.kind) and said.key[0] in SCOPES

        return [self._table(number) for number, found in [*self._by_number.items()] if is_wanted(found)]

    @property
    def numbers_of_tenants(self) -> frozenset[int]:
        """Of those whose keys begin with a tenant or a namespace."""
        if self._scoped is None:
            self._scoped = frozenset(table.number for table in self.of_tenants())
        return self._scoped

    def is_dropped(self, number: int) -> bool:
        """Whether there was a table of this number, and is none any more."""
        return number <= self._last and number not in self._by_number

    def watched(self, name: str, number: int) -> PlainTable[Any] | None:
        """The table of this number; None if that is 0 and there is none of the name. Raises UnknownTableError if it may
        have been declared a moment ago, NotFoundError if it was dropped."""
        if number:
            self.check(number, name)
        elif not (number := self._numbers.get(name, 0)):
            return None
        return self._table(number)

    def verb(self, general: Method[Any, Any], payload: bytes) -> tuple[Verb[Any, Any], int]:
        """What is done with the request of a general method, which names its table by its first field, and how many
        bytes of defaults come to it once it is decoded. Raises UnknownTableError, NotFoundError, InvalidRequestError,
        and TooLargeError where those are too many."""
        try:
            number = _decode_named(payload).body.table
        except MALFORMED:
            number = general.decode_request(payload).body.table  # says what is wrong
        records, filled = self.records(number), 0
        if general is methods.TABLE_PUT and (filled := self._filled_bytes(records.table, payload)):
            check_change(len(payload) + filled)
        return records.verbs[general.code], filled

    def _filled_bytes(self, table: PlainTable[Any], payload: bytes) -> int:
        """How many bytes of defaults the records of an encoded put get for fields that were not sent; 0 where all
        defaults are no more than the request, or than :data:`_SLIGHT_BYTES`."""
        slight = max(len(payload), _SLIGHT_BYTES)
        if min(m.BATCH_ITEMS_MAX, len(payload) // _ITEM_BYTES) * table.defaults_bytes[0] <= slight:
            return 0  # as nearly always, and known without a look at the items
        head = methods.TABLE_PUT.decode_head(payload)
        if head is None:
            return 0  # who decodes it says what is wrong
        most = head.items * table.defaults_bytes[0]
        if most <= slight:
            return 0
        try:
            return sum([table.filled_bytes(item.record) for item in _decode_sent(payload).body.items])
        except MALFORMED:
            return most  # of an item that is wrong nobody knows; the others are decoded


def read_tables(engine: Engine) -> list[DeclaredTable]:
    """The tables that programs have declared, in the applied state."""
    return [_decode(value) for _, value in _rows(engine, _PREFIX)]


class Declarations(StatePart):
    """Tells the node what entries of ``metadata-0`` declare and drop, and the leader who has declared how much."""

    rows = (_TABLE, _COUNT)

    def __init__(self, context: PartContext) -> None:
        self.known: KnownTables = context.memory.shared(KnownTables)
        self._engine = context.engine
        self._is_metadata = context.group == _GROUP

    def load(self) -> None:
        self.room = FairRoom("declared tables", TABLES_MAX, ends="when it is dropped")
        """Shared by those who declared them."""
        self._places: dict[bytes, Place] = {}
        self._in_flight: dict[bytes, Place] = {}  # of tables that are not committed yet
        if not self._is_metadata:
            return
        stored = self._engine.get(_COUNT_KEY)
        count = _Counted() if stored is None else _decode_count(stored)
        self.known.replace((self._placed(key, _decode(value)) for key, value in _rows(self._engine, _PREFIX)), count)

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        for key, value in writes.items():
            if key != _COUNT_KEY and value is not None and key not in self._places and key not in self._in_flight:
                self._in_flight[key] = self.room.hold(_decode(value).declared_by, 1)

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        for key, value in writes.items():
            if key == _COUNT_KEY:
                continue  # the numbers of the tables say it
            if value is None:
                (name,) = DECLARATION.fields_of(key[len(_PREFIX) :], 1)
                self.known.drop(name)
                self.room.forget(self._places.pop(key, None))
            else:
                self.room.forget(self._in_flight.pop(key, None))
                self.known.add(self._placed(key, _decode(value)))

    def forget(self) -> None:
        for place in self._in_flight.values():
            self.room.give(place)
        self._in_flight = {}

    def _placed(self, key: bytes, declared: DeclaredTable) -> DeclaredTable:
        """A table that has its place from now on."""
        if key not in self._places:
            self._places[key] = self.room.hold(declared.declared_by, 1)
        return declared


def _rows(engine: Engine, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    begin, end = prefix, keys.after_prefix(prefix)
    while rows := engine.scan(begin, end, 1_000):
        yield from rows
        begin = rows[-1][0] + b"\0"


def _evaluate_declare(view: View, command: Command[Declare]) -> DeclareReply:
    room, taken = view.parts[Declarations].room, list[Place]()
    try:
        return _declare(view, command, room, taken)
    finally:  # the room hears of what is accepted
        for place in taken:
            room.give(place)


def _declare(view: View, command: Command[Declare], room: FairRoom, taken: list[Place]) -> DeclareReply:
    stored = view.get(_COUNT_KEY)
    before = count = _Counted() if stored is None else _decode_count(stored)
    writes = view.writes_of(_TABLE)
    errors: list[m.ItemError] = []
    found: list[DeclaredTable | None] = []
    holder = command.holder
    for position, declaration in enumerate(command.body.items):
        try:
            known = _known(view, declaration)
            if known is None and count.tables >= TABLES_MAX:
                raise QuotaExceededError(f"there are {TABLES_MAX} tables already: drop some")
            if known is None:
                place = room.take(holder, 1)
                if place is None:
                    raise QuotaExceededError(
                        f"{holder or 'this node'} has declared {room.held_by(holder)} of the {room.size_max} tables "
                        "that there may be, and may have no more than are left free: have some dropped"
                    )
                taken.append(place)
                count = msgspec.structs.replace(count, last=count.last + 1, tables=count.tables + 1)
            table = _declared(view, known, declaration, count.last, holder)
        except (InvalidItemError, ConflictError, QuotaExceededError) as error:
            errors.append(m.ItemError(position, error.code, error.message))
            found.append(None)
            continue
        if table is not known:
            writes[_PREFIX + keys.text(table.name)] = encode(table)
        found.append(table)
    if count is not before:
        view.writes_of(_COUNT)[_COUNT_KEY] = encode(count)
    return DeclareReply([m.Revision(view.name, view.revision)], errors, found)


def _known(view: View, declaration: Declaration) -> DeclaredTable | None:
    """The table of this name; None if there is none. Raises InvalidItemError, ConflictError."""
    if (why := fault_of(declaration)) is not None:
        raise InvalidItemError(why)
    name = declaration.name
    if name in TABLES or name in FAMILIES:
        raise ConflictError(f"metad has a table {name} of its own")
    stored = view.get(_PREFIX + keys.text(name))
    known = None if stored is None else _decode(stored)
    if known is not None and (why := difference(known.declaration, declaration)) is not None:
        raise ConflictError(why)
    return known


def _declared(
    view: View, known: DeclaredTable | None, declaration: Declaration, number: int, holder: str
) -> DeclaredTable:
    """The table, once it is declared."""
    revision = view.revision
    if known is None:
        return DeclaredTable(declaration.name, number, declaration, 1, revision, revision, None, holder)
    before = known.declaration
    newer = declaration if len(declaration.fields) > len(before.fields) else before
    grown = msgspec.structs.replace(newer, indexes=max(before.indexes, declaration.indexes, key=len))
    if grown == before:
        return known
    if (why := fault_of(grown)) is not None:
        raise InvalidItemError(why)
    first = len(before.indexes) if known.first_indexes is None else known.first_indexes
    return msgspec.structs.replace(
        known,
        declaration=grown,
        version=known.version + 1,
        mod_revision=revision,
        first_indexes=first if len(grown.indexes) > first else None,
    )


def _evaluate_drop(view: View, command: Command[m.Items[DeclarationKey]]) -> m.WriteReply:
    stored = view.get(_COUNT_KEY)
    before = count = _Counted() if stored is None else _decode_count(stored)
    errors: list[m.ItemError] = []
    writes = view.writes_of(_TABLE)
    for position, item in enumerate(command.body.items):
        key = _PREFIX + keys.text(item.name)
        if view.get(key) is None:
            errors.append(m.ItemError(position, NotFoundError.code))
            continue
        writes[key] = None
        count = msgspec.structs.replace(count, tables=count.tables - 1)
    if count is not before:
        view.writes_of(_COUNT)[_COUNT_KEY] = encode(count)
    return written(view, errors)


def _read(reader: Reader, command: Command[m.Get[DeclarationKey]]) -> m.GetReply[Any]:
    return read_keys(reader, command, [_PREFIX + keys.text(item.name) for item in command.body.items])


def _swept(body: TableSweep) -> tuple[SharedRows, int]:
    """What is swept: the rows of this table in the code, and their byte."""
    table: SharedRows = INDEX_STATES if body.states else INDEXES if body.indexed else DECLARED
    (row,) = table.rows.values()
    return table, row


def _rows_of(body: TableSweep) -> Rows:
    slots = _swept(body)[0].slots_of(body.items)
    return Rows(body.items, body.items, column(slots, len(slots)))


def _evaluate_sweep(view: View, command: Command[TableSweep]) -> m.WriteReply:
    row = _swept(command.body)[1]
    prefix, writes = keys.table_prefix(view.group, row), view.writes_of(row)
    gone: Writes = {prefix + key: None for key in command.rows.keys}
    writes.update(gone)
    view.on_accept.append(partial(view.parts[HeadCache].overwritten, gone))
    return written(view, [])


def _rows_of_step(body: TableIndexStep) -> Rows:
    """Of the records, or one for each slot."""
    if body.items:
        slots = DECLARED.slots_of(body.items)
        return Rows(body.items, body.items, column(slots, len(slots)))
    if len(body.slots) != SLOTS // 8:
        raise InvalidRequestError(f"slots: a bit map of {len(body.slots)} bytes")
    slots = np.flatnonzero(unpack(body.slots)).tolist()
    return Rows(slots, [b""] * len(slots), column(slots, len(slots)))


def _evaluate_index(view: View, command: Command[TableIndexStep]) -> m.WriteReply:
    """See :mod:`..core.indexes`."""
    body, rows = command.body, command.rows
    records = view.parts[Declarations].known.records(body.table)
    if body.indexes > len(records.table.indexes):
        raise UnknownTableError(f"this node knows {len(records.table.indexes)} indexes, not {body.indexes} yet")
    if body.items:
        records.build_indexes(view, rows)
    else:
        view.parts[IndexStates].write(view, records.table, rows.items, body.indexes, complete=body.complete)
    return written(view, [])


VERBS: tuple[Verb[Any, Any], ...] = (
    Verb(methods.DECLARATION_DECLARE, DECLARATION, evaluate=_evaluate_declare),
    Verb(methods.DECLARATION_DROP, DECLARATION, evaluate=_evaluate_drop, grows=False),
    Verb(methods.DECLARATION_GET, DECLARATION, read=_read),
    Verb(methods.DECLARATION_LIST, DECLARATION, read=partial(read_list, row=_TABLE)),
    Verb(methods.TABLE_SWEEP, DECLARED, rows=_rows_of, evaluate=_evaluate_sweep, background=True, grows=False),
    Verb(methods.TABLE_INDEX, DECLARED, rows=_rows_of_step, evaluate=_evaluate_index, background=True),
)
