"""One group's part of a batch, as columns: what is done to all rows is then a call per column, not one per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

SLOTS = 1024
"""Hash buckets of routing keys per group kind. Fixed for the life of a cluster."""


class Rows:
    """Items on their way to their group. All columns are of one length; iterating gives one tuple per row."""

    __slots__ = ("crcs", "items", "keys", "positions")

    def __init__(
        self,
        positions: Sequence[int] = (),
        items: Sequence[Any] = (),
        keys: Sequence[bytes] = (),
        crcs: Sequence[int] = (),
    ) -> None:
        self.positions = positions
        """In the request."""
        self.items = items
        self.keys = keys
        """Behind the table prefix."""
        self.crcs = crcs
        """CRC-32 of the routing fields."""

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[tuple[int, Any, bytes, int]]:
        return zip(self.positions, self.items, self.keys, self.crcs, strict=True)

    def pick(self, indexes: Sequence[int]) -> Rows:
        """Some of the rows, in this order."""
        if not indexes:
            return Rows()
        if len(indexes) == 1:  # of one index, itemgetter makes no tuple
            at = indexes[0]
            return Rows((self.positions[at],), (self.items[at],), (self.keys[at],), (self.crcs[at],))
        pick = itemgetter(*indexes)
        return Rows(pick(self.positions), pick(self.items), pick(self.keys), pick(self.crcs))


def partition(
    items: Sequence[Any], keys: Sequence[bytes], crcs: Sequence[int], slots: Sequence[int]
) -> dict[int, Rows]:
    """The rows of each group; ``slots`` says which group a slot belongs to."""
    groups = [slots[crc & (SLOTS - 1)] for crc in crcs]
    if not groups:
        return {}
    rows = Rows(range(len(groups)), items, keys, crcs)
    if groups.count(groups[0]) == len(groups):
        return {groups[0]: rows}
    parts: dict[int, list[int]] = {group: [] for group in set(groups)}
    for position, group in enumerate(groups):
        parts[group].append(position)
    return {group: rows.pick(positions) for group, positions in parts.items()}
