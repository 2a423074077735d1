"""Tables that are declared as data: records that are put, read, deleted and listed by their keys.

A request names its table by the *number* that the declaration was given; the numbers below 1024 are those of the tables
in the code. What stands for a record is an array of the fields of the table, in their order, and for a key one of the
fields of its key.

Item errors of ``put``: ``invalid_item`` if a field is not what the table says, ``conflict`` if ``expected_version`` is
not that of the record. Of ``delete``: ``not_found`` if there is no record, whatever version was expected, and
``conflict``. A listing without all routing fields is asked of every group of the kind (*Listings*). It is an
``invalid_request`` if it has more fields than the key, or one of another type, if it has a prefix for a field that is
not text, or if ``after`` lacks fields of the key. So is a count. Where a group refuses that with ``stale_route``, who
holds its slots now counts on from the same cursor.

**Indexes.** A declaration may name other orders of its records. The entry that writes a record writes them, too: a
listing by one shows what every other read shows. Bounds: its fields in one record take as many bytes as a key may, or
the item is an ``invalid_item``. In the code, the first field may be a list of texts: a record is listed by each, and a
listing names one.

**Transactions.** ``table.transact`` compares records, and writes some, of any tables that live together: they have one
kind, as many routing fields, and the same values in them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from .. import messages as m
from ..declaration import TABLE_KINDS
from ..errors import InvalidRequestError
from ..faults import MALFORMED
from ..key import SLOT_MASK, TEXT_END, number, text, truth, u32
from ..method import For, Lane, Method, Route
from ..table import ANY_KIND, Keyed, Keys, Listed, Shown, Table, named_message
from ..text.fields import U32, Batch

_fields_sent: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
Record = TypeVar("Record", bound=m.Message)
_BETWEEN: Final = TEXT_END.decode()
HEADER_BYTES: Final = 5
"""Of a key: the number of the table as u32, and how many of the fields route as u8."""


class SharedRows(Table[Any]):
    """Rows of many tables, by default in groups of any kind. Their keys say by themselves which slot they are in."""

    def __init__(self, name: str, *, rows: Mapping[str, int], kind: str = ANY_KIND) -> None:
        super().__init__(name, kind=kind, rows=rows)
        self.moves = True

    def slot_of(self, key: bytes) -> int:
        raise NotImplementedError

    def slots_of(self, keys: Sequence[bytes]) -> list[int]:
        return [self.slot_of(key) for key in keys]


class DeclaredRows(SharedRows):
    """The rows of all tables that are declared as data. Behind the byte a key has the number of its table, how many of
    the fields route, and the fields: so everybody knows the slot of a row who has never heard of its table."""

    def _key_bytes(self, item: Any) -> int:
        """The longest key that a transaction names; those of records to put are looked at with the records."""
        if not isinstance(item, m.TableTransaction):
            return 0
        parts: list[Any] = [*item.compares, *item.then, *item.otherwise, *item.reads]
        return max((HEADER_BYTES + sum(map(_field_bytes, part.key)) for part in parts), default=0)

    def number_of(self, key: bytes) -> int:
        """Of the table of a key."""
        return int.from_bytes(key[: HEADER_BYTES - 1], "big")

    def slot_of(self, key: bytes) -> int:
        begin = end = HEADER_BYTES
        for _ in range(key[HEADER_BYTES - 1]):
            end = key.index(TEXT_END, end) + len(TEXT_END)
        return crc32(key[begin:end]) & SLOT_MASK

    def shown(self, row: int) -> Shown:
        return _SHOWN


def _field_bytes(value: str | int) -> int:
    """Of a field of a key, as encoded."""
    return len(text(value)) if isinstance(value, str) else len(u32(0))


DECLARED: Final = DeclaredRows("table", rows={"record": 0x60})
"""Where the records of declared tables are, whatever the kind of their groups."""
_RECORD: Final = DECLARED.rows["record"]


class IndexRows(SharedRows):
    """The rows of all indexes, which have no value. Behind the byte a key has the number of the table as u32, that of
    the index as u8, the fields of the index, those of the key, where those of the key begin as u16, and how many of
    them route as u8: so everybody knows the slot, and the key of the record."""

    def slot_of(self, key: bytes) -> int:
        begin = end = int.from_bytes(key[-3:-1], "big")
        for _ in range(key[-1]):
            end = key.index(TEXT_END, end) + len(TEXT_END)
        return crc32(key[begin:end]) & SLOT_MASK


INDEXES: Final = IndexRows("table_index", rows={"index": 0x61})
"""The indexes of declared tables."""


class IndexStateRows(SharedRows):
    """How far the indexes of a table are built that were added to it. Behind the byte a key has the number of the table
    as u32, and the slot as u16."""

    def key_for(self, number: int, slot: int) -> bytes:
        """The key of a table and a slot."""
        return u32(number) + slot.to_bytes(2, "big")

    def slot_of(self, key: bytes) -> int:
        return int.from_bytes(key[-2:], "big")


INDEX_STATES: Final = IndexStateRows("table_index_state", rows={"built": 0x62})
"""One for each slot, of tables to which indexes were added."""


class DueRows(SharedRows):
    """When records end: 8 bytes of milliseconds, and the key of the record as :data:`DECLARED` has it. It is the Unix
    time that the record says itself, so it stays as it is where the slot moves to another log."""

    def key_for(self, at_ms: int, record: bytes) -> bytes:
        """The key of a time and a record."""
        return at_ms.to_bytes(8, "big") + record

    def split(self, key: bytes) -> tuple[int, bytes]:
        """The reverse."""
        return int.from_bytes(key[:8], "big"), key[8:]

    def slot_of(self, key: bytes) -> int:
        return DECLARED.slot_of(key[8:])


DUES: Final = DueRows("table_due", rows={"due": 0x63})
"""One for each record that ends. That of a record whose table was dropped goes when its time comes."""


class Index:
    """One index of a table. ``names``: its fields, and behind them the other fields of the key. Where the first field
    is a list, a record has a row for each different element, and a listing gives an element for it."""

    behind: Final = b"\xff"
    """What follows all fields in a row is less."""

    def __init__(self, number: int, name: str, fields: Sequence[str], table: PlainTable[Any]) -> None:
        self.number = number
        self.name = name
        self.fields = tuple(fields)
        self.values = attrgetter(*fields)
        """Those of a record."""
        self.names = (*fields, *(field for field in table.key if field not in fields))
        self.header = u32(table.number) + bytes((number,))
        """What its keys begin with."""
        types = {field.name: field.type for field in msgspec.structs.fields(table.record)}
        self.of_elements = _is_of_texts(types[fields[0]])
        """Whether its first field is a list."""
        self._encoders = [
            text if self.of_elements and field == fields[0] else _encoder_of(types[field]) for field in fields
        ]
        of_key = dict(zip(table.key, table.encoders, strict=True))
        self.encoders = [*self._encoders, *(of_key[field] for field in self.names[len(fields) :])]
        """Of :attr:`names`."""
        self._table, self._routing = table, bytes((len(table.routing),))

    def key_of(self, given: Sequence[Any]) -> bytes:
        """The values of the first of :attr:`names`, encoded."""
        begin = self.header + b"".join([encode(value) for encode, value in zip(self._encoders, given, strict=False)])
        if len(given) < len(self.fields):
            return begin
        known = dict(zip(self.names, given, strict=False))
        return begin + self._table.fields_key(
            [known[field] for field in takewhile(known.__contains__, self._table.key)]
        )

    def rows_of(self, record: Any, key: bytes = b"") -> list[bytes]:
        """The keys of a record's rows: one, or one for each element. None if a field is nil, or if they are too long,
        in a record that was written before the index was added. ``key``: the record's, if it is known."""
        table, rows = self._table, []
        fields = key[HEADER_BYTES:]
        for begin in self._begins_of(record):
            if (size := len(begin)) <= m.KEY_BYTES_MAX:
                fields = fields or table.fields_key([getattr(record, field) for field in table.key])
                rows.append(begin + fields + size.to_bytes(2, "big") + self._routing)
        return rows

    def record_key(self, row: bytes) -> bytes:
        """The key of the record that a row is for."""
        return self._table.header + row[int.from_bytes(row[-3:-1], "big") : -3]

    def bytes_of(self, record: Any) -> int:
        """At least what its fields in a record take as encoded, and exactly that where it may be too much; of a list
        its longest element."""
        values = [getattr(record, field) for field in self.fields]
        if self.of_elements:
            values[0] = max(values[0] or (), key=len, default=None)
        most = 16 * (len(values) + 1) + 4 * sum([len(value) for value in values if type(value) is str])
        return most if most <= m.KEY_BYTES_MAX else max(map(len, self._begins_of(record)), default=0)

    def _begins_of(self, record: Any) -> list[bytes]:
        """What its rows begin with: the header and the fields of the index."""
        if self.of_elements and len(self.fields) == 1:
            header = self.header
            return [_begin(header, element) for element in dict.fromkeys(self.values(record) or ())]
        values = [getattr(record, field) for field in self.fields]
        if None in values:
            return []
        if not self.of_elements:
            return [
                self.header + b"".join([encode(value) for encode, value in zip(self._encoders, values, strict=True)])
            ]
        behind = b"".join([encode(value) for encode, value in zip(self._encoders[1:], values[1:], strict=True)])
        return [self.header + text(element) + behind for element in dict.fromkeys(values[0])]

    def fields_fault(self, given: Sequence[Any]) -> str | None:
        """Why these are not values of the first of :attr:`names`; None if they are."""
        return _fields_fault(f"index {self.name}, with the key,", self.names, self.encoders, given)


