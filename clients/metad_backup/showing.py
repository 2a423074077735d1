"""What is in a backup: counted, listed, found, and compared with another.

Records are shown as a watch shows them. What two backups of different clusters have in common is compared by keys and
values as they are stored, wherever the slots are; times of the log count as how long ago they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from metad.state.cluster.declarations import read_tables
from metad.state.moving.restoring import KEPT_ROWS
from metad.state.moving.slot_migration import translated
from metad.storage import keys
from metad_client.watch.event import Shape, Shapes
from metad_wire.families import FAMILIES
from metad_wire.table import ROWS, TABLES, moving_rows
from metad_wire.tables.broker import BROKER
from metad_wire.tables.table import DECLARED

from .copies import Copy, Part, Row
from .repository import BackupError

_RECORD: Final = DECLARED.rows["record"]
_BROKER: Final = BROKER.rows["record"]
_AT_MS: Final = 1 << 50
"""Times of two logs are compared as by one whose time is this."""
_DIFFERENCES_MAX: Final = 1_000


class Found(NamedTuple):
    """A record of a backup."""

    table: str
    row: str
    """Of those that a record of the table is kept in."""
    key: dict[str, Any]
    value: Any
    """A Struct, bytes or an int."""


class Shown:
    """The records of a backup."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._shapes = Shapes()
        self._numbers: dict[str, int] = {}
        for table in (*FAMILIES.values(), *(declared.table() for declared in read_tables(copy.metadata.engine))):
            self._shapes.add(table)
            self._numbers[table.name] = table.number

    def counts(self) -> dict[str, int]:
        """How many rows each table has that are shown, by ``table.row`` where a table has several kinds."""
        found: Counter[str] = Counter()
        for row, page in self._pages(None):
            for key, _ in page:
                found[self._name(row, key)] += 1
        return dict(sorted(found.items()))

    def records(self, table: str = "", begin: Sequence[str] = (), text: str = "") -> Iterator[Found]:
        """The records of a table, or of all, in the order of their keys within a group. ``begin``: only those whose key
        has these first fields. ``text``: only those that have it in a field of the key, or in the value."""
        table, _, part = table.partition(".")
        for row, page in self._pages(table or None):
            for key, value in page:
                found = self._found(row, key, value)
                if (table and found.table != table) or (part and found.row != part):
                    continue
                fields = [*found.key.values()]
                if any(str(field) != wanted for field, wanted in zip(fields, begin, strict=False)):
                    continue
                if len(fields) < len(begin) or (text and not _has(found, value, text)):
                    continue
                yield found

    def _pages(self, table: str | None) -> Iterator[tuple[int, list[Row]]]:
        """Of all rows that are shown."""
        if table is not None and table not in TABLES and table not in self._numbers:
            raise BackupError(f"there is no table {table!r} in the backup")
        for part in self._copy.parts:
            rows = moving_rows(part.group.kind)
            if part is self._copy.metadata:
                rows = [*rows, *(row for row, one in ROWS.items() if one.kind == part.group.kind and not one.moves)]
            for row in rows:
                if not _is_shown(row):
                    continue
                begin = b""
                if row == _RECORD and table is not None:
                    if table not in self._numbers:
                        continue
                    begin = self._numbers[table].to_bytes(4, "big")
                elif table not in (None, ROWS[row].name):
                    continue
                for page in self._copy.rows(part, row, begin):
                    yield row, page

    def _name(self, row: int, key: bytes) -> str:
        if row == _RECORD:
            return self._shapes.of(row, key[1:]).table
        table = ROWS[row]
        return table.name if len(table.rows) == 1 or len(table.shows) == 1 else f"{table.name}.{_name_of(row)}"

    def difference(self, what: str, row: int, key: bytes) -> Difference:
        """Say which record of this backup a row is of."""
        if not _is_shown(row):  # of an index, or one that a group keeps for itself
            return Difference(what, ROWS[row].name, _name_of(row), {"bytes": key[1:]})
        if _is_plain(row):  # its fields stand in the value
            _, value = next(self._copy.rows(self._copy.metadata, row, key[1:]))[0]
            found = self._found(row, key, value)
            return Difference(what, found.table, found.row, found.key)
        shape = self._shapes.of(row, key[1:])
        return Difference(what, shape.table, shape.row, _fields(shape, key))

    def _found(self, row: int, key: bytes, value: bytes) -> Found:
        if _is_plain(row):
            table = ROWS[row]
            record = msgspec.msgpack.decode(value, type=table.record)
            return Found(table.name, "", {name: getattr(record, name) for name in table.key}, record)
        shape = self._shapes.of(row, key[1:])
        return Found(shape.table, shape.row, _fields(shape, key), shape.record(value))


