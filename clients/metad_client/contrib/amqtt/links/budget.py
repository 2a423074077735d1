"""Bytes that may be in hand at a time."""

from __future__ import annotations

import asyncio
from collections import deque


class Budget:
    """A semaphore of bytes. Whoever comes first is served first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def left(self) -> int:
        """Bytes that nobody has."""
        return self._left

    async def take(self, size: int) -> int:
        """Wait for so many bytes, or for all of them if they are fewer. Returns what is to be given back."""
        size = min(size, self._most)
        if self._left >= size and not self._waiting:
            self._left -= size
            return size
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                self._waiting.remove((size, turn))
                self.give(0)
            raise
        return size

    def give(self, size: int) -> None:
        """Give bytes back."""
        self._left += size
        while self._waiting and self._left >= self._waiting[0][0]:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size
                turn.set_result(None)