@functools.lru_cache(8_192)  # the same brokers have the replicas of all partitions
def _begin(header: bytes, element: str) -> bytes:
    return header + text(element)


_RANGES: Final[dict[Any, tuple[int, int]]] = {u32: (0, 2**32 - 1), number: (-(2**63), 2**63 - 1)}


def _shape_of(kind: Any) -> msgspec.inspect.Type:
    """Of a field of an index, which may be nil."""
    shape = msgspec.inspect.type_info(kind)
    if isinstance(shape, msgspec.inspect.UnionType):
        (shape,) = [one for one in shape.types if not isinstance(one, msgspec.inspect.NoneType)]
    return shape


def _is_of_texts(kind: Any) -> bool:
    """Whether a field is a list of texts."""
    match _shape_of(kind):
        case msgspec.inspect.ListType(item_type=msgspec.inspect.StrType()):
            return True
    return False


def _encoder_of(kind: Any) -> Callable[[Any], bytes]:
    """Of a field of an index. Raises TypeError."""
    match _shape_of(kind):
        case msgspec.inspect.StrType() | msgspec.inspect.LiteralType():
            return text
        case msgspec.inspect.BoolType():
            return truth
        case msgspec.inspect.IntType():
            return number
    raise TypeError(f"{kind!r} has no place in an index")


