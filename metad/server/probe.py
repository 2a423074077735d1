"""Dials a broker to learn whether its process lives. Nothing is sent: whether the host accepts is the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from metad_wire.transport import Stream, Transport

from ..control.brokers.evidence import Answer

TIMEOUT_S = 1.0


class _Silent:
    """Closes the connection at once."""

    def connection_made(self, stream: Stream) -> None:
        stream.abort()

    def data_received(self, data: bytes) -> None:
        """What the broker says is of no interest."""

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        """Nothing is written."""

    def resume_writing(self) -> None:
        """Nothing is written."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It was to end."""


class Probe:
    """A :class:`metad.node.environment.Dial` over a transport without encryption."""

    def __init__(self, transport: Transport, timeout_s: float = TIMEOUT_S) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._dials: set[asyncio.Task[Answer]] = set()

    def __call__(self, host: str, port: int, done: Callable[[Answer], None], /) -> None:
        task = asyncio.get_running_loop().create_task(self.dial(host, port))
        self._dials.add(task)
        task.add_done_callback(partial(self._ended, done))

    def stop(self) -> None:
        """End all dials. Nobody is told."""
        for task in self._dials:
            task.cancel()

    async def dial(self, host: str, port: int) -> Answer:
        """Only a refusal says that nobody listens."""
        try:
            await self._transport.dial(host, port, _Silent, self._timeout_s)
        except ConnectionRefusedError:
            return Answer.REFUSED
        except OSError:
            return Answer.UNKNOWN
        return Answer.ACCEPTED

    def _ended(self, done: Callable[[Answer], None], task: asyncio.Task[Answer]) -> None:
        self._dials.discard(task)
        if not task.cancelled():
            done(Answer.UNKNOWN if task.exception() is not None else task.result())
