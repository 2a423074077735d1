"""How many retries one caller may make."""

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
