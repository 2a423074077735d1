"""Random keys and values, drawn anew for every batch at about 0.2 µs per record.

Values are slices of a pool of random bytes at offsets that change with every batch: nothing repeats, nothing
compresses, and each costs only a copy. Keys are drawn independently and uniformly over the key space. Deterministic by
seed; knows no message.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import overload

_POOL_BYTES = 4 * 1024 * 1024
_LISTED_NAMES_MAX = 1_000_000  # more strings than this cost more memory than formatting them costs time


class Names(Sequence[str]):
    """``format % i`` for 0 ≤ i < count: a stored list if that is small, otherwise formatted on demand."""

    def __init__(self, format_: str, count: int, first: int = 0) -> None:
        self._format = format_
        self._first = first
        self._count = count
        self._listed = [format_ % i for i in range(first, first + count)] if count <= _LISTED_NAMES_MAX else None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if self._listed is not None:
            return self._listed[index]
        if isinstance(index, slice):
            return [self._format % (self._first + i) for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._format % (self._first + index % self._count)

    def at(self, indexes: Sequence[int]) -> list[str]:
        """The names at these indexes."""
        if self._listed is not None:
            listed = self._listed
            return [listed[i] for i in indexes]
        format_, first = self._format, self._first
        return [format_ % (first + i) for i in indexes]

    def pick(self, rng: random.Random, count: int) -> list[str]:
        """``count`` names, uniformly and independently."""
        if self._listed is not None:
            return rng.choices(self._listed, k=count)
        format_, first = self._format, self._first
        return [format_ % (first + i) for i in rng.choices(range(self._count), k=count)]


class Values:
    """Random values of one size."""

    def __init__(self, rng: random.Random, value_bytes: int) -> None:
        self._rng = rng
        self._value_bytes = value_bytes
        self._pool = rng.randbytes(max(_POOL_BYTES, 4 * value_bytes))

    def pick(self, count: int) -> list[bytes]:
        """``count`` values that overlap as little as the pool's size allows."""
        size, pool = self._value_bytes, self._pool
        room = len(pool) - size
        step = max(1, min(size, room // 2 // count))
        begin = int(self._rng.random() * (room - step * (count - 1)))
        return [pool[at : at + size] for at in range(begin, begin + step * count, step)]

    def one(self) -> bytes:
        """One value."""
        begin = int(self._rng.random() * (len(self._pool) - self._value_bytes))
        return self._pool[begin : begin + self._value_bytes]


class Walk:
    """Every index of a process's share of 0 ≤ i < count once per round, in a scattered order, round after round.

    An affine step (i + stride) mod length with a stride that shares no factor with the length visits everything without
    a list of ten million numbers. ``rounds`` grows when a round begins.
    """

    def __init__(self, rng: random.Random, count: int, share: int = 0, shares: int = 1) -> None:
        self._share, self._shares = share, shares
        self.length = len(range(share, count, shares))
        self.rounds = 0
        self._at = 0
        self._taken = 0
        self._stride = 1
        if self.length > 2:
            self._stride = rng.randrange(self.length // 3, self.length)
            while math.gcd(self._stride, self.length) != 1:
                self._stride += 1

    def take(self, count: int) -> list[int]:
        """The next ``count`` indexes; a round may end among them."""
        share, shares, length, stride, at = self._share, self._shares, self.length, self._stride, self._at
        taken = []
        for _ in range(count):
            taken.append(share + shares * at)
            at = (at + stride) % length
        self._at = at
        self._taken += count
        if self._taken >= length:
            self._taken -= length
            self.rounds += 1
        return taken
