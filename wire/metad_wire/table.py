"""What a table is: a kind of record, declared once. Client and server derive from it what they do with its records.

A declaration is made when its module in :mod:`metad_wire.tables` is imported. Nothing is declared that nobody reads.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

import msgspec

from . import messages as m
from .cluster import METADATA
from .key import ESCAPED, SLOT_MASK, TEXT_END, split_text, text, u32
from .method import Body, By, For, Lane, Method, Reply, Route
from .text.fields import KEY_FIELDS_MAX

_TEXT_END = TEXT_END.decode()
_HOW: Final = frozenset({"page", "min_revisions", "slots", "after"})
"""The fields in the body of a listing that do not say what is wanted."""
Record = TypeVar("Record", bound=m.Message)
Key = TypeVar("Key", bound=m.Message)
Found = TypeVar("Found")

Keys: TypeAlias = tuple[list[bytes], Iterable[int]]
"""Of each item: its key as on disk, behind the table's byte; and the CRC-32 of its routing fields."""
Keyed: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Of each item: what has the fields of the key."""
ANY_KIND: Final = "any"
"""Of a table that every group has, whatever its kind."""


class Got(NamedTuple):
    """What a method finds that reads keys."""

    key: type[m.Message]
    found: Any
    """Of each key. A message may be missing, other values never are."""
    about: str
    """What it is, in a sentence about all keys of a request."""

    @property
    def may_miss(self) -> bool:
        """Whether there may be nothing for a key."""
        return isinstance(self.found, type) and issubclass(self.found, m.Message)


class Batched(NamedTuple):
    """What a method writes that is done with each item by itself, and nothing beside."""

    named: str
    """What the SDK calls its items."""
    about: str
    """What it does with all of them. It names errors of items as on the wire."""


class Listed(NamedTuple):
    """What a method finds that lists."""

    found: Any
    order: tuple[str, ...]
    """The fields of what is found that tell one from the others, in the order of the listing."""
    asked: tuple[str, ...]
    """The fields of the body that say what is wanted."""
    about: str
    """What it is, in sentences about all."""


class Shown(NamedTuple):
    """What a watch shows of a row."""

    key: type[m.Message] | None
    """Has the first fields of the table's key, or all; None if the row has one record only."""
    record: Any
    """The type of the value as stored."""
    counted: bool = False
    """Whether the record has ``version``, ``create_revision`` and ``mod_revision``, so that it says by itself whether
    this write created it."""


TABLES: Final[dict[str, Table[Any]]] = {}
"""By name."""
ROWS: Final[dict[int, Table[Any]]] = {}
"""The table that uses a byte behind the group's prefix."""


