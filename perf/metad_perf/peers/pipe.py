"""Connections for protocols whose replies come in the order of the requests: ZooKeeper's and Redis's.

A request is bytes that were encoded before, and the number of its replies. What a protocol adds is how replies are cut
out of the stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from .peer import CALL_TIMEOUT_S

Reply = TypeVar("Reply")
Cut = Callable[[bytearray], list[Reply]]
"""Takes the complete replies from the front of what was received, and removes them."""
_BUFFER_BYTES = 1 << 30
LOST = "connection lost"
TIMEOUT = "timeout"


class Pipe(asyncio.Protocol, Generic[Reply]):
    """One connection."""

    def __init__(self, cut: Cut[Reply]) -> None:
        self._cut = cut
        self._received = bytearray()
        self._waiting: deque[tuple[asyncio.Future[list[Reply] | str], list[Reply], int]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        # What is in flight is bounded by the callers.
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._received += data
        for reply in self._cut(self._received):
            if not self._waiting:
                continue  # an answer to a call that has timed out, or unasked
            future, replies, count = self._waiting[0]
            replies.append(reply)
            if len(replies) == count:
                self._waiting.popleft()
                if not future.done():
                    future.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        while self._waiting:
            future, _, _ = self._waiting.popleft()
            if not future.done():
                future.set_result(LOST)

    async def ask(self, request: bytes, replies: int = 1) -> list[Reply] | str:
        """Send, and wait for so many replies; or why there are none."""
        if self._transport is None or self._transport.is_closing():
            await asyncio.sleep(0)  # a caller's loop must not starve the others
            return LOST
        future: asyncio.Future[list[Reply] | str] = self._loop.create_future()
        self._waiting.append((future, [], replies))
        self._transport.write(request)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await future
        except TimeoutError:
            return TIMEOUT

    def tell(self, request: bytes) -> None:
        """Send what has no reply, or one that is cut away."""
        if self._transport is not None:
            self._transport.write(request)

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()
