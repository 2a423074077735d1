"""Clients whose CONNECT waits: for metad, or for the end of an older connection.

Of each client one CONNECT waits at a time. It is let go when a newer one comes, and when its peer has hung up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from amqtt.adapters import WriterAdapter

from .packets import ClientWriter, Packets


class Arrivals:
    """All that wait."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def one(self, client_id: str, reader: Packets, writer: WriterAdapter) -> AsyncIterator[Callable[[], None]]:
        """Around what this task does before CONNACK. Until it calls what this gives, it is cancelled when a newer
        CONNECT comes or its peer hangs up. From then on it is not, because its takeover must have an owner: only the
        socket is closed."""
        task = asyncio.current_task()
        assert task is not None
        older = self._waiting.get(client_id)
        if older is not None:
            older.cancel()
        self._waiting[client_id] = task

        def takes_over() -> None:
            if self._waiting.get(client_id) is task:
                del self._waiting[client_id]

        def hung_up(watching: asyncio.Task[None]) -> None:
            if watching.cancelled():
                return
            if isinstance(writer, ClientWriter):
                writer.abort()
            if self._waiting.get(client_id) is task:
                task.cancel()

        watching = asyncio.create_task(reader.hung_up())
        watching.add_done_callback(hung_up)
        try:
            yield takes_over
        finally:
            takes_over()
            watching.cancel()
