"""How much may wait at a server."""

from __future__ import annotations

import msgspec


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on what waits for a group. What is more is refused at once, while its sender still listens: work that is
    done after its sender has given up is done in vain, and done again. So the bound divided by the rate of service must
    stay below the senders' timeout, less the longest round trip."""

    items_max: int = 20_000
    """Items that may wait, those being worked on not counted; 0: no bound."""

    def __post_init__(self) -> None:
        """Check the range."""
        if self.items_max < 0:
            raise ValueError(f"items_max must not be below 0, not {self.items_max!r}")

    def admitted(self, waiting: int, arriving: int) -> int:
        """How many of ``arriving`` items are let in where ``waiting`` wait already."""
        return arriving if not self.items_max else max(0, min(arriving, self.items_max - waiting))
