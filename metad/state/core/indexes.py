"""How far the indexes are built that were added to a table which may have had records already.

A slot first *keeps* an index: from that entry on, whoever writes a record of the slot writes its row in the index, too,
and a leader that has not heard of the index yet refuses the write. Then the leader of the group names the records that
lack a row (:mod:`metad.node.chores.tables`). Once it has looked at all of them, the slot is *complete*. A listing by an
index is refused until all slots that it is about are complete: it never shows a part.

A row says both for one table and one slot, and moves with the slot. So what it says holds in whichever group the slot
is, also while the index is built: the groups need not agree. A slot without a row has the indexes that the table was
declared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from metad_wire.cluster import SLOTS
from metad_wire.errors import UnknownTableError
from metad_wire.methods import encode
from metad_wire.tables.table import INDEX_STATES, PlainTable

from ...storage import keys
from .limits import LOOKED_AT_BYTES_MAX
from .part import Origin, PartContext, StatePart, Writes
from .view import Flags, Numbers, View

STATE: Final = INDEX_STATES.rows["built"]
_decode = msgspec.msgpack.Decoder(tuple[int, int]).decode


class _Table(NamedTuple):
    """By slot: how many indexes it keeps, and of how many it is complete; -1 where there is no row."""

    kept: Numbers
    complete: Numbers


class IndexStates(StatePart):
    """What the rows of the applied state say, and which tables have any, also by what is in flight."""

    rows = (STATE,)

    def __init__(self, context: PartContext) -> None:
        self._prefix = keys.table_prefix(context.group, STATE)
        self._engine = context.engine

    def load(self) -> None:
        self._tables: dict[int, _Table] = {}
        self._named: set[int] = set()
        self._staged: list[Writes] = []
        begin, end = self._prefix, keys.after_prefix(self._prefix)
        while rows := self._engine.scan(begin, end, SLOTS):
            self._apply(dict[bytes, bytes | None](rows))
            begin = rows[-1][0] + b"\0"

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        self._named.update(self._split(key)[0] for key in writes)

    def stage(self, index: int, origin: Origin, writes: Writes) -> bool:
        self._staged.append(writes)
        return True

    def applied(self) -> None:
        for writes in self._staged:
            self._apply(writes)
        self._staged = []

    def _apply(self, writes: Writes) -> None:
        for key, value in writes.items():
            number, slot = self._split(key)
            table = self._tables.get(number)
            if table is None:
                self._named.add(number)
                table = self._tables[number] = _Table(np.full(SLOTS, -1), np.full(SLOTS, -1))
            table.kept[slot], table.complete[slot] = (-1, -1) if value is None else _decode(value)

    def _split(self, key: bytes) -> tuple[int, int]:
        number, slot = key[len(self._prefix) : -2], key[-2:]
        return int.from_bytes(number, "big"), int.from_bytes(slot, "big")

    def _key(self, table: PlainTable[Any], slot: int) -> bytes:
        return self._prefix + INDEX_STATES.key_for(table.number, slot)

    # --- the applied state ---

    def unkept(self, table: PlainTable[Any]) -> Flags:
        """The slots that do not keep all indexes of a table."""
        return self._lacks(table, 0, len(table.indexes))

    def incomplete(self, table: PlainTable[Any], index: int) -> Flags:
        """The slots that are not complete of the index of this number."""
        return self._lacks(table, 1, index)

    def _lacks(self, table: PlainTable[Any], column: int, wanted: int) -> Flags:
        found = self._tables.get(table.number)
        least = table.first_indexes
        if found is None:
            return np.full(SLOTS, least < wanted)
        lacks: Flags = np.maximum(found[column], least) < wanted
        return lacks

    # --- what a command must believe in ---

    def has_none(self, table: PlainTable[Any]) -> bool:
        """Whether no slot keeps an index of a table."""
        return not table.first_indexes and table.number not in self._named

    def kept(self, view: View, table: PlainTable[Any], slots: Iterable[int]) -> dict[int, int]:
        """How many indexes each of these slots keeps. Raises UnknownTableError if the table has fewer, as far as this
        node knows."""
        if table.number not in self._named:
            return dict.fromkeys(slots, table.first_indexes)
        found = {slot: kept for slot, (kept, _) in self._states(view, table, [*{*slots}]).items()}
        if (most := max(found.values(), default=0)) > len(table.indexes):
            raise UnknownTableError(f"this node knows {len(table.indexes)} indexes of {table.name}, not {most} yet")
        return found

    def write(self, view: View, table: PlainTable[Any], slots: Sequence[int], count: int, *, complete: bool) -> None:
        """Let these slots keep so many indexes of a table; or be complete of as many, where they keep them."""
        writes = view.writes_of(STATE)
        for slot, (kept, done) in self._states(view, table, slots).items():
            state = (kept, max(done, min(kept, count))) if complete else (max(kept, count), done)
            if state != (kept, done):
                writes[self._key(table, slot)] = encode(state)

    def _states(self, view: View, table: PlainTable[Any], slots: Sequence[int]) -> dict[int, tuple[int, int]]:
        rows = view.get_many([self._key(table, slot) for slot in slots], LOOKED_AT_BYTES_MAX)
        first = (table.first_indexes, table.first_indexes)
        return {slot: first if row is None else _decode(row) for slot, row in zip(slots, rows, strict=True)}
