"""One change, and what it is that a type checker knows of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from metad_wire.messages import Revision
from metad_wire.table import ROWS, Table
from metad_wire.tables.declaration import FIRST_NUMBER
from metad_wire.tables.table import DECLARED, PlainTable
from metad_wire.watch import ChangeKind

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar  # which checkers bring with them

    Key = DefaultTypeVar("Key", covariant=True, default=Any)
    Record = DefaultTypeVar("Record", covariant=True, default=Any)
    Of = DefaultTypeVar("Of", covariant=True, default=str)
    Wanted = DefaultTypeVar("Wanted", covariant=True, default=Any)
else:
    Key, Record, Of, Wanted = map(TypeVar, ("Key", "Record", "Of", "Wanted"))
Item = TypeVar("Item", covariant=True)
_RECORD: Final = DECLARED.rows["record"]
Event = TypeVar("Event")


class WatchEvent(msgspec.Struct, Generic[Key, Record, Of], frozen=True):
    """One change, or one record of a snapshot: ``WatchEvent[KvKey, Kv]``."""

    table: Of
    row: str
    """Of the table: ``owner`` or ``properties`` of a session, ``offset`` or ``generation`` of a consumer group;
    ``record`` of most tables."""
    kind: ChangeKind
    """What has happened. Of a record of a snapshot: WRITTEN."""
    key: Key
    """:class:`KvKey`, :class:`SessionKey`, … None for the cluster map, which is one record."""
    record: Record | None
    """As it is since the change: :class:`Kv`, :class:`SessionOwner`, … None if it was deleted, or only keys are
    wanted."""
    previous: Record | None
    """As it was before, if the watch asks for it. None: there was none, or it is not known."""
    previous_known: bool
    revision: Revision
    """Of the entry that made the change. All changes of an entry have it in common. Of a record of a snapshot: of the
    change that made it what it is, or 0 if the record does not say."""
    version: int
    """Grows with each change of a key, whatever group the key moves to: the number of the revision."""
    time_ms: int
    """Unix time of the change, by the clock of the group's leader; 0 for a record of a snapshot."""


class Shape(NamedTuple):
    """How a row is decoded."""

    table: str
    row: str
    key: Callable[[bytes], Any]
    record: Callable[[bytes], Any]
    records: Callable[[bytes], list[Any]]
    """Of an encoded array of them."""
    counted: bool


@functools.cache
def shape_of(row: int) -> Shape:
    """Raises KeyError if there is no such row to be watched."""
    return _shape(ROWS[row], row)


def _shape(table: Table[Any], row: int) -> Shape:
    shown = table.shows[row]
    name = next(name for name, byte in table.rows.items() if byte == row)
    make, count = shown.key, 0 if shown.key is None else len(shown.key.__struct_fields__)

    def key(encoded: bytes) -> Any:
        return None if make is None else make(*table.fields_of(encoded, count))

    return Shape(
        table.name,
        name,
        key,
        msgspec.msgpack.Decoder(shown.record).decode,
        msgspec.msgpack.Decoder(list[shown.record]).decode,  # type: ignore[name-defined]
        shown.counted,
    )


Place: TypeAlias = int | bytes
"""Where a row is of: its byte, or of a declared table its number as a key has it."""


class Shapes:
    """How the rows of one watch are decoded: those of a declared table by the table that the program has named."""

    def __init__(self) -> None:
        self.tables: dict[Place, PlainTable[Any]] = {}
        self._declared: dict[Place, Shape] = {}

    def add(self, table: PlainTable[Any]) -> None:
        """The watch may tell of this table."""
        place = table.header[:4]
        self.tables[place], self._declared[place] = table, _shape(table, _RECORD)

    @property
    def declared(self) -> dict[int, str]:
        """The tables that programs have declared: their names by their numbers."""
        return {table.number: table.name for table in self.tables.values() if table.number >= FIRST_NUMBER}

    @staticmethod
    def place(row: int, key: bytes) -> Place:
        """Where a row with this key is of."""
        return key[:4] if row == _RECORD else row

    def at(self, place: Place) -> Shape:
        """The shape of the rows of a place."""
        return shape_of(place) if isinstance(place, int) else self._declared[place]

    def of(self, row: int, key: bytes) -> Shape:
        """The shape of a row with this key."""
        return self._declared[key[:4]] if row == _RECORD else shape_of(row)


class Tells(Protocol[Item]):
    """What tells of tables, by its events."""

    def _told(self) -> Sequence[Item]: ...


class Listened(Tells[Item], Protocol[Item]):
    """The same, where programs listen to it."""

    def _listen(self, listener: Callable[[Any], None]) -> Callable[[], None]: ...


class Several(Protocol[Item]):
    """Any sequence or set, but no str."""

    def __contains__(self, item: object, /) -> bool: ...

    def __iter__(self) -> Iterator[Item]: ...
