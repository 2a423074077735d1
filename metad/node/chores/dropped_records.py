"""Deletes the records of tables that were dropped, in the groups that this node leads.

Once a minute it goes through the tables of which a group has records, with one look at the store for each. Which tables
are dropped its copy of ``metadata-0`` says: those whose numbers were given, and which are not there. A number is never
given again, so what is deleted is nobody's, also where another node has not heard of the drop yet and writes on:
the next pass finds that.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metad_wire.errors import MetadError
from metad_wire.methods import TABLE_SWEEP
from metad_wire.tables.declaration import FIRST_NUMBER
from metad_wire.tables.table import DECLARED, INDEXES, TableSweep

from ...state.cluster.declarations import Declarations
from ...storage import keys
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_PASS_S: Final = 60.0
_BYTES: Final = 256 * 1024
_TABLES: Final = 64
"""Looked at in one go."""
_NUMBER_BYTES: Final = 4


class DroppedRecords(Chore):
    """Has those of one group deleted."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means) -> None:
        super().__init__(driver, batch, means)
        self._begin_s = 0.0
        """No pass begins before."""
        self._number = 0
        """The next table is this or behind it; 0 between two passes."""
        self._indexed = False
        """Whether this pass has come to the indexes."""

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
            self._ask(TABLE_SWEEP, TableSweep(found, self._indexed), partial(self._answered, done))
        else:
            self._environment.call_soon(partial(done, 0))
        return True

    def _find(self) -> list[bytes]:
        """The keys of records of the next dropped table, some of them. None between passes, or if there was no such
        table among those that were looked at."""
        machine, known = self._driver.machine, self._driver.machine.parts[Declarations].known
        row = INDEXES.rows["index"] if self._indexed else DECLARED.rows["record"]
        prefix = keys.table_prefix(self._driver.group.prefix, row)
        engine, end = machine.reader.engine, keys.after_prefix(prefix)
        for _ in range(_TABLES):
            rows = engine.scan(prefix + self._number.to_bytes(_NUMBER_BYTES, "big"), end, 1)
            if not rows:
                self._indexed = not self._indexed
                self._number = FIRST_NUMBER if self._indexed else 0
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
