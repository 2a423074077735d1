"""Connections inside one process, for tests and for a server embedded beside its client.

Bytes travel through the event loop (never re-entrantly), with the same pausing as on a socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from metad_wire.transport import Handler, Listener, StreamHandler, join_endpoint

_HIGH_WATER_BYTES = 1024 * 1024
_CHUNK_BYTES = 256 * 1024  # what asyncio reads from a socket at once


class MemoryStream:
    """One end of a pair."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._name = name
        self.handler: StreamHandler | None = None
        self.peer: MemoryStream | None = None
        self._inbox: deque[bytes] = deque()  # written by the peer, not yet delivered
        self._inbox_bytes = 0
        self._reading = True
        self._scheduled = False
        self._peer_paused = False
        self._eof = False  # the peer has closed
        self._reset = False  # the peer has aborted, or we wrote to a peer that has gone
        self._closing = False
        self._lost = False

    def write(self, data: bytes) -> None:
        peer = self.peer
        if self._closing or peer is None or not data:
            return
        if peer._closing:
            self._reset = True
            if self._reading:
                self._schedule()  # data that the peer sent before it went is delivered first
            else:
                self._close(ConnectionResetError("the peer has gone"))
            return
        for start in range(0, len(data), _CHUNK_BYTES):
            peer._inbox.append(bytes(data[start : start + _CHUNK_BYTES]))
        peer._inbox_bytes += len(data)
        if peer._inbox_bytes > _HIGH_WATER_BYTES and not peer._peer_paused:
            peer._peer_paused = True
            if self.handler is not None:
                self.handler.pause_writing()
        peer._schedule()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule()

    def close(self) -> None:
        if not self._closing:
            self._close(None)
            if self.peer is not None:
                self.peer._eof = True
                self.peer._schedule()

    def abort(self) -> None:
        peer = self.peer
        if peer is not None and not self._lost:
            peer._inbox.clear()
            peer._inbox_bytes = 0
            peer._reset = True
            peer._schedule()
        self._close(None)

    def get_write_buffer_size(self) -> int:
        return 0 if self.peer is None else self.peer._inbox_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._name if name == "peername" else default

    def _schedule(self) -> None:
        if self._reading and not self._scheduled and (self._inbox or self._eof or self._reset):
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self.handler is None:
            return
        while self._inbox and self._reading and not self._closing:
            chunk = self._inbox.popleft()
            self._inbox_bytes -= len(chunk)
            try:
                self.handler.data_received(chunk)
            except BaseException:
                self.abort()  # as asyncio does: a handler that fails loses its connection
                raise
        if self._closing:
            return
        if self._peer_paused and self._inbox_bytes <= _HIGH_WATER_BYTES // 4:
            self._peer_paused = False
            if self.peer is not None and self.peer.handler is not None and not self.peer._closing:
                self.peer.handler.resume_writing()
        if not self._reading:
            return
        if self._reset:
            self._close(ConnectionResetError("the peer has gone"))
        elif self._eof:
            self.handler.eof_received()
            self.close()

    def _close(self, exc: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._inbox.clear()
            self._loop.call_soon(self._lose, exc)

    def _lose(self, exc: Exception | None) -> None:
        self._lost = True
        if self.handler is not None:
            self.handler.connection_lost(exc)


class MemoryTransport:
    """A separate network: a listener on one instance is reached by dialling the same instance."""

    def __init__(self) -> None:
        self._listeners: dict[tuple[str, int], Callable[[], StreamHandler]] = {}
        self._next_port = 1

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept connections. Raises OSError if the address is taken."""
        if port == 0:
            while (host, self._next_port) in self._listeners:
                self._next_port += 1
            port, self._next_port = self._next_port, self._next_port + 1
        if (host, port) in self._listeners:
            raise OSError(f"{host}:{port} is in use")
        self._listeners[host, port] = factory
        return _MemoryListener(self, host, port)

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Connect. Raises ConnectionRefusedError if nobody listens."""
        accept = self._listeners.get((host, port))
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        loop = asyncio.get_running_loop()
        ours, theirs = MemoryStream(loop, f"memory:{host}:{port}"), MemoryStream(loop, "memory:dialled")
        ours.peer, theirs.peer = theirs, ours
        handler = factory()
        ours.handler, theirs.handler = handler, accept()
        theirs.handler.connection_made(theirs)
        handler.connection_made(ours)
        return handler


class _MemoryListener:
    def __init__(self, transport: MemoryTransport, host: str, port: int) -> None:
        self._transport = transport
        self._address = (host, port)

    @property
    def endpoint(self) -> str:
        return join_endpoint(*self._address)

    async def close(self) -> None:
        self._transport._listeners.pop(self._address, None)
