"""How long to wait before a retry."""

from __future__ import annotations

import random
from typing import Literal, get_args

import msgspec

Family = Literal["none", "exponential", "equal", "full", "decorrelated", "proportional"]
FAMILIES: tuple[Family, ...] = get_args(Family)
RetryAfter = Literal["honour", "ignore"]
RETRY_AFTER: tuple[RetryAfter, ...] = get_args(RetryAfter)
_DOUBLINGS_MAX = 32
"""From this attempt on the cap has long been reached, and a float would finally overflow."""
_US = 1_000_000


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Capped exponential backoff. With ``v = min(cap_s, base_s * 2**n)``, retry number n (from 0) waits

    ============== =======================================================
    none           0
    exponential    v
    equal          uniform in [v / 2, v]
    full           uniform in [0, v]
    decorrelated   min(cap_s, uniform in [base_s, 3 * the wait before])
    proportional   uniform in [v * (1 - jitter), v]
    ============== =======================================================

    The first five are those of Brooker, "Exponential Backoff And Jitter" (AWS, 2015); the last is what many MQTT SDKs
    do. Raises ValueError where a value makes no sense.
    """

    base_s: float = 0.02
    """Mean scale of the first wait."""
    cap_s: float = 2.0
    """The longest wait."""
    family: Family = "full"
    """How a wait is drawn from its scale. Full jitter spreads a crowd of clients fastest."""
    jitter: float = 0.1
    """For ``proportional`` only: the share of a wait that is random."""
    retry_after: RetryAfter = "honour"
    """``honour``: where a server says when to come back, come back then. ``ignore``: wait as the family says all the
    same. That is for tests and simulations of clients that do not know better; a server gives them nothing for it."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {self.family!r}")
        if self.retry_after not in RETRY_AFTER:
            raise ValueError(f"retry_after must be one of {', '.join(RETRY_AFTER)}, not {self.retry_after!r}")
        if not 0 <= self.base_s < float("inf"):
            raise ValueError(f"base_s must be a number of seconds from 0 on, not {self.base_s!r}")
        if not self.base_s <= self.cap_s < float("inf"):
            raise ValueError(f"cap_s must be a number of seconds from base_s on, not {self.cap_s!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, not {self.jitter!r}")

    def scale_s(self, attempt: int) -> float:
        """The doubled and capped scale of retry number ``attempt`` (0 is the first), in seconds."""
        return min(self.cap_s, self.base_s * 2.0 ** min(attempt, _DOUBLINGS_MAX))

    def bounds_s(self, attempt: int, previous_s: float) -> tuple[float, float]:
        """The interval that the wait is drawn from, before the cap. ``previous_s``, the previous wait, is for
        ``decorrelated``; 0 if there was none."""
        scale = self.scale_s(attempt)
        if self.family == "none":
            return 0.0, 0.0
        if self.family == "exponential":
            return scale, scale
        if self.family == "equal":
            return scale / 2, scale
        if self.family == "full":
            return 0.0, scale
        if self.family == "proportional":
            return scale * (1.0 - self.jitter), scale
        return self.base_s, max(previous_s, self.base_s) * 3.0

    def wait_s(self, attempt: int, previous_s: float, u: float) -> float:
        """Seconds to wait before retry number ``attempt``; ``u`` is uniform in [0, 1)."""
        low, high = self.bounds_s(attempt, previous_s)
        return min(self.cap_s, low + u * (high - low))

    def wait_us(self, attempt: int, previous_us: int, u: float) -> int:
        """:meth:`wait_s` in whole microseconds, the simulation's clock."""
        return int(self.wait_s(attempt, previous_us / _US, u) * _US)

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait before retry number ``attempt`` (0 is the first retry). Earlier waits are not remembered: a
        family that needs them has them drawn anew."""
        previous = 0.0
        if self.family == "decorrelated":
            for earlier in range(min(attempt, _DOUBLINGS_MAX)):
                previous = self.wait_s(earlier, previous, rng.random())
        return self.wait_s(attempt, previous, rng.random())

    def returning_s(self, retry_after_ms: int, retry_jitter_ms: int, rng: random.Random) -> float:
        """Seconds to wait after a server answered "come back at t ± j"."""
        return max(0.0, (retry_after_ms + rng.uniform(-retry_jitter_ms, retry_jitter_ms)) / 1000.0)
