"""The leases of a group, and who of their holders was heard of lately.

Every replica knows the leases, so whoever is elected goes on at once. Only the leader hears of holders; it gives
everybody a full lease when it begins to lead (:mod:`metad.node.leases` tells when), and so does the adoption of slots.
What is said here is never written: a keep-alive costs no entry.
"""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire.tables.cluster import GROUP
from metad_wire.tables.lease import LEASE

from ..storage.engine import Engine
from ..storage.keys import GROUP_PREFIX_BYTES, after_prefix, table_prefix
from .liveness import Liveness
from .part import Origin, PartContext, StatePart, Writes
from .slot_assignment import adopted_move, state_key

_ROW, _KEY_ROW, _STATE = LEASE.rows["lease"], LEASE.rows["key"], GROUP.rows["state"]
_SCAN_ROWS, _SCAN_BYTES = 1_000, 1024 * 1024
_OVER_MAX = 1_000  # leases that are over and not ended yet: what follows waits for these


class _Ttl(m.Message, frozen=True):
    """Of a lease's row."""

    namespace: msgspec.Raw
    lease: msgspec.Raw
    ttl_ms: int


_decode_ttl = msgspec.msgpack.Decoder(_Ttl).decode


class LiveLeases(StatePart):
    """Leases by their key behind the row's byte. Time is the node's monotonic clock."""

    # The keys of leases are heard of so that a command finds those in flight without looking at other rows.
    rows = (_ROW, _KEY_ROW, _STATE)

    def __init__(self, context: PartContext) -> None:
        self._engine: Engine = context.engine
        self._clock = context.clock
        self._prefix = table_prefix(context.group, _ROW)
        self._state_key = state_key(context.group)
        self._ending: dict[bytes, int] = {}  # leases whose end is evaluated -> by which entry
        self._written = 0  # the last entry that was evaluated and writes leases
        self.any = False
        """Whether there may be leases, those in flight included: if not, no key is attached to one."""

    def load(self) -> None:
        self._live: Liveness[bytes] = Liveness()
        self._ttl_ms: dict[bytes, int] = {}
        self._over: dict[bytes, None] = {}  # leases that are over and have not ended yet
        self._adopted = adopted_move(self._engine.get(self._state_key))
        now_s, begin, end = self._clock(), self._prefix, after_prefix(self._prefix)
        while rows := self._engine.scan(begin, end, _SCAN_ROWS, _SCAN_BYTES):
            for key, value in rows:
                self._learn(key[len(self._prefix) :], value, now_s)
            begin = rows[-1][0] + b"\0"
        self.any = bool(self._ttl_ms)

    def _learn(self, lease: bytes, row: bytes, now_s: float) -> None:
        ttl_ms = _decode_ttl(row).ttl_ms
        if self._ttl_ms.get(lease) != ttl_ms:  # else it was written for another reason
            self._ttl_ms[lease] = ttl_ms
            self._live.add(lease, ttl_ms / 1000, now_s)

    def __len__(self) -> int:
        return len(self._ttl_ms)

    # --- what happens to the rows ------------------------------------------------------------------------

    def evaluated(self, index: int, origin: Origin, writes: Writes) -> None:
        for key, value in writes.items():
            if key[GROUP_PREFIX_BYTES] != _ROW:
                return
            if value is None:
                self._ending[key[len(self._prefix) :]] = index
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
            if key[GROUP_PREFIX_BYTES] != _ROW:
                return
            lease = key[len(self._prefix) :]
            if value is not None:
                self._learn(lease, value, now_s)
                continue
            self._live.remove(lease)
            self._ttl_ms.pop(lease, None)
            self._over.pop(lease, None)
            if self._ending.get(lease, index) <= index:
                self._ending.pop(lease, None)
        self.any = bool(self._ttl_ms) or self._written > index

    def forget(self) -> None:
        self._ending.clear()
        self._written = 0
        self.any = bool(self._ttl_ms)

    # --- who lives ---------------------------------------------------------------------------------------

    def renew(self, lease: bytes, at_s: float | None) -> int:
        """The holder was heard of at this time, or now: the time to live in milliseconds; 0: there is no such lease, or
        its end is on its way."""
        ttl_ms = self._ttl_ms.get(lease, 0)
        if not ttl_ms or lease in self._ending:
            return 0
        self._live.heard(lease, self._clock() if at_s is None else at_s)
        return ttl_ms

    def amnesty(self) -> None:
        """Nobody loses a lease before a full one from now on has passed."""
        now_s = self._clock()
        self._live.amnesty(now_s)
        for lease in self._over:
            self._live.heard(lease, now_s)
        self._over.clear()

    def over(self) -> list[bytes]:
        """The leases that are over and have not ended, some of them if there are many. Only a leader that hears of
        holders can know."""
        now_s = self._clock()
        self._over.update(dict.fromkeys(self._live.due(now_s, _OVER_MAX - len(self._over))))
        for lease in [lease for lease in self._over if not self.is_over(lease)]:
            del self._over[lease]  # its holder was heard of
        return [lease for lease in self._over if lease not in self._ending]

    def is_over(self, lease: bytes) -> bool:
        """Whether the time of a lease that there is has passed."""
        ends_s = self._live.ends_s(lease)
        return ends_s is not None and ends_s <= self._clock()
