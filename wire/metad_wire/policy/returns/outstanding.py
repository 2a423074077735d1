"""How many items have slots that have not come. Pure: times are arguments, in nanoseconds."""

from __future__ import annotations

from collections import deque
from typing import Final

_BUCKET_NS: Final = 50_000_000
"""Slots of so long a time are counted together, so that not every request takes memory."""


class Outstanding:
    """The items that have a slot from a time on. Slots are added in their order."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int]] = deque()  # number, items
        self._items = 0

    def add(self, slot_ns: int, items: int) -> None:
        """So many items have a slot at that time."""
        bucket = slot_ns // _BUCKET_NS
        if self._buckets and self._buckets[-1][0] >= bucket:
            bucket, before = self._buckets.pop()
            self._buckets.append((bucket, before + items))
        else:
            self._buckets.append((bucket, items))
        self._items += items

    def items(self, now_ns: int) -> int:
        """How many have one from now on, or had one a moment ago."""
        first = now_ns // _BUCKET_NS
        while self._buckets and self._buckets[0][0] < first:
            self._items -= self._buckets.popleft()[1]
        return self._items