def _fields_fault(
    whose: str, names: Sequence[str], encoders: Sequence[Callable[[Any], bytes]], given: Sequence[Any]
) -> str | None:
    if len(given) > len(names):
        return f"{len(given)} fields, {whose} has {len(names)}"
    for value, name, encode in zip(given, names, encoders, strict=False):
        if (wanted := _misfit(value, encode)) is not None:
            return f"{name} is {wanted}"
    return None


def _misfit(value: Any, encode: Callable[[Any], bytes]) -> str | None:
    """What a value must be that is not; None if it is."""
    if encode is text:
        return None if isinstance(value, str) else "text"
    if encode is truth:
        return None if isinstance(value, bool) else "true or false"
    low, high = _RANGES[encode]
    whole = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    return None if whole else f"a number from {low} to {high}"


def _of(record: str, general: Any) -> type[Any]:
    """A general message, of some records."""
    return named_message(f"{record}{general.__origin__.__name__.removeprefix('Table')}", general)


def _own(general: Method[Any, Any], name: str, body: Any, reply: Any) -> Method[Any, Any]:
    """A general method with types of its own, for who sends it."""
    return Method(
        general.code,
        name,
        body,
        reply,
        general.lane,
        mutates=general.mutates,
        by=general.by,
        repeatable=general.repeatable,
        shared=True,
    )


_READ: Any = m.TableRecord[Any]
_SHOWN: Final = Shown(None, _READ, counted=True)
TABLE_GET = DECLARED.reads(
    0x0601, "get", _of("Table", m.TableGet[Any]), _of("Table", m.GetReply[_READ]), Lane.RECORDS, routed=False
)
TABLE_PUT = DECLARED.writes(0x0602, "put", _of("Table", m.TablePut[Any]), m.TablePutReply, Lane.RECORDS, routed=False)
TABLE_DELETE = DECLARED.writes(
    0x0603, "delete", _of("Table", m.TableDelete[Any]), m.WriteReply, Lane.RECORDS, routed=False
)


