"""What lasts for as long as somebody speaks for it: leases, and the members of consumer groups.

Every replica knows the rows, so whoever is elected goes on at once. Only the leader hears of holders; it gives
everybody a full lease when it begins to lead (:mod:`metad.node.chores.leases` tells when), and so does the adoption of
slots. What is said here is never written: a keep-alive costs no entry.
"""

from __future__ import annotations

from metad_wire.tables import ROWS
from metad_wire.tables.cluster import GROUP

from ...storage.engine import Engine
from ...storage.keys import GROUP_PREFIX_BYTES, after_prefix, table_prefix
from ..core.part import Origin, PartContext, StatePart, Writes
from ..core.slot_assignment import adopted_move, state_key, unpack
from .liveness import Liveness

STATE = GROUP.rows["state"]
_MOVE = GROUP.rows["move"]
HEARD = (STATE, _MOVE)
"""A part that is one of these hears of these rows, too."""
_SCAN_ROWS, _SCAN_BYTES = 1_000, 1024 * 1024


class LiveRows(StatePart):
    """Rows with a time to live, by their key behind the row's byte. Time is the node's monotonic clock."""

    lasting: tuple[int, ...]
    """The bytes of the rows that end when they are over; no two of them have a key in common."""

    def __init__(self, context: PartContext) -> None:
        self._engine: Engine = context.engine
        self._clock = context.clock
        self._prefixes = {row: table_prefix(context.group, row) for row in self.lasting}
        self._skip = GROUP_PREFIX_BYTES + 1
        self._slot_of = ROWS[self.lasting[0]].slot_of
        self._state_key = state_key(context.group)
        self._ending: dict[bytes, int] = {}  # rows whose end is evaluated -> by which entry
        self._written = 0  # the last entry that was evaluated and writes such rows
        self.any = False
        """Whether there may be such rows, those in flight included."""

    def load(self) -> None:
        self._live: Liveness[bytes] = Liveness()
        self._ttl_ms: dict[bytes, int] = {}
        self._aside: dict[bytes, None] = {}  # rows that are over, of slots that are not held
        self._slots = b""  # the slots that were held when rows were put aside
        self._adopted = adopted_move(self._engine.get(self._state_key))
        now_s = self._clock()
        for row, begin in self._prefixes.items():
            end = after_prefix(begin)
            while rows := self._engine.scan(begin, end, _SCAN_ROWS, _SCAN_BYTES):
                for key, value in rows:
                    self.learn(row, key[self._skip :], value, now_s)
                begin = rows[-1][0] + b"\0"
        self.any = bool(self._ttl_ms)

    def learn(self, row: int, key: bytes, value: bytes, now_s: float) -> None:
        """A row is this from now on: see :meth:`last`."""
        raise NotImplementedError

    def last(self, key: bytes, ttl_ms: int, now_s: float) -> None:
        """A row lasts for so long."""
        if self._ttl_ms.get(key) != ttl_ms:  # else it was written for another reason
            self._ttl_ms[key] = ttl_ms
            self._live.add(key, ttl_ms / 1000, now_s)

    def end(self, key: bytes) -> None:
        """There is no such row, or it lasts for ever."""
        self._live.remove(key)
        self._ttl_ms.pop(key, None)
        self._aside.pop(key, None)

    def __len__(self) -> int:
        return len(self._ttl_ms)

    # --- what happens to the rows ------------------------------------------------------------------------

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        for key, value in writes.items():
            if key[GROUP_PREFIX_BYTES] not in self._prefixes:
                return
            if value is None:
                self._ending[key[self._skip :]] = index
            else:
                self.any, self._written = True, index

    def stage(self, index: int, origin: Origin, writes: Writes) -> None:
        if self._state_key in writes:
            adopted = adopted_move(writes[self._state_key])
            if adopted != self._adopted:
                self._adopted = adopted
                self.amnesty()
            return
        now_s = self._clock()
        for key, value in writes.items():
            row = key[GROUP_PREFIX_BYTES]
            if row == _MOVE:  # what was not served is now, or soon: nobody could speak for it
                self.amnesty()
            if row not in self._prefixes:
                return
            name = key[self._skip :]
            if value is not None:
                self.learn(row, name, value, now_s)
                continue
            self.end(name)
            if self._ending.get(name, index) <= index:
                self._ending.pop(name, None)
        self.any = bool(self._ttl_ms) or self._written > index

    def forget(self) -> None:
        self._ending.clear()
        self._written = 0
        self.any = bool(self._ttl_ms)

    # --- who lives ---------------------------------------------------------------------------------------

    def renew(self, key: bytes, at_s: float | None) -> int:
        """The holder was heard of at this time, or now: the time to live in milliseconds; 0: there is no such row, or
        its end is on its way."""
        ttl_ms = self._ttl_ms.get(key, 0)
        if not ttl_ms or key in self._ending:
            return 0
        now_s = self._clock()
        self._live.answered(key, now_s if at_s is None else at_s, now_s)
        return ttl_ms

    def amnesty(self) -> None:
        """Nothing ends before its whole time from now on has passed."""
        self._live.amnesty(self._clock())

    def over(self, slots: bytes) -> list[bytes]:
        """The rows of these slots that are over and have not ended, some of them if there are many. Only a leader that
        hears of holders can know; ``slots`` is the bit map of those that it holds. Rows of others have come early, or
        are yet to be dropped. They are put aside, and last for a whole time again once other slots are held."""
        now_s, held = self._clock(), unpack(slots)
        if slots != self._slots:
            self._slots = slots
            for key in self._aside:
                self._live.heard(key, now_s)
            self._aside.clear()
        found = []
        for key in self._live.over(now_s):
            if not held[self._slot_of(key) or 0]:
                self._live.put_aside(key)
                self._aside[key] = None
            elif key not in self._ending:
                found.append(key)
        return found

    @property
    def lags(self) -> bool:
        """Whether :meth:`over` has not looked at all rows that may be over."""
        return self._live.lags

    def left_ms(self, key: bytes) -> int:
        """For how long a row lasts if nothing is heard of its holder. Only a leader that hears of holders knows."""
        ends_s = self._live.ends_s(key)
        return 0 if ends_s is None else max(0, int((ends_s - self._clock()) * 1_000))

    def is_over(self, key: bytes) -> bool:
        """Whether the time of a row that there is has passed, and its end is not on its way."""
        ends_s = self._live.ends_s(key)
        return ends_s is not None and ends_s <= self._clock() and key not in self._ending
