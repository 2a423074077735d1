"""The memory that requests take which are answered later, counted and bounded for the whole node."""

from __future__ import annotations

from metad_wire.messages import Identity
from metad_wire.policy.return_share import ReturnShare

# What a decoded item takes beside the bytes it came in: the item, its row, its key, its part of a reply. The shortest
# take 6 bytes on the wire, so counting those alone would let a peer fill the memory forty times over.
ITEM_BYTES = 256


class InFlightBudget:
    """``held`` is how many bytes are taken now. Requests for which there is no room are told when to come back."""

    def __init__(self, bytes_max: int, share: ReturnShare) -> None:
        self._bytes_max = bytes_max
        self._share = share
        self.held = 0

    def take(self, size: int, items: int, now_s: float, identity: Identity | None = None) -> None:
        """Count a request. Raises OverloadedError where there is no room."""
        # Alone, a request is always taken: however it is weighed, it fits.
        if self.held and self.held + size > self._bytes_max:
            self._share.refused(now_s)
            raise self._share.returns.refusal("too many request bytes in flight on this node", items, now_s, identity)
        self.held += size

    def give(self, size: int, items: int) -> None:
        """It is answered."""
        self.held -= size
        self._share.answered(items)