TABLE_LIST = DECLARED.reads(0x0604, "list", m.TableList, _of("Table", m.ListReply[_READ]), Lane.SCANS, routed=False)


TABLE_COUNT = DECLARED.reads(0x0607, "count", m.TableList, m.TableCountReply, Lane.SCANS, routed=False)


class TableSweep(m.Message, frozen=True):
    """Between nodes: delete these records, whose table was dropped. A slot is that of the key, as it is on disk."""

    items: Batch[bytes]
    """Keys behind the byte of the row."""
    indexed: bool = False
    """Whether they are keys of indexes."""
    states: bool = False
    """Whether they say how far indexes are built."""


TABLE_SWEEP = DECLARED.writes(0x0605, "sweep", TableSweep, m.WriteReply, Lane.SCANS, whose=For.NODES, routed=False)


class TableIndexStep(m.Message, frozen=True):
    """Between nodes: build the indexes that were added to a table. First slots keep them; then records get the rows
    that they lack; then slots are complete."""

    table: U32
    """Its number."""
    indexes: U32
    """How many the table has: no less than the group's leader knows."""
    items: Batch[bytes]
    """Keys of records, behind the byte of the row. None: it is about slots."""
    slots: bytes = b""
    """A bit map."""
    complete: bool = False
    """Whether all records of the slots have their rows."""


TABLE_INDEX = DECLARED.writes(0x0608, "index", TableIndexStep, m.WriteReply, Lane.SCANS, whose=For.NODES, routed=False)


class TableExpire(m.Message, frozen=True):
    """Between nodes: end those of these records whose time has come."""

    items: Batch[bytes]
    """Keys of the rows that say when, behind the byte."""


class TableExpired(m.Message, frozen=True):
    """What has become of them."""

    revisions: list[m.Revision]
    errors: list[m.ItemError]
    ended: U32
    """Records that were deleted."""
    waiting: U32
    """Items whose time has not come."""


TABLE_EXPIRE = DECLARED.writes(0x0609, "expire", TableExpire, TableExpired, Lane.SCANS, whose=For.NODES, routed=False)


TABLE_TRANSACT = DECLARED.writes(0x0606, "transact", m.TableTransact, m.TableTransactReply, Lane.RECORDS, routed=False)


class _RowsOfKind(DeclaredRows):
    """Where declared tables of one kind are, for who sends a request about several of them."""

    def __init__(self, kind: str) -> None:
        super().__init__(DECLARED.name, rows=DECLARED.rows)
        self.kind = kind

    def _register(self) -> None:
        """It shares the rows of all kinds."""

    def transact(self) -> Method[m.TableTransact, m.TableTransactReply]:
        """How the transactions of this kind are sent."""
        method = _own(TABLE_TRANSACT, TABLE_TRANSACT.name, TABLE_TRANSACT.body, TABLE_TRANSACT.reply)
        method.table = self
        method.route = Route(
            self.kind, lambda items: [crc32(route_key(item.route)) for item in items], lambda item: None
        )
        return method


def route_key(route: Sequence[str | int]) -> bytes:
    """Encode what routes a transaction. Raises TypeError where it is not of texts."""
    if not all(isinstance(value, str) for value in route):
        raise TypeError("what routes is text")
    return b"".join(map(text, route))  # type: ignore[arg-type]


TRANSACTS: Final = {kind: _RowsOfKind(kind).transact() for kind in TABLE_KINDS}
"""By the kind of groups."""


class Plain(NamedTuple):
    """The methods of a table whose records are put, read, deleted and listed, and no more."""

    get: Method[Any, Any]
    put: Method[Any, Any]
    delete: Method[Any, Any]
    list: Method[Any, Any]
    counts: Method[Any, Any]
    key: type[m.Message]
    """The fields of the record that identify it."""
    values: tuple[str, ...]
    """Its other fields."""