def _fields(shape: Shape, key: bytes) -> dict[str, Any]:
    named = shape.key(key[1:])
    return {} if named is None else msgspec.structs.asdict(named)


def _name_of(row: int) -> str:
    return next(name for name, byte in ROWS[row].rows.items() if byte == row)


def _is_shown(row: int) -> bool:
    return row in ROWS[row].shows or row == _RECORD or _is_plain(row)


def _is_plain(row: int) -> bool:
    """Whether a row is of a table of ``metadata-0`` that no watch shows, and that keeps its records as they are."""
    table = ROWS[row]
    return not table.shows and not table.moves and table.record is not None and len(table.rows) == 1


def _has(found: Found, value: bytes, text: str) -> bool:
    return any(text in str(field) for field in found.key.values()) or text.encode() in value


# --- two backups ------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A row that two backups do not have in common."""

    what: str
    """``only_first``, ``only_second`` or ``differ``."""
    table: str
    row: str
    """Of those that a record of the table is kept in."""
    key: dict[str, Any]
    """As :class:`Found` has it; of a row that no listing shows its ``bytes``."""


class Compared(NamedTuple):
    """What two backups have in common."""

    rows: int
    """That are the same in both."""
    only_first: int
    only_second: int
    differ: int
    """Of one key, with other values."""
    differences: list[Difference]
    """The first of them."""


def compared(one: Copy, other: Copy) -> Compared:
    """Compare all rows that a restore brings, whatever groups they are in. Slots with the same rows are told by sums of
    checksums; only rows of others are held in memory."""
    first, second = _sums(one, other), _sums(other, one)
    counts: Counter[str] = Counter()
    differences: list[Difference] = []
    mine_shown, others_shown = Shown(one), Shown(other)
    unlike: defaultdict[int, set[int]] = defaultdict(set)
    for at in first.keys() | second.keys():
        if first.get(at) == second.get(at):
            counts["rows"] += first[at][0]
        else:
            unlike[at[0]].add(at[1])
    for row, slots in sorted(unlike.items()):
        mine, others = _rows_in(one, other, row, slots), _rows_in(other, one, row, slots)
        for key in sorted(mine.keys() | others.keys()):
            what = "only_first" if key not in others else "only_second" if key not in mine else "differ"
            if mine.get(key) == others.get(key):
                what = "rows"
            counts[what] += 1
            if what != "rows" and len(differences) < _DIFFERENCES_MAX:
                differences.append((others_shown if what == "only_second" else mine_shown).difference(what, row, key))
    return Compared(counts["rows"], counts["only_first"], counts["only_second"], counts["differ"], differences)


def _is_from(copy: Copy, source: Copy) -> bool:
    """Whether one backup is of a cluster into which the other was put."""
    return any(part.restored is not None and part.restored.backup.startswith(source.manifest.id) for part in copy.parts)


def _zero_ms(part: Part, of: Copy, other: Copy) -> int:
    """What times of a group count from, so that they are the same in both backups. In one cluster they are what they
    are. A restore puts them ahead, from the newest entry in the backup to when the group has begun to take it in."""
    if part.restored is not None and part.restored.backup.startswith(other.manifest.id):
        return part.restored.began_ms
    return part.now_ms if _is_from(other, of) else 0


def _rows_of(copy: Copy, other: Copy) -> Iterator[tuple[int, bytes, bytes]]:
    """All rows that a restore brings as they are, by their byte, with times that count from the same in both."""
    for row in sorted(KEPT_ROWS - {_BROKER}):  # lives are over in one of them
        for page in copy.rows(copy.metadata, row):
            yield from ((row, key, value) for key, value in page)
    for part in copy.parts:
        zero_ms = _zero_ms(part, copy, other)
        for row in moving_rows(part.group.kind):
            for page in copy.rows(part, row):
                moved = translated(dict(page), _AT_MS - zero_ms) if zero_ms else dict(page)
                for key, value in moved.items():
                    yield row, key, value or b""


def _sums(copy: Copy, other: Copy) -> dict[tuple[int, int], tuple[int, int]]:
    """Of each row and slot: how many pairs, and the sum of their checksums."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for row, key, value in _rows_of(copy, other):
        at = row, keys.slot_of_key(key) or 0
        count, total = found.get(at, (0, 0))
        found[at] = count + 1, total + int.from_bytes(blake2b(key + b"\0" + value, digest_size=16).digest(), "big")
    return found


def _rows_in(copy: Copy, other: Copy, row: int, slots: Collection[int]) -> dict[bytes, bytes]:
    return {
        key: blake2b(value, digest_size=16).digest()
        for at, key, value in _rows_of(copy, other)
        if at == row and (keys.slot_of_key(key) or 0) in slots
    }
