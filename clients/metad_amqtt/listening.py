"""How connections come to a broker: as many at a time as leave descriptors for metad and for the other brokers.

Where there is no room, the next ones wait outside for a moment, and the log says so now and then. The end of a
connection is known also while nothing is read from it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from amqtt.adapters import StreamReaderAdapter, WebSocketsReader
from amqtt.errors import BrokerError
from websockets import Subprotocol
from websockets.asyncio.server import Server, ServerConnection
from websockets.server import ServerProtocol

from metad_wire.program.open_files import limit_of, peer_files
from metad_wire.transport.pace import Pace
from metad_wire.transport.tcp import PacedListener, bound

from .seldom import Seldom

_BASE_FILES: Final = 64
"""Listeners, logs, connections with metad, and what the interpreter has open."""
_CONNECTIONS_MIN: Final = 8
_FULL_EACH_S: Final = 10.0
_READ_BYTES: Final = 64 * 1024  # of a connection, before no more is taken from the kernel

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

log = logging.getLogger("metad_client.amqtt")
_websockets_log: Final = logging.getLogger("metad_client.amqtt.websockets")
_websockets_log.setLevel(logging.CRITICAL)  # it has a stack trace for each stranger


def for_clients() -> Pace:
    """Connections of clients that may be open, by the limit of the process. Raises BrokerError if it allows none."""
    files = limit_of(resource.RLIMIT_NOFILE)
    left = files - _BASE_FILES - peer_files(files)
    if left < _CONNECTIONS_MIN:
        raise BrokerError(
            f"the process may open {files} files (ulimit -n, LimitNOFILE), which leaves none for clients: let it open "
            "more, 16,384 for example"
        )
    return Pace(open_max=left, waits=True)


def for_brokers() -> Pace:
    """Connections from other brokers that may be open: as many as this one may have to them."""
    return Pace(open_max=peer_files(limit_of(resource.RLIMIT_NOFILE)) // 2, waits=True)


class ClientReader(asyncio.StreamReader):
    """The bytes of a connection, and the news of its end."""

    def __init__(self) -> None:
        super().__init__(_READ_BYTES, asyncio.get_running_loop())
        self._ended = asyncio.Event()

    def feed_eof(self) -> None:
        """Nothing comes any more."""
        super().feed_eof()
        self._ended.set()

    def set_exception(self, exc: Exception) -> None:
        """The connection is lost."""
        super().set_exception(exc)
        self._ended.set()

    async def hung_up(self) -> None:
        """Wait until the peer has hung up."""
        await self._ended.wait()


class ClientReaderAdapter(StreamReaderAdapter):
    """The bytes of a connection, for amqtt."""

    def __init__(self, reader: ClientReader) -> None:
        super().__init__(reader)
        self.hung_up = reader.hung_up


class ClientWebSocket(WebSocketsReader):
    """The messages of a connection, for amqtt."""

    def __init__(self, protocol: ServerConnection) -> None:
        super().__init__(protocol)
        self.hung_up = protocol.wait_closed


class _Instance:
    """A listener as amqtt and websockets know one: :class:`asyncio.Server`."""

    def __init__(self, listener: PacedListener) -> None:
        self._listener = listener
        self.sockets = tuple(listener.sockets)

    def close(self) -> None:
        self._listener.stop()

    async def wait_closed(self) -> None:
        pass

    def is_serving(self) -> bool:
        return bool(self._listener.sockets)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()


def _cannot() -> Callable[[str], None]:
    seldom = Seldom(log, _FULL_EACH_S)
    return lambda why: seldom.warn("no connection is accepted for a moment: %s", why)


async def listen(
    host: str | None, port: int, connected: Connected, pace: Pace, encryption: ssl.SSLContext | None = None
) -> Any:
    """Like :func:`asyncio.start_server`. A connection counts until ``connected`` returns."""
    tasks: set[asyncio.Task[None]] = set()

    def made(closed: Callable[[], None]) -> asyncio.Protocol:
        def begun(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            def over(task: asyncio.Task[None]) -> None:
                tasks.discard(task)
                closed()

            task = asyncio.get_running_loop().create_task(connected(reader, writer))
            tasks.add(task)
            task.add_done_callback(over)

        return asyncio.StreamReaderProtocol(ClientReader(), begun)

    return _Instance(PacedListener(await bound(host, port), made, pace, cannot=_cannot(), encryption=encryption))


class _Counted(ServerConnection):
    closed: Callable[[], None]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed()
        super().connection_lost(exc)


async def listen_for_websockets(
    host: str | None,
    port: int,
    connected: Callable[[ServerConnection], Awaitable[None]],
    pace: Pace,
    encryption: ssl.SSLContext | None,
) -> Server:
    """Like :func:`websockets.serve`."""
    server = Server(connected, logger=_websockets_log)

    def made(closed: Callable[[], None]) -> asyncio.Protocol:
        one = _Counted(ServerProtocol(subprotocols=[Subprotocol("mqtt")], logger=_websockets_log), server)
        one.closed = closed
        return one

    listener = PacedListener(await bound(host, port), made, pace, cannot=_cannot(), encryption=encryption)
    server.wrap(_Instance(listener))  # type: ignore[arg-type]
    return server
