"""TCP inside a datacenter: the stream transports of asyncio (of uvloop, if installed) with our socket options."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from . import Handler, Listener, StreamHandler, join_endpoint

LISTEN_BACKLOG = 4_096  # a whole broker fleet may dial in the same instant
_HIGH_WATER_BYTES = 1024 * 1024  # unsent bytes on one connection before its handler is asked to pause


class TcpListener:
    """A listening socket."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self._endpoint = join_endpoint(host, port)

    @property
    def endpoint(self) -> str:
        """host:port actually bound."""
        return self._endpoint

    async def close(self) -> None:
        """Stop accepting."""
        self._server.close()


class TcpTransport:
    """Dial and listen over TCP."""

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept connections on host:port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Tuned(factory()), host, port, backlog=LISTEN_BACKLOG, reuse_address=True
        )
        return TcpListener(server)

    async def dial(self, host: str, port: int, factory: Callable[[], Handler], timeout_s: float) -> Handler:
        """Connect within the timeout."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            try:
                _, tuned = await loop.create_connection(lambda: _Tuned(factory()), host, port)
            except (ValueError, OverflowError) as error:  # a host that cannot be encoded, a port out of range
                raise OSError(f"cannot dial {host!r} port {port}: {error}") from error
        return cast("Handler", tuned.handler)


class _Tuned(asyncio.Protocol):
    """Sets the socket options, then steps aside: events go directly to the handler."""

    def __init__(self, handler: StreamHandler) -> None:
        self.handler = handler
        self.data_received = handler.data_received  # type: ignore[method-assign]
        self.eof_received = handler.eof_received  # type: ignore[method-assign]
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]
        self.connection_lost = handler.connection_lost  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self.handler.connection_made(transport)


def install_uvloop() -> bool:
    """Make new event loops use uvloop if it is installed; True if so."""
    try:
        import uvloop
    except ImportError:
        return False
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    return True
