"""Which writes were told to come back, and when: whoever comes before its slot hears the same again.

So nobody gains by coming early, not over a new connection either: a write is known by its identity, which all its
attempts carry. The memory is bounded. What falls out of it is a write that may come early, nothing worse.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ...messages import Identity

PROMISES_MAX: Final = 65_536
"""Slots that are remembered. Beyond it the first, which is the next to come, is forgotten."""


class Promises:
    """Slots are given out in their order, so the first one here is the next to come. Times are nanoseconds of the
    node's monotonic clock."""

    def __init__(self) -> None:
        self._slots: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    def slot_ns(self, identity: Identity) -> int | None:
        """The slot that this write was promised."""
        return self._slots.get((identity.client_id, identity.seq))

    def keep(self, identity: Identity, slot_ns: int) -> None:
        """Remember a slot, the last that was given out."""
        write = identity.client_id, identity.seq
        self._slots[write] = slot_ns
        self._slots.move_to_end(write)
        if len(self._slots) > PROMISES_MAX:
            self._slots.popitem(last=False)

    def forget_until(self, now_ns: int) -> None:
        """Forget all whose time has come, which costs nothing where there is none."""
        slots = self._slots
        while slots and next(iter(slots.values())) <= now_ns:
            slots.popitem(last=False)