class Table(Generic[Record]):
    """One kind of record.

    ``kind``: of the groups that hold it. ``rows``: the rows a record is kept in, as name -> byte behind the group's
    prefix; a byte is never used again. ``record``: what a read returns. ``key``: its fields that identify it, in
    order. ``routing``: the first of those, or all; records that agree in them live in one group, and can change in one
    entry. Empty, of tables of ``metadata-0`` only: the records are in no slots.
    ``row_cache``: the commands read rows before they write them, and so does every other command that writes them.
    ``key_bytes`` says how long the longest key is that an item names, as encoded; by default that of the item, which
    has the fields of the key.
    ``value_bytes_max``: of one record's value; ``value_bytes`` says how many an item has.
    ``part_of``: the table whose records these belong to: its key is the first fields of theirs, and routes them.
    ``ordered_by``: bytes of a fixed width that stand in front of the key on disk, and order the rows.
    ``shows``: the rows that a watch may show, by name.

    ``crcs`` and ``keys`` may be given where the general encoding is too slow: they must yield the same.
    """

    header: bytes = b""
    """What its keys begin with, in front of their fields."""

    hears: str = ""
    """The field of a record with the names of brokers that a watch by broker tells of it; empty: there is none. A
    session is told to its owner, and to who owned it before."""
    moves: bool
    """Whether its rows go with their slots."""
    fits_bytes: int
    """No item of a request of so many bytes has a value that is too long."""

    def __init__(
        self,
        name: str,
        *,
        kind: str,
        rows: Mapping[str, int],
        record: type[Record] | None = None,
        key: Sequence[str] = (),
        routing: Sequence[str] | None = None,
        row_cache: bool = False,
        key_bytes: Callable[[Any], int] | None = None,
        value_bytes_max: int = m.VALUE_BYTES_MAX,
        value_bytes: Callable[[Any], int] | None = None,
        part_of: str = "",
        ordered_by: int = 0,
        shows: Mapping[str, Shown] = types.MappingProxyType({}),
        crcs: Callable[[Sequence[Any]], Iterable[int]] | None = None,
        keys: Callable[[Sequence[Any]], Keys] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.rows = dict(rows)
        self.record = record
        self.key = tuple(key)
        self.routing = self.key if routing is None else tuple(routing)
        self.row_cache = row_cache
        self.part_of = part_of
        self.ordered_by = ordered_by
        self.moves = bool(self.routing)
        self.key_bytes = key_bytes or self._key_bytes
        self.value_bytes_max = self.fits_bytes = value_bytes_max
        self.value_bytes = value_bytes or _no_value
        self.methods: list[Method[Any, Any]] = []
        self.routed: dict[Method[Any, Any], Keyed | None] = {}
        """Those whose items have the routing fields, or whose body has them if it has no items; and for each what of an
        item has them, None if the item itself does."""
        self.got: dict[Method[Any, Any], Got] = {}
        """Those that read keys."""
        self.batched: dict[Method[Any, Any], Batched] = {}
        """Those that write what each item says."""
        self.listed: dict[Method[Any, Any], Listed] = {}
        """Those that list."""
        self._encoders = _encoders(self)
        # The fields that the key begins with are texts for the most part, which one split parts.
        self._first_texts = next((at for at, (_, encode) in enumerate(self._encoders) if encode is not text), len(key))
        self.crcs: Callable[[Sequence[Any]], Iterable[int]] = crcs or self.general_crcs
        """CRC-32 of the routing fields of each."""
        self.keys: Callable[[Sequence[Any]], Keys] = keys or self.general_keys
        """The keys of items."""
        self.shows: dict[int, Shown] = {self.rows[row]: shown for row, shown in shows.items()}
        """What a watch shows, by the byte of the row."""
        self._register()

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    def _register(self) -> None:
        """Raises TypeError if another table has its name or a row."""
        if self.name in TABLES:
            raise TypeError(f"there is a table {self.name} already")
        for byte in self.rows.values():
            if byte in ROWS:
                raise TypeError(f"{self.name}: {ROWS[byte].name} has row {byte:#04x} already")
        TABLES[self.name] = self
        ROWS.update(dict.fromkeys(self.rows.values(), self))

    def shown(self, row: int) -> Shown | None:
        """What a watch shows of a row; None if that is nothing."""
        return self.shows.get(row)

    def general_crcs(self, items: Sequence[Any]) -> Iterable[int]:
        """:attr:`crcs`, from the declaration alone."""
        encoders = self._encoders[: len(self.routing)]
        return [crc32(b"".join([encode(getattr(item, field)) for field, encode in encoders])) for item in items]

    def general_keys(self, items: Sequence[Any]) -> Keys:
        """:attr:`keys`, from the declaration alone."""
        keys = [self.key_of([getattr(item, field) for field in self.key]) for item in items]
        return keys, self.general_crcs(items)

    def fault(self, item: Any) -> str | None:
        """Why an item of a request must be refused, whatever is stored; None if it need not."""
        return self.key_fault(item) or self.value_fault(item)

    def key_fault(self, item: Any) -> str | None:
        """The same of what identifies the record alone."""
        size = self.key_bytes(item)
        return f"its key fields take {size} bytes, {m.KEY_BYTES_MAX} are allowed" if size > m.KEY_BYTES_MAX else None

    def value_fault(self, item: Any) -> str | None:
        """The same of what is to be stored alone."""
        size, size_max = self.value_bytes(item), self.value_bytes_max
        return f"its value takes {size} bytes, {size_max} are allowed" if size > size_max else None

    def key_of(self, fields: Sequence[Any]) -> bytes:
        """The first fields of a key, encoded."""
        return b"".join([encode(value) for value, (_, encode) in zip(fields, self._encoders, strict=False)])

    def fields_of(self, key: bytes, count: int) -> list[Any]:
        """The first ``count`` fields of an encoded key. Raises ValueError if it is no such key."""
        first = min(count, self._first_texts)
        if first == len(self.key) and ESCAPED not in key:
            named = key.decode().split(_TEXT_END, first)
            if len(named) <= first:
                raise ValueError(f"{key!r} is no key of {self.name}")
            return named[:first]
        *texts, rest = key.split(TEXT_END, first)
        if len(texts) < first:
            raise ValueError(f"{key!r} is no key of {self.name}")
        if ESCAPED in key:
            texts = [part.replace(ESCAPED, b"\0") for part in texts]
        fields: list[Any] = [part.decode() for part in texts]
        at = 0
        for _, encode in self._encoders[first:count]:
            if encode is text:
                value, at = split_text(rest, at)
                fields.append(value)
            else:
                fields.append(int.from_bytes(rest[at : at + 4], "big"))
                at += 4
        if at > len(rest):
            raise ValueError(f"{key!r} is no key of {self.name}")
        return fields

    def slot_of(self, key: bytes) -> int | None:
        """The slot of an encoded key, with what orders it; None if the table is not routed. Raises ValueError if it is
        no such key."""
        if not self.routing:
            return None
        begin = end = self.ordered_by
        for _ in self.routing:
            end = key.index(TEXT_END, end) + len(TEXT_END)
        return crc32(key[begin:end]) & SLOT_MASK

    def slots_of(self, keys: Sequence[bytes]) -> list[int] | None:
        """:meth:`slot_of` of keys of this table, five times as fast where a key is nothing but what it is routed by."""
        if not self.routing:
            return None
        if self.routing == self.key and not self.ordered_by:
            return [crc32(key) & SLOT_MASK for key in keys]
        return [typing.cast("int", self.slot_of(key)) for key in keys]

    def is_text(self, number: int) -> bool:
        """Whether this field of the key is text; else it is an integer of 32 bits."""
        return self._encoders[number][1] is text

    def reads(
        self,
        code: int,
        verb: str,
        body: type[Body],
        reply: type[Reply],
        lane: Lane,
        *,
        by: By = By.GROUP,
        whose: For = For.CLIENTS,
        routed: bool = True,
        keyed: Keyed | None = None,
        repeatable: bool = True,
    ) -> Method[Body, Reply]:
        """Declare a method that writes nothing."""
        name = f"{self.name}.{verb}"
        method = Method(code, name, body, reply, lane, mutates=False, by=by, whose=whose, repeatable=repeatable)
        return self._declared(method, routed, keyed)

    def gets(
        self, code: int, verb: str, key: type[Key], found: type[Found], about: str, *, by: By = By.GROUP
    ) -> Method[m.Get[Key], m.GetReply[Found]]:
        """Declare a method that reads ``found`` of each ``key``. The SDK's methods, the rows of the pages and the cases
        of the tests follow from this; ``about`` says what is found, in a sentence about all keys."""
        body, reply = self._of(verb, m.Get[key]), self._of(f"{verb}_reply", m.GetReply[found])  # type: ignore[valid-type]
        method = self.reads(code, verb, body, reply, Lane.RECORDS, by=by, routed=bool(self.routing))
        self.got[method] = Got(key, found, about)
        return method

    def batches(
        self,
        code: int,
        verb: str,
        item: type[Key],
        about: str,
        *,
        named: str = "items",
        lane: Lane = Lane.RECORDS,
        by: By = By.GROUP,
        whose: For = For.CLIENTS,
    ) -> Method[m.Items[Key], m.WriteReply]:
        """Declare a method that writes what each ``item`` says, or refuses the item. The same follows as from
        :meth:`gets`."""
        body = self._of(verb, m.Items[item])  # type: ignore[valid-type]
        method = self.writes(code, verb, body, m.WriteReply, lane, by=by, whose=whose, routed=bool(self.routing))
        self.batched[method] = Batched(named, about)
        return method

    def lists(
        self,
        code: int,
        verb: str,
        body: type[Body],
        found: type[Found],
        about: str,
        *,
        order: Sequence[str] = (),
        lane: Lane = Lane.SCANS,
        by: By = By.GROUP,
        keyed: Keyed | None = None,
    ) -> Method[Body, m.ListReply[Found]]:
        """Declare a method that lists ``found``, a page at a time: of all groups if its body names ``slots``, else of
        the one that has its routing fields. The same follows as from :meth:`gets`. ``order``: of what is found; by
        default it is the table's."""
        fields = body.__struct_fields__
        routed = bool(self.routing) and ("slots" not in fields or keyed is not None)
        reply = self._of(f"{verb}_reply", m.ListReply[found])  # type: ignore[valid-type]
        method = self.reads(code, verb, body, reply, lane, by=by, routed=routed, keyed=keyed)
        asked = fields[: min(map(fields.index, _HOW.intersection(fields)))]
        self.listed[method] = Listed(found, tuple(order) or self.key, asked, about)
        return method

    def writes(
        self,
        code: int,
        verb: str,
        body: type[Body],
        reply: type[Reply],
        lane: Lane,
        *,
        by: By = By.GROUP,
        whose: For = For.CLIENTS,
        routed: bool = True,
        keyed: Keyed | None = None,
    ) -> Method[Body, Reply]:
        """Declare a method that goes through the log."""
        method = Method(code, f"{self.name}.{verb}", body, reply, lane, mutates=True, by=by, whose=whose)
        return self._declared(method, routed, keyed)

    def _declared(self, method: Method[Body, Reply], routed: bool, keyed: Keyed | None) -> Method[Body, Reply]:
        self.methods.append(method)
        method.table = self
        if routed:
            self.routed[method] = keyed
            method.route = Route(
                self.kind, self.crcs if keyed is None else lambda items: self.crcs(keyed(items)), self.fault
            )
        return method

    def _of(self, what: str, general: Any) -> type[Any]:
        """A message of this table that is a general one of some records."""
        return named_message(f"{self.name}_{what}".title().replace("_", ""), general)

    def _key_bytes(self, item: Any) -> int:
        return len(self.key_of([getattr(item, field) for field in self.key]))


def named_message(name: str, general: Any) -> type[Any]:
    """A message of this name that is a general one of some records."""
    return types.new_class(name, (general,), {"frozen": True})


def moving_rows(kind: str) -> list[int]:
    """The rows that go with a slot of groups of this kind."""
    return [byte for byte, table in ROWS.items() if table.kind in (kind, ANY_KIND) and table.moves]


def _no_value(item: Any) -> int:
    return 0


def _encoders(table: Table[Any]) -> list[tuple[str, Callable[[Any], bytes]]]:
    """How each field of the key is encoded. Raises TypeError where the declaration makes no sense."""
    slotless = table.kind == METADATA.kind and not table.routing
    if table.routing != table.key[: len(table.routing)] or (bool(table.key) != bool(table.routing) and not slotless):
        raise TypeError(f"{table.name}: the routing fields are not the first of the key")
    if len(table.key) > KEY_FIELDS_MAX:
        raise TypeError(f"{table.name}: a key has at most {KEY_FIELDS_MAX} fields")
    fields = {} if table.record is None else {f.name: f.type for f in msgspec.structs.fields(table.record)}
    encoders: list[tuple[str, Callable[[Any], bytes]]] = []
    for field in table.key:
        encode = _encoder_of(fields.get(field))
        if encode is None or (encode is u32 and field in table.routing):
            raise TypeError(f"{table.name}: field {field} of the key is neither text nor, behind those that route, U32")
        encoders.append((field, encode))
    return encoders


def _encoder_of(kind: Any) -> Callable[[Any], bytes] | None:
    """Of a field of a key; None if it has no place in one."""
    match msgspec.inspect.type_info(kind):
        case msgspec.inspect.StrType():
            return text
        case msgspec.inspect.LiteralType(values) if all(isinstance(value, str) for value in values):
            return text
        case msgspec.inspect.IntType(ge=int(low), le=int(high)) if low >= 0 and high < 2**32:
            return u32
    return None
