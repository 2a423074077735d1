"""How much may wait at a server."""

from __future__ import annotations

import msgspec


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds the work that waits for a group. Items over the bound are refused at once, while their sender still waits:
    work done after the sender has given up is wasted, and then done again. So the bound divided by the rate of service
    must stay below the senders' timeout, less the longest round trip."""

    items_max: int = 20_000
    """Items that may wait, without those being worked on; 0: no bound."""

    def __post_init__(self) -> None:
        """Check the range."""
        if self.items_max < 0:
            raise ValueError(f"items_max must not be below 0, not {self.items_max!r}")

    def admitted(self, waiting: int, arriving: int) -> int:
        """How many of ``arriving`` items are admitted while ``waiting`` items wait already."""
        return arriving if not self.items_max else max(0, min(arriving, self.items_max - waiting))
