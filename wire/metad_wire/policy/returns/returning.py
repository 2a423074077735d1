"""When clients that a server refused should come back."""

from __future__ import annotations

import msgspec

_NS = 1_000_000_000


class ReturnSlots(msgspec.Struct, frozen=True, kw_only=True):
    """The rule behind "come back at t ± j": each refused client gets the next free slot of a budget of returns, so that
    all come back as fast as they can be served and no faster. The budget is the cluster's; each server gives out its
    share.

    The state is one number, the *next* free slot, a time in nanoseconds; 0 at first. Raises ValueError for a value out
    of range.
    """

    per_s: float
    """Slots per second."""
    wait_min_s: float = 0.05
    """The shortest wait that a client is given."""
    jitter_s: float = 0.05
    """A random time that clients add or subtract, so that clocks and batches do not line them up again."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 < self.per_s < float("inf"):
            raise ValueError(f"per_s must be over 0, not {self.per_s!r}")
        for field in ("wait_min_s", "jitter_s"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be a number of seconds from 0 on, not {getattr(self, field)!r}")

    @property
    def interval_ns(self) -> int:
        """The distance between two slots in whole nanoseconds, at least one."""
        return max(1, round(_NS / self.per_s))

    @property
    def wait_min_ns(self) -> int:
        """``wait_min_s`` in whole nanoseconds."""
        return round(self.wait_min_s * _NS)

    @property
    def jitter_us(self) -> int:
        """``jitter_s`` in whole microseconds."""
        return round(self.jitter_s * 1e6)

    def reserve_ns(self, now_ns: int, next_ns: int, items: int = 1) -> tuple[int, int]:
        """Returns the slot of a client that is refused at ``now_ns`` with so many items, and the next free slot after
        all of them: a request comes back as a whole, at the first of its items' slots."""
        slot_ns = max(next_ns, now_ns + self.wait_min_ns)
        return slot_ns, slot_ns + items * self.interval_ns

    def replanned_ns(self, now_ns: int, next_ns: int, promised: int) -> int:
        """The next free slot from now on, where another rule has given slots up to ``next_ns``, and so many items that
        have a slot have not come. Fewer slots per second than before put it off, until what was promised too densely
        has been worked off. More do not bring it forward: those who were promised a time come at that time."""
        return max(next_ns, now_ns + promised * self.interval_ns)

    def wait_us(self, now_us: int, slot_ns: int, u: float) -> int:
        """Microseconds that a client waits for its slot, with its own jitter; ``u`` in [0, 1)."""
        return max(0, slot_ns // 1000 - now_us + int(u * (2 * self.jitter_us + 1)) - self.jitter_us)
