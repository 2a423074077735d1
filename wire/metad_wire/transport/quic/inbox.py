"""Datagrams of one connection that wait for its turn, in order. The caller that fills it bounds it."""

from __future__ import annotations

from collections import deque

from .sockets import Address


class Inbox:
    """Runs of datagrams, each from one address: a peer may change its address."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: deque[tuple[list[bytes], Address]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, datagrams: list[bytes], address: Address) -> None:
        """Append datagrams. Keeps the list, and may change it."""
        self._count += len(datagrams)
        if self._runs and self._runs[-1][1] == address:
            self._runs[-1][0].extend(datagrams)
        else:
            self._runs.append((datagrams, address))

    def take(self, most: int) -> tuple[list[bytes], Address]:
        """The first datagrams, up to ``most``, all from one address. The inbox must not be empty."""
        datagrams, address = self._runs[0]
        if len(datagrams) <= most:
            self._runs.popleft()
        else:
            self._runs[0] = datagrams[most:], address
            datagrams = datagrams[:most]
        self._count -= len(datagrams)
        return datagrams, address

    def clear(self) -> int:
        """Drop all datagrams and return their number."""
        count, self._count = self._count, 0
        self._runs.clear()
        return count
