"""The leases of a group, and who of their holders was heard of lately."""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire.tables.lease import LEASE

from .live import STATE, LiveRows


class _Ttl(m.Message, frozen=True):
    """Of a lease's row."""

    namespace: msgspec.Raw
    lease: msgspec.Raw
    ttl_ms: int


_decode_ttl = msgspec.msgpack.Decoder(_Ttl).decode


class LiveLeases(LiveRows):
    """Leases by their key."""

    lasting = (LEASE.rows["lease"],)
    # The keys of leases are heard of so that a command finds those in flight without looking at other rows.
    rows = (*lasting, LEASE.rows["key"], STATE)

    def learn(self, row: int, key: bytes, value: bytes, now_s: float) -> None:
        self.last(key, _decode_ttl(value).ttl_ms, now_s)
