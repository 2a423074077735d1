"""TCP inside a datacenter: the stream transports of asyncio (of uvloop, if installed) with our socket options."""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from ..program.forks import let_go_in_forks
from . import Handler, Listener, StreamHandler, join_endpoint
from .pace import Pace

LISTEN_BACKLOG = 4_096  # a whole broker fleet may dial in the same instant
_ACCEPTED_AT_ONCE: Final = 16  # in one turn of the loop
_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SCARCE_S: Final = 1.0  # then the next connection is tried
_FULL_S: Final = 0.1  # then one of those that are open may be over
_HUNG_UP: Final = getattr(select, "POLLRDHUP", select.POLLHUP)  # what only Linux has sees a half-closed one, too
_HIGH_WATER_BYTES = 1024 * 1024  # unsent bytes on one connection before its handler is asked to pause

_log = logging.getLogger("metad")


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


def _cannot_accept(why: str) -> None:
    _log.warning("cannot_accept", extra={"fields": {"error": why}})


class PacedListener:
    """Listening sockets whose connections are accepted at a pace. Those that wait stay in the kernel's queue.

    ``factory`` makes the protocol of a connection, and is given what to call once it has ended. ``cannot`` is told why
    no connection is accepted for a moment."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[Callable[[], None]], asyncio.Protocol],
        pace: Pace,
        *,
        cannot: Callable[[str], None] = _cannot_accept,
        encryption: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.sockets = sockets
        """That listen; none once it is closed."""
        self._factory = factory
        self._pace = pace
        self._cannot = cannot
        self._encryption = encryption
        self._begun: set[asyncio.Task[None]] = set()
        self._behind = False  # connections wait that could not be accepted when they came
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        host, port = sockets[0].getsockname()[:2]
        self._endpoint = join_endpoint(host, port)
        for sock in sockets:
            self._watch(sock)

    @property
    def endpoint(self) -> str:
        """host:port actually bound."""
        return self._endpoint

    async def close(self) -> None:
        """Stop accepting."""
        self.stop()

    def stop(self) -> None:
        """Stop accepting."""
        for timer in self._timers.values():
            timer.cancel()
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self.sockets, self._timers = [], {}

    def _watch(self, sock: socket.socket) -> None:
        self._timers.pop(sock, None)
        self._loop.add_reader(sock, self._accept, sock)

    def _pause(self, sock: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(sock)
        self._timers[sock] = self._loop.call_later(seconds, self._watch, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            now_s = self._loop.time()
            full = self._pace.open >= self._pace.open_max
            if full and self._pace.waits:
                self._cannot(f"{self._pace.open} are open, as many as may be")
            wait_s = _FULL_S if full and self._pace.waits else self._pace.wait_s(now_s)
            if wait_s:
                self._behind = True
                self._pause(sock, wait_s)
                return
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._behind = False
                return
            except OSError as error:  # of the new connection, unless something is scarce here
                if error.errno in _SCARCE:
                    self._cannot(str(error))
                    self._pause(sock, _SCARCE_S)
                return
            if full:  # a descriptor is wanted elsewhere
                accepted.close()
                continue
            accepted.setblocking(False)
            if self._behind and _has_hung_up(accepted):  # it takes nobody's turn: otherwise only such would be served
                accepted.close()
                continue
            self._pace.take(now_s, waited=self._behind)
            self._pace.open += 1
            task = self._loop.create_task(self._begin(accepted))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)
        self._behind = True

    async def _begin(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._factory(self._closed), accepted, ssl=self._encryption
            )
        except OSError:
            self._closed()

    def _closed(self) -> None:
        self._pace.open -= 1


def _has_hung_up(accepted: socket.socket) -> bool:
    """Whether a client that waited has given up, whatever it has sent before."""
    look = select.poll()
    look.register(accepted, _HUNG_UP)
    return bool(look.poll(0))


async def bound(host: str | None, port: int) -> list[socket.socket]:
    """Sockets that listen on each address of a host."""
    loop = asyncio.get_running_loop()
    flags = socket.AI_PASSIVE
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


class TcpTransport:
    """Dial and listen over TCP. ``pace``: of the connections that are accepted; None: all at once."""

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace

    async def listen(self, host: str, port: int, factory: Callable[[], StreamHandler]) -> Listener:
        """Accept connections on host:port."""
        if self._pace is not None:
            sockets = await bound(host, port)
            return PacedListener(sockets, lambda closed: _Tuned(factory(), closed), self._pace)
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
                transport, tuned = await loop.create_connection(lambda: _Tuned(factory()), host, port)
            except (ValueError, OverflowError) as error:  # a host that cannot be encoded, a port out of range
                raise OSError(f"cannot dial {host!r} port {port}: {error}") from error
        let_go_in_forks(transport)
        return cast("Handler", tuned.handler)


class _Tuned(asyncio.Protocol):
    """Sets the socket options, then steps aside: events go directly to the handler. ``closed`` is called at the end."""

    def __init__(self, handler: StreamHandler, closed: Callable[[], None] | None = None) -> None:
        self.handler = handler
        self._closed = closed
        self.data_received = handler.data_received  # type: ignore[method-assign]
        self.eof_received = handler.eof_received  # type: ignore[method-assign]
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self.handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._closed is not None:
            self._closed()
        self.handler.connection_lost(exc)


def install_uvloop() -> bool:
    """Make new event loops use uvloop if it is installed; True if so."""
    try:
        import uvloop
    except ImportError:
        return False
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    return True
