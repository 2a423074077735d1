"""The records of one table of an image, as a program reads them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Generic, Protocol, TypeVar

from metad_wire.table import Table
from metad_wire.tables.table import PlainTable

from .event import Shape

Key = TypeVar("Key")
Record = TypeVar("Record")


class Shown(Protocol):
    """Where the records of a view are."""

    def get(self, key: bytes) -> Any:
        """The record of an encoded key; None if there is none."""

    def records(self) -> list[tuple[bytes, Any]]:
        """All, as they are now."""

    def __len__(self) -> int: ...


class ImageTable(Mapping[Key, Record], Generic[Key, Record]):
    """The records of one table as the image has them: key -> record, to read only. Of a declared table the fields of
    the key are a key as well: ``("acme", "press")``. It changes while the event loop
    runs; to iterate over it shows the records that there were at the beginning of the iteration."""

    def __init__(self, name: str, table: Table[Any], row: int, shape: Shape, shown: Shown) -> None:
        self._name = name
        self._shape = shape
        self._table = table
        self._type = table.shows[row].key
        self._shown = shown

    def __repr__(self) -> str:
        return f"<ImageTable {self._name} records={len(self)}>"

    def __getitem__(self, key: Key) -> Record:
        record: Record | None = self._shown.get(self._encoded(key))
        if record is None:
            raise KeyError(key)
        return record

    def __contains__(self, key: object) -> bool:
        return self._shown.get(self._encoded(key)) is not None

    def __iter__(self) -> Iterator[Key]:
        for key, _ in self._shown.records():
            yield self._shape.key(key)

    def __len__(self) -> int:
        return len(self._shown)

    def items(self) -> ItemsView[Key, Record]:
        """Keys and records."""
        return _Items(self)

    def values(self) -> ValuesView[Record]:
        """The records."""
        return _Values(self)

    def _encoded(self, key: Any) -> bytes:
        if self._type is None and key is None:
            return b""
        table = self._table
        if isinstance(table, PlainTable) and isinstance(key, tuple) and len(key) == len(table.key):
            if (why := table.fields_fault(key)) is not None:
                raise TypeError(f"a key of {self._name}: {why}")
            return table.key_of(key)
        if self._type is None or type(key) is not self._type:
            wanted = "None" if self._type is None else self._type.__name__
            if isinstance(table, PlainTable):
                wanted = f"({', '.join(table.key)})"
            raise TypeError(f"a key of {self._name} is {wanted}, not {key!r}")
        return table.key_of([getattr(key, field) for field in key.__struct_fields__])

    def pairs(self) -> Iterator[tuple[Key, Record]]:
        """:meth:`items`, quickly."""
        for key, record in self._shown.records():
            yield self._shape.key(key), record

    def all(self) -> Iterator[Record]:
        """:meth:`values`, quickly."""
        for _, record in self._shown.records():
            yield record


class _Items(ItemsView[Any, Any]):
    _mapping: ImageTable[Any, Any]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping.pairs()


class _Values(ValuesView[Any]):
    _mapping: ImageTable[Any, Any]

    def __iter__(self) -> Iterator[Any]:
        return self._mapping.all()
