"""What brings a data directory up from the format before, while its node serves.

**From 3 to 4**: beside the counts of a session's rows there is a copy of its properties. The leader of each group has
the missing copies written, through the log, so that all replicas have the same. A node whose directory was of format 3
goes through the sessions of all groups that it has, of those that it follows, too, until it finds none without a copy,
and then notes that its directory is converted. A pass keeps nothing but its place in memory: after a crash the next one
begins anew, and only reads what is written already.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from metad_wire.cluster import SessionCopy
from metad_wire.errors import MetadError, TooLargeError
from metad_wire.messages import SessionKey
from metad_wire.methods import SESSION_COPY
from metad_wire.tables.session import SESSION

from ... import log_events
from ...logs import event
from ...state.core.counts import COPY_BYTES_MAX, lacks_properties
from ...storage import keys
from ..disk.stores import Stores
from ..replicas.driver import GroupDriver
from .chore import Chore, Done, Means

_ROWS: Final = 500
_BYTES: Final = 1024 * 1024
"""So many rows are looked at in one go, some two milliseconds."""
_AGAIN_S: Final = 2.0
"""After a pass that has found something, or that could not go on."""


class Conversion(Chore):
    """Converts what one group has in a directory of format 3."""

    def __init__(self, driver: GroupDriver, batch: int, means: Means, stores: Stores) -> None:
        super().__init__(driver, batch, means)
        self._stores = stores
        self._counts_prefix, self._properties_prefix = (
            keys.table_prefix(driver.group.prefix, SESSION.rows[row]) for row in ("parts", "properties")
        )
        self._at = self._counts_prefix
        self._begin_s = 0.0
        """No pass begins before."""
        self._looked_at = self._found = 0
        self.done = False
        """A pass has found nothing to convert."""

    def begin(self, room: int, done: Done) -> bool:
        now_s = self._environment.now()
        if self.done or not self._stores.identity.converts or self._asking or now_s < self._begin_s:
            return False
        if self._driver.installing:  # another state is put in place
            self._pass_over()
            return False
        engine = self._driver.machine.reader.engine
        rows = engine.scan(self._at, keys.after_prefix(self._counts_prefix), _ROWS, _BYTES)
        skip = len(self._counts_prefix)
        short = [key[skip:] for key, row in rows if lacks_properties(row)]
        stored = engine.get_many([self._properties_prefix + session for session in short])
        lacking = [
            session
            for session, properties in zip(short, stored, strict=True)
            if properties is not None and len(properties) <= COPY_BYTES_MAX
        ]
        self._looked_at += len(rows)
        behind = rows[-1][0] + b"\0" if rows else b""
        if not behind:
            self._end_pass(now_s)
        elif lacking and self._leads():
            lacking = lacking[: self._batch.size]
            self._found += len(lacking)
            behind = self._counts_prefix + lacking[-1] + b"\0"
            items = [SessionKey(*SESSION.fields_of(session, 2)) for session in lacking]
            self._ask(SESSION_COPY, SessionCopy(items), partial(self._answered, done, behind))
            return True
        else:
            self._found += len(lacking)  # the leader's to convert
            self._at = behind
        self._environment.call_soon(partial(done, 0))
        return True

    def _end_pass(self, now_s: float) -> None:
        if not self._found:
            self.done = True
            event(log_events.GROUP_CONVERTED, group=self._driver.group.name, looked_at=self._looked_at)
        self._pass_over()

    def _pass_over(self) -> None:
        self._begin_s = self._environment.now() + _AGAIN_S
        self._at, self._looked_at, self._found = self._counts_prefix, 0, 0

    def _answered(self, done: Done, behind: bytes, outcome: bytes | MetadError) -> None:
        if isinstance(outcome, bytes):
            self._at = behind
        elif not isinstance(outcome, TooLargeError):  # the next batch is smaller
            self._pass_over()
        done(None if isinstance(outcome, MetadError) and not isinstance(outcome, TooLargeError) else 0)
