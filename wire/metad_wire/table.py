"""What a table is: a kind of record, declared once. Client and server derive from it what they do with its records.

A declaration is made when its module in :mod:`metad_wire.tables` is imported. Nothing is declared that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec

from .fields import U32
from .key import check_key, text, u32
from .messages import Message
from .method import Body, By, For, Method, Reply

Keys: TypeAlias = tuple[list[bytes], Iterable[int]]
"""Of each item: its key as on disk, behind the table's byte; and the CRC-32 of its routing fields."""
ANY_KIND: Final = "any"
"""Of a table that every group has, whatever its kind."""
_ENCODERS: Final[dict[Any, Callable[[Any], bytes]]] = {str: text, U32: u32}


class Table:
    """One kind of record.

    ``kind``: of the groups that hold it. ``rows``: the rows a record is kept in, as name -> byte behind the group's
    prefix; a byte is never used again. ``record``: what a read returns. ``key``: its fields that identify it, in
    order. ``routing``: the first of those; records that agree in them live in one group, and can change in one entry.
    ``row_cache``: the commands read rows before they write them, and so does every other command that writes them.

    ``crcs`` and ``keys`` may be given where the general encoding is too slow: they must yield the same.
    """

    def __init__(
        self,
        name: str,
        *,
        kind: str,
        rows: Mapping[str, int],
        record: type[Message] | None = None,
        key: Sequence[str] = (),
        routing: Sequence[str] = (),
        row_cache: bool = False,
        crcs: Callable[[Sequence[Any]], Iterable[int]] | None = None,
        keys: Callable[[Sequence[Any]], Keys] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.rows = dict(rows)
        self.record = record
        self.key = tuple(key)
        self.routing = tuple(routing)
        self.row_cache = row_cache
        self.methods: list[Method[Any, Any]] = []
        self.routed: list[Method[Any, Any]] = []
        """Those whose items, or whose body where it has none, have the routing fields."""
        self._encoders = _encoders(self)
        self.crcs: Callable[[Sequence[Any]], Iterable[int]] = crcs or self.general_crcs
        """CRC-32 of the routing fields of each."""
        self.keys: Callable[[Sequence[Any]], Keys] = keys or self.general_keys
        """The keys of items. Raises InvalidRequestError where one is too long."""
        if name in TABLES:
            raise TypeError(f"there is a table {name} already")
        for byte in self.rows.values():
            if byte in ROWS:
                raise TypeError(f"{name}: {ROWS[byte].name} has row {byte:#04x} already")
        TABLES[name] = self
        ROWS.update(dict.fromkeys(self.rows.values(), self))

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    def general_crcs(self, items: Sequence[Any]) -> Iterable[int]:
        """:attr:`crcs`, from the declaration alone."""
        encoders = self._encoders[: len(self.routing)]
        return [crc32(b"".join([encode(getattr(item, field)) for field, encode in encoders])) for item in items]

    def general_keys(self, items: Sequence[Any]) -> Keys:
        """:attr:`keys`, from the declaration alone."""
        keys = [b"".join([encode(getattr(item, field)) for field, encode in self._encoders]) for item in items]
        for position, key in enumerate(keys):
            check_key(key, position)
        return keys, self.general_crcs(items)

    def reads(
        self, code: int, verb: str, body: type[Body], reply: type[Reply], *, routed: bool = True
    ) -> Method[Body, Reply]:
        """Declare a method that changes nothing."""
        return self._method(code, verb, body, reply, mutates=False, by=By.GROUP, whose=For.CLIENTS, routed=routed)

    def writes(
        self,
        code: int,
        verb: str,
        body: type[Body],
        reply: type[Reply],
        *,
        by: By = By.GROUP,
        whose: For = For.CLIENTS,
        routed: bool = True,
    ) -> Method[Body, Reply]:
        """Declare a method that goes through the log."""
        return self._method(code, verb, body, reply, mutates=True, by=by, whose=whose, routed=routed)

    def _method(
        self,
        code: int,
        verb: str,
        body: type[Body],
        reply: type[Reply],
        *,
        mutates: bool,
        by: By,
        whose: For,
        routed: bool,
    ) -> Method[Body, Reply]:
        method = Method(code, f"{self.name}.{verb}", body, reply, mutates=mutates, by=by, whose=whose)
        self.methods.append(method)
        if routed:
            self.routed.append(method)
        return method


TABLES: Final[dict[str, Table]] = {}
"""By name."""
ROWS: Final[dict[int, Table]] = {}
"""The table that uses a byte behind the group's prefix."""


def moving_rows(kind: str) -> list[int]:
    """The rows that go with a slot of groups of this kind."""
    return [byte for byte, table in ROWS.items() if table.kind == kind and table.routing]


def _encoders(table: Table) -> list[tuple[str, Callable[[Any], bytes]]]:
    """How each field of the key is encoded. Raises TypeError where the declaration makes no sense."""
    if table.routing != table.key[: len(table.routing)] or bool(table.key) != bool(table.routing):
        raise TypeError(f"{table.name}: the routing fields are not the first of the key")
    types = {} if table.record is None else {f.name: f.type for f in msgspec.structs.fields(table.record)}
    encoders: list[tuple[str, Callable[[Any], bytes]]] = []
    for field in table.key:
        encode = _ENCODERS.get(types.get(field))
        if encode is None or (encode is u32 and field in table.routing):
            raise TypeError(f"{table.name}: field {field} of the key is neither text nor, behind those that route, U32")
        encoders.append((field, encode))
    return encoders
