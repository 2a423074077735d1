"""The items of a request as columns: what is done to all of them is then a call per column, not one per item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Rows:
    """Items with their keys. All columns are of one length; iterating gives (position, item, key) for each item."""

    __slots__ = ("crcs", "items", "keys")

    def __init__(self, items: Sequence[Any], keys: Sequence[bytes], crcs: Numbers) -> None:
        self.items = items
        self.keys = keys
        """Behind the table prefix."""
        self.crcs = crcs
        """CRC-32 of the routing fields."""

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[int, Any, bytes]]:
        return zip(range(len(self.keys)), self.items, self.keys, strict=True)

    def at(self, positions: Sequence[int]) -> Rows:
        """Take those at these positions."""
        return Rows([self.items[i] for i in positions], [self.keys[i] for i in positions], self.crcs[list(positions)])

    def cut(self, count: int) -> Iterator[Rows]:
        """Pieces of at most so many rows, in order."""
        for at in range(0, len(self), count):
            end = at + count
            yield Rows(self.items[at:end], self.keys[at:end], self.crcs[at:end])


NO_ROWS = Rows((), (), np.empty(0, np.int64))
"""Of a request about no single slot."""


def crcs_of(routing_fields: Sequence[bytes]) -> Numbers:
    """The CRC-32 of each."""
    return column(map(crc32, routing_fields), len(routing_fields))


def column(values: Iterable[int], count: int) -> Numbers:
    """A column of so many integers."""
    return np.fromiter(values, np.int64, count)