class PlainTable(Table[Record]):
    """A table that is declared as data. Its records are put, read, deleted and listed by the methods of
    :data:`DECLARED`, with types of its own, and it needs no code. A watch shows its row. Each program and each node has
    its own, made of the same declaration; nothing but ``number`` names it on the wire."""

    record: type[Record]
    plain: Plain
    behind: Final = b""
    of_elements: Final = False

    def __init__(
        self,
        name: str,
        *,
        number: int,
        kind: str,
        record: type[Record],
        key: Sequence[str],
        routing: Sequence[str] | None = None,
        indexes: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
        expires: str = "",
        ruled_by: str = "",
        hears: str = "",
    ) -> None:
        routing = key if routing is None else routing
        self.ruled_by = ruled_by
        """The table whose methods alone write the records; empty: they are put and deleted."""
        self.hears = hears
        self.number = number
        self.expires = expires
        """The field that says when a record ends; empty: none does."""
        self.header = u32(number) + bytes((len(routing),))
        self._of_routing, self._of_key = attrgetter(*routing), attrgetter(*key)
        super().__init__(
            name,
            kind=kind,
            rows=DECLARED.rows,
            record=record,
            key=key,
            routing=routing,
            ordered_by=HEADER_BYTES,
            value_bytes=_record_bytes,
            crcs=self._crcs,
            keys=self._keys,
        )
        self._is_text = self._first_texts == len(self.key)
        self.encoders = [encode for _, encode in self._encoders]
        self.indexes = {
            name: Index(at, name, fields, self) for at, (name, fields) in enumerate(indexes.items(), start=1)
        }
        """By name."""
        self.first_indexes = len(self.indexes)
        """How many of them it has had since it was declared."""
        if self.indexes:
            self.fits_bytes = m.KEY_BYTES_MAX
        self.names = self.key
        """The fields by which its records are in order, as those of an index are."""
        self.plain = self._methods()
        self.shows = {_RECORD: Shown(self.plain.key, m.TableRecord[self.record], counted=True)}  # type: ignore[name-defined]

    def _register(self) -> None:
        """It shares its rows, and belongs to whoever has declared it."""

    def _crcs(self, items: Sequence[Any]) -> Iterable[int]:
        # 100,000 puts a second pass here and below: the encoding is spelled out, with one check for all of them.
        routes, join = list(map(self._of_routing, items)), _join(self.routing)
        encoded = {route: join(route).encode() + TEXT_END for route in set(routes)}
        if b"".join(encoded.values()).count(0) != len(self.routing) * len(encoded):
            return self.general_crcs(items)
        crcs = {route: crc32(text) for route, text in encoded.items()}
        return map(crcs.__getitem__, routes)

    def _keys(self, items: Sequence[Any]) -> Keys:
        header, fields, join = self.header, self._of_key, _join(self.key)
        zeros = header.count(0) + len(self.key)
        keys = [header + join(fields(item)).encode() + TEXT_END for item in items] if self._is_text else []
        if b"".join(keys).count(0) != zeros * len(items):
            return self.general_keys(items)
        return keys, [crc32(key[HEADER_BYTES:]) for key in keys] if self.routing == self.key else self.crcs(items)

    @functools.cached_property
    def defaults_bytes(self) -> list[int]:
        """What the defaults of the fields take, as encoded, that stand behind so many: behind none first."""
        behind = [0]
        for field in reversed(msgspec.structs.fields(self.record)):
            made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            behind.append(behind[-1] + (0 if field.required else len(msgspec.msgpack.encode(made))))
        return behind[::-1]

    def filled_bytes(self, record: bytes) -> int:
        """What the defaults take of the fields that an encoded record lacks; 0 where all defaults are no longer than
        the record. Whoever decodes it makes all of them."""
        behind = self.defaults_bytes
        if behind[0] <= len(record):
            return 0
        try:
            sent = len(_fields_sent(record))
        except MALFORMED:
            sent = 0
        return behind[min(sent, len(behind) - 1)]

    def key_of(self, fields: Sequence[Any]) -> bytes:
        return self.header + super().key_of(fields)

    def fields_key(self, fields: Sequence[Any]) -> bytes:
        """The first fields of a key, encoded, without the header."""
        return super().key_of(fields)

    def fields_fault(self, given: Sequence[Any]) -> str | None:
        """Why these are not the first fields of a key; None if they are."""
        return _fields_fault(f"the key of a {self.name}", self.names, self.encoders, given)

    def value_fault(self, item: Any) -> str | None:
        for index in self.indexes.values() if isinstance(item, m.TablePutItem) else ():
            if (size := index.bytes_of(item.record)) > m.KEY_BYTES_MAX:
                return f"the fields of index {index.name} take {size} bytes, {m.KEY_BYTES_MAX} are allowed"
        return super().value_fault(item)

    def fields_of(self, key: bytes, count: int) -> list[Any]:
        return super().fields_of(key[HEADER_BYTES:], count)

    def _key_bytes(self, item: Any) -> int:
        if isinstance(item, m.TablePutItem):
            item = item.record
        elif isinstance(item, m.TableDeleteItem):
            item = item.key
        return super()._key_bytes(item)

    def _methods(self) -> Plain:
        self._own: dict[int, Method[Any, Any]] = {}
        record = self.record
        fields = {field.name: field.type for field in msgspec.structs.fields(record)}
        key: Any = msgspec.defstruct(
            f"{record.__name__}Key",
            [(name, fields[name]) for name in self.key],
            bases=(m.Message,),
            frozen=True,
            array_like=True,
            gc=False,
            module=record.__module__,
        )
        read: Any = m.TableRecord[record]  # type: ignore[valid-type]

        def of(general: Method[Any, Any], body: Any, reply: Any, keyed: Keyed | None = None) -> Method[Any, Any]:
            name = general.name.replace(DECLARED.name, self.name, 1)
            own = self._own[general.code] = self._declared(_own(general, name, body, reply), True, keyed)
            return own

        name = record.__name__
        listing = of(TABLE_LIST, m.TableList, _of(name, m.ListReply[read]), self.listed_by)
        self.listed[listing] = Listed(read, tuple(f"record.{name}" for name in self.key), ("fields", "prefix"), "")
        return Plain(
            of(TABLE_GET, _of(name, m.TableGet[key]), _of(name, m.GetReply[read])),
            of(TABLE_PUT, _of(name, m.TablePut[record]), m.TablePutReply, _records),  # type: ignore[valid-type]
            of(TABLE_DELETE, _of(name, m.TableDelete[key]), m.WriteReply, _keys),
            listing,
            of(TABLE_COUNT, m.TableList, m.TableCountReply, self.listed_by),
            key,
            tuple(name for name in fields if name not in self.key),
        )

    def method(self, general: Method[Any, Any]) -> Method[Any, Any]:
        """Return its own method of this code, or that of its kind."""
        if general is TABLE_TRANSACT:
            return TRANSACTS[self.kind]
        return self._own[general.code]

    def index(self, number: int) -> Index | None:
        """The index of this number; None for 0. Raises InvalidRequestError if there is none."""
        if number > len(self.indexes):
            raise InvalidRequestError(f"{self.name} has {len(self.indexes)} indexes, and none of number {number}")
        return [*self.indexes.values()][number - 1] if number else None

    def listed_by(self, bodies: Sequence[m.TableList]) -> Sequence[Any]:
        """What has the routing fields of listings and counts."""
        found = []
        for body in bodies:
            names = (self.index(body.index) or self).names
            found.append(types.SimpleNamespace(**dict(zip(names, body.fields, strict=False))))
        return found

    def routed_by(self, fields: Sequence[Any], index: int = 0) -> bool:
        """Whether a listing, or a count, is of one group, because it has all routing fields."""
        names = (self.index(index) or self).names
        return {*names[: len(fields)]} >= {*self.routing}


def _join(names: Sequence[str]) -> Callable[[Any], str]:
    """Makes one text of what an ``attrgetter`` of these names gets."""
    return _BETWEEN.join if len(names) > 1 else str.__str__


def _records(items: Sequence[m.TablePutItem[Any]]) -> Sequence[Any]:
    return [item.record for item in items]


def _keys(items: Sequence[m.TableDeleteItem[Any]]) -> Sequence[Any]:
    return [item.key for item in items]


def _record_bytes(item: Any) -> int:
    """As encoded, with its key."""
    return len(msgspec.msgpack.encode(item.record)) if isinstance(item, m.TablePutItem) else 0
