"""The policies that server, SDK, harness and simulation share: pure, seeded, no clock of their own.

Times are seconds unless the name says otherwise. Randomness comes in as a :class:`random.Random`.
"""

from __future__ import annotations

import random

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Capped exponential backoff with full jitter (Brooker, "Exponential Backoff And Jitter", AWS, 2015):
    attempt n waits a uniform share of ``min(cap_s, base_s * 2**n)``."""

    base_s: float = 0.02
    """Mean scale of the first wait."""
    cap_s: float = 2.0
    """No wait is longer."""

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait before retry number ``attempt`` (0 is the first retry)."""
        return rng.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(attempt, 32)))

    def returning_s(self, retry_after_ms: int, retry_jitter_ms: int, rng: random.Random) -> float:
        """Seconds to wait when a server said "come back at t ± j"."""
        return max(0.0, (retry_after_ms + rng.uniform(-retry_jitter_ms, retry_jitter_ms)) / 1000.0)


class BatchWindow(msgspec.Struct, frozen=True, kw_only=True):
    """When to close a batch: at ``items_max`` or ``bytes_max``, or ``linger_s`` after its first item."""

    items_max: int = 1_000
    """At 1,000 items an fsync is 0.1 % of the batch's cost; more only adds latency."""
    bytes_max: int = 1024 * 1024
    """Bounds the memory of one batch."""
    linger_s: float = 0.0
    """0 closes it at the end of the current turn of the event loop."""

    def is_full(self, items: int, size_bytes: int) -> bool:
        """Whether a batch of this many items and bytes should be closed now."""
        return items >= self.items_max or size_bytes >= self.bytes_max
