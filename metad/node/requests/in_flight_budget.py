"""The memory that requests take which are answered later, counted and bounded for the whole node."""

from __future__ import annotations

from collections.abc import Callable

from metad_wire.messages import Identity
from metad_wire.policy.fair_room import FairRoom, Place
from metad_wire.policy.returns.return_slots import ReturnShare

from ...control.host import Source, holder_of

# What a decoded item takes beside the bytes it came in: the item, its row, its key, its part of a reply. The shortest
# take 6 bytes on the wire, so counting those alone would let a peer fill the memory forty times over.
ITEM_BYTES = 256
REQUEST_BYTES = 6 * ITEM_BYTES
"""What a request takes beside its items while it waits: requests of one item each are many objects for few bytes."""


class InFlightBudget:
    """Shared by connections as a :class:`FairRoom` is. Requests for which there is no room are told when to come
    back."""

    def __init__(self, bytes_max: int, share: ReturnShare) -> None:
        self._room = FairRoom("bytes of requests in flight", bytes_max, ends="the deadline of the request")
        self._share = share

    @property
    def held(self) -> int:
        """How many bytes are taken now."""
        return self._room.held

    def take(
        self,
        source: Source | None,
        size: int,
        items: int,
        now_s: float,
        identity: Identity | None = None,
        take_back: Callable[[], None] | None = None,
    ) -> Place:
        """Count a request of a connection. ``take_back``: ends it where others need the room, with :meth:`refusal` and
        :meth:`give`. Raises OverloadedError where there is no room. Alone, a request is always taken: however it is
        weighed, it fits."""
        place = self._room.take(holder_of(source), size, take_back, source=source)
        if place is None:
            self._share.refused(now_s)
            raise self._share.returns.refusal("too many request bytes in flight on this node", items, now_s, identity)
        return place

    def let_go(self, place: Place) -> None:
        """It is not begun yet."""
        self._room.give(place)

    def give(self, place: Place, items: int) -> None:
        """It is answered."""
        self._room.give(place)
        self._share.answered(items)
