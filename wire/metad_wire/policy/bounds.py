"""The bounds of what flows: the size of a batch, what may wait at a server, the retries of a caller."""

from __future__ import annotations

import msgspec

_US = 1_000_000


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token bucket of retries, as the virtual clock of the generic cell rate algorithm (ITU-T I.371): ``burst``
    retries may be made at once, and one more every ``interval_s``. A retry that finds no token waits for the next one.

    The state is one number, the *clock*: the time, in microseconds, at which the bucket would be full again; 0 at
    first. Raises ValueError where a value makes no sense.
    """

    burst: int = 10
    """Retries that need not wait. Ten outlast an election with the default backoff."""
    interval_s: float = 1.0
    """Time after which a token comes back."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.burst < 1:
            raise ValueError(f"burst must be at least 1, not {self.burst!r}")
        if not 0 < self.interval_s < float("inf"):
            raise ValueError(f"interval_s must be a number of seconds over 0, not {self.interval_s!r}")

    @property
    def interval_us(self) -> int:
        """``interval_s`` in whole microseconds, at least one."""
        return max(1, round(self.interval_s * _US))

    def reserve_us(self, wanted_us: int, clock_us: int) -> tuple[int, int]:
        """Take a token for a retry wanted at ``wanted_us``. Returns the time of the retry, and the new clock."""
        interval_us = self.interval_us
        due_us = max(wanted_us, clock_us - (self.burst - 1) * interval_us)
        return due_us, max(clock_us, due_us) + interval_us


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds the work that waits for a group. Items over the bound are refused at once, while their sender still waits:
    work done after the sender has given up is wasted, and then done again. So the bound divided by the rate of service
    must stay below the senders' timeout, less the longest round trip. A bound by time keeps to that whatever the rate.
    """

    items_max: int = 20_000
    """Items that may wait, without those being worked on; 0: no bound."""
    wait_max_s: float = 0.0
    """How long an item may wait, by the rate of service; 0: no bound."""
    items_min: int = 1_000
    """Items that may wait however low the rate: who admits nothing never learns that it could."""
    round_trip_s: float = 0.1
    """What a sender's deadline is shortened by: the answer has to be back by then."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.items_max < 0:
            raise ValueError(f"items_max must not be below 0, not {self.items_max!r}")
        if self.items_min < 1:
            raise ValueError(f"items_min must be at least 1, not {self.items_min!r}")
        for field in ("wait_max_s", "round_trip_s"):
            if not 0 <= getattr(self, field) < float("inf"):
                raise ValueError(f"{field} must be a number of seconds from 0 on, not {getattr(self, field)!r}")

    def admitted(
        self,
        waiting: int,
        arriving: int,
        per_s: float = 0.0,
        patience_s: float = float("inf"),
        waited_s: float = 0.0,
    ) -> int:
        """How many of ``arriving`` items are admitted while ``waiting`` items wait already, ``per_s`` are served, the
        sender waits for ``patience_s`` from now on, and they have waited for ``waited_s`` to be looked at. Time bounds
        nothing without ``wait_max_s``."""
        bound = self.bound(per_s, patience_s, waited_s)
        return arriving if bound is None else max(0, min(arriving, bound - waiting))

    def is_late(self, waited_s: float, deadline_s: float) -> bool:
        """Whether what has waited so long to be looked at comes too late, if its sender waits ``deadline_s`` in all:
        it would have no time left to wait for the service itself."""
        return waited_s > deadline_s / 2 or 0.0 < self.wait_max_s < waited_s

    def bound(self, per_s: float, patience_s: float = float("inf"), waited_s: float = 0.0) -> int | None:
        """How many items may wait; None: any number."""
        if not self.wait_max_s:
            return self.items_max or None
        wait_s = max(0.0, min(self.wait_max_s - waited_s, patience_s - self.round_trip_s))
        bound = max(self.items_min, int(per_s * wait_s))
        return min(bound, self.items_max) if self.items_max else bound


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
