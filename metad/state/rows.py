"""One group's part of a batch, as columns: what is done to all rows is then a call per column, not one per row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from metad_wire.cluster import SLOTS as SLOTS

Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


class Rows:
    """Items on their way to their group. All columns are of one length; iterating gives one tuple per row."""

    __slots__ = ("crcs", "items", "keys", "positions")

    def __init__(self, positions: Sequence[int], items: Sequence[Any], keys: Sequence[bytes], crcs: Numbers) -> None:
        self.positions = positions
        """In the request."""
        self.items = items
        self.keys = keys
        """Behind the table prefix."""
        self.crcs = crcs
        """CRC-32 of the routing fields."""

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[tuple[int, Any, bytes]]:
        return zip(self.positions, self.items, self.keys, strict=True)

    def pick(self, indexes: Numbers) -> Rows:
        """Some of the rows, in this order."""
        if len(indexes) == len(self):
            return self
        at = indexes.tolist()
        if len(at) < 2:  # itemgetter would make no tuple
            positions, items, keys = self.positions, self.items, self.keys
            return Rows([positions[i] for i in at], [items[i] for i in at], [keys[i] for i in at], self.crcs[indexes])
        pick = itemgetter(*at)
        return Rows(pick(self.positions), pick(self.items), pick(self.keys), self.crcs[indexes])

    def cut(self, count: int) -> Iterator[Rows]:
        """Pieces of at most so many rows, in order."""
        for at in range(0, len(self), count):
            end = at + count
            yield Rows(self.positions[at:end], self.items[at:end], self.keys[at:end], self.crcs[at:end])


NO_ROWS = Rows((), (), (), np.empty(0, np.int64))


def crcs_of(routing_fields: Sequence[bytes]) -> Numbers:
    """The CRC-32 of each."""
    return np.fromiter(map(crc32, routing_fields), np.int64, len(routing_fields))


def column(values: Iterable[int], count: int = -1) -> Numbers:
    """A column of integers; quicker where it is said how many there are."""
    return np.fromiter(values, np.int64, count)


def partition(items: Sequence[Any], keys: Sequence[bytes], crcs: Numbers, slots: Numbers) -> dict[int, Rows]:
    """The rows of each group; ``slots`` says which group a slot belongs to."""
    if not len(crcs):
        return {}
    rows = Rows(range(len(crcs)), items, keys, crcs)
    if len(crcs) == 1:
        return {int(slots[crcs[0] & (SLOTS - 1)]): rows}
    groups = slots[crcs & (SLOTS - 1)]
    order = np.argsort(groups, kind="stable")  # a group's rows stay in the request's order
    groups = groups[order]
    begins = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(groups)]
    return {int(groups[begin]): rows.pick(order[begin:end]) for begin, end in pairwise(begins)}
