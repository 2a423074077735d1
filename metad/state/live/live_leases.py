"""The leases of a group, and who of their holders was heard of lately."""

from __future__ import annotations

import msgspec

from metad_wire import messages as m
from metad_wire.policy.fair_room import FairRoom, Place
from metad_wire.tables.lease import LEASE

from .live import HEARD, LiveRows

LEASE_BYTES = 1_024
"""What a lease takes of the room at least: the memory of every replica, and its rows."""
LEASES_BYTES_MAX = 96 * 1024 * 1024
"""Of a group."""


class _Room(m.Message, frozen=True):
    """What the row of a lease says of its time and its room."""

    namespace: msgspec.Raw
    lease: msgspec.Raw
    ttl_ms: int
    holder: msgspec.Raw
    attributes: msgspec.Raw
    version: int
    create_revision: int
    mod_revision: int
    keys: int = 0
    key_bytes: int = 0
    left_ms: int = 0
    granted_by: str = ""


_decode = msgspec.msgpack.Decoder(_Room).decode


class LiveLeases(LiveRows):
    """Leases by their key."""

    lasting = (LEASE.rows["lease"],)
    # The keys of leases are heard of so that a command finds those in flight without looking at other rows.
    rows = (*lasting, LEASE.rows["key"], *HEARD)

    def load(self) -> None:
        self.room = FairRoom("bytes of leases of a group", LEASES_BYTES_MAX, ends="their time to live, a day at most")
        """Shared by those who were granted them."""
        self._places: dict[bytes, Place] = {}
        super().load()

    def learn(self, row: int, key: bytes, value: bytes, now_s: float) -> None:
        lease = _decode(value)
        if key not in self._places:
            size = LEASE_BYTES + len(lease.holder) + len(lease.attributes)
            self._places[key] = self.room.hold(lease.granted_by, size)
        self.last(key, lease.ttl_ms, now_s)

    def end(self, key: bytes) -> None:
        self.room.forget(self._places.pop(key, None))
        super().end(key)
