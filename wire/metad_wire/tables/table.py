"""Tables that are declared as data: records that are put, read, deleted and listed by their keys.

All of them have the same methods. A request names its table by the *number* that the declaration was given
(``declaration.declare``, ``declaration.get``); the numbers below 1024 are those of the tables in the code. What stands
for a record is an array of the fields of the table, in their order, and for a key one of the fields of its key.

Which group has a record: the routing fields of its key give the slot (*Routing*), and the group of the table's kind
that holds the slot has the record. So records of different tables whose routing fields are the same, and whose kinds
are, live in one group.

Item errors of ``put``: ``invalid_item`` if a field is not what the table says, ``conflict`` if ``expected_version`` is
not that of the record. Of ``delete``: ``not_found`` if there is no record, whatever version was expected, and
``conflict``. A listing that has all routing fields asks the group that holds what is listed; otherwise ask every group
of the kind (*Listings*). It is an ``invalid_request`` if it has more fields than the key, or one of another type, if it
has a prefix for a field that is not text, or if ``after`` lacks fields of the key.

A node may not have heard of a table yet that was declared a moment ago, or of its newest fields: ``unknown_table``.
Nothing was done; try again. ``not_found`` for a request as a whole: the table was dropped.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import msgspec

from .. import messages as m
from ..key import SLOT_MASK, TEXT_END, u32
from ..method import For, Lane, Method
from ..table import ANY_KIND, Keyed, Keys, Listed, Shown, Table
from ..text.fields import Batch

Record = TypeVar("Record", bound=m.Message)
_BETWEEN: Final = TEXT_END.decode()
HEADER_BYTES: Final = 5
"""Of a key: the number of the table as u32, and how many of the fields route as u8."""


class DeclaredRows(Table[Any]):
    """The rows of all tables that are declared as data. Behind the byte a key has the number of its table, how many of
    the fields route, and the fields: so everybody knows the slot of a row who has never heard of its table."""

    def __init__(self, name: str, *, rows: Mapping[str, int]) -> None:
        super().__init__(name, kind=ANY_KIND, rows=rows)
        self.moves = True

    def slot_of(self, key: bytes) -> int:
        begin = end = HEADER_BYTES
        for _ in range(key[HEADER_BYTES - 1]):
            end = key.index(TEXT_END, end) + len(TEXT_END)
        return crc32(key[begin:end]) & SLOT_MASK

    def slots_of(self, keys: Sequence[bytes]) -> list[int]:
        return [self.slot_of(key) for key in keys]

    def shown(self, row: int) -> Shown:
        return _SHOWN


DECLARED: Final = DeclaredRows("table", rows={"record": 0x60})
"""Where the records of declared tables are, whatever the kind of their groups."""
_RECORD: Final = DECLARED.rows["record"]


def _of(record: str, general: Any) -> type[Any]:
    """A general message, of some records."""
    name = f"{record}{general.__origin__.__name__.removeprefix('Table')}"
    return types.new_class(name, (general,), {"frozen": True})


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


class TableSweep(m.Message, frozen=True):
    """Between nodes: delete these records, whose table was dropped. A slot is that of the key, as it is on disk."""

    items: Batch[bytes]
    """Keys behind the byte of the row."""


TABLE_SWEEP = DECLARED.writes(0x0605, "sweep", TableSweep, m.WriteReply, Lane.SCANS, whose=For.NODES, routed=False)


class Plain(NamedTuple):
    """The methods of a table whose records are put, read, deleted and listed, and no more."""

    get: Method[Any, Any]
    put: Method[Any, Any]
    delete: Method[Any, Any]
    list: Method[Any, Any]
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

    def __init__(
        self,
        name: str,
        *,
        number: int,
        kind: str,
        record: type[Record],
        key: Sequence[str],
        routing: Sequence[str] | None = None,
    ) -> None:
        routing = key if routing is None else routing
        self.number = number
        self.header = u32(number) + bytes((len(routing),))
        """What its keys begin with."""
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

    def key_of(self, fields: Sequence[Any]) -> bytes:
        return self.header + super().key_of(fields)

    def fields_of(self, key: bytes, count: int) -> list[Any]:
        return super().fields_of(key[HEADER_BYTES:], count)

    def _key_bytes(self, item: Any) -> int:
        return super()._key_bytes(getattr(item, "record", getattr(item, "key", item)))

    def _methods(self) -> Plain:
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
            method: Method[Any, Any] = Method(
                general.code,
                general.name.replace(DECLARED.name, self.name, 1),
                body,
                reply,
                general.lane,
                mutates=general.mutates,
                by=general.by,
                repeatable=general.repeatable,
                shared=True,
            )
            return self._declared(method, True, keyed)

        name = record.__name__
        listing = of(TABLE_LIST, m.TableList, _of(name, m.ListReply[read]), self.listed_by)
        self.listed[listing] = Listed(read, tuple(f"record.{name}" for name in self.key), ("fields", "prefix"), "")
        return Plain(
            of(TABLE_GET, _of(name, m.TableGet[key]), _of(name, m.GetReply[read])),
            of(TABLE_PUT, _of(name, m.TablePut[record]), m.TablePutReply, _records),  # type: ignore[valid-type]
            of(TABLE_DELETE, _of(name, m.TableDelete[key]), m.WriteReply, _keys),
            listing,
            key,
            tuple(name for name in fields if name not in self.key),
        )

    def method(self, general: Method[Any, Any]) -> Method[Any, Any]:
        """Return its own method of this code."""
        return self.plain[general.code - TABLE_GET.code]  # type: ignore[return-value]

    def listed_by(self, bodies: Sequence[m.TableList]) -> Sequence[Any]:
        """What has the routing fields of listings."""
        return [types.SimpleNamespace(**dict(zip(self.key, body.fields, strict=False))) for body in bodies]


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
