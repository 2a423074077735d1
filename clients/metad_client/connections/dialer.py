"""Turns an endpoint into a connection whose node has greeted, or into a typed error. Only this module maps the
operating system's errors to metad's.

If two transports reach an endpoint, the second is tried when the first has failed or has not come up in a second, and
the first that greets is used. A path that filters UDP, or everything else, costs that second once in a while.

Several streams to one node as one connection: a lost packet delays only the requests on its own stream.

For transports whose dials share a path but no order, such as QUIC. The first stream is the connection as it comes up;
more join while it is in use. Each has its own protocol session, and a request goes to the stream with the fewest
unanswered bytes, and of those to the one with the fewest watches. The events of a watch come on the stream that its
request went to. All lead to one process over one path. So if one breaks, all are given up; if the server asks one to
leave, all leave once their requests are answered.

The dispatcher sees one :class:`~metad_client.dispatch.node_connection.NodeConnection`; the streams see a
:class:`~metad_client.dispatch.node_connection.ConnectionListener`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

from metad_wire.messages import Welcome
from metad_wire.methods import AHEAD
from metad_wire.transport.credentials import PathSample

from ..causes import error_of_dial, stays
from ..dispatch.calls.call import Call
from ..dispatch.node_connection import ConnectionListener, NodeConnection
from ..endpoint import Endpoint, name_of
from ..errors import ConnectionLostError, MetadError, UnauthenticatedError
from ..options import Options
from .connection import Connection
from .transport_choice import TransportChoice, credentials_of

Dial = Callable[[ConnectionListener], Awaitable[Connection]]
"""Opens one more stream for this listener."""


class MultiStreamConnection:
    """At most ``count`` streams. It is usable once :meth:`open` has returned."""

    def __init__(self, endpoint: str, via: str, listener: ConnectionListener, dial: Dial, count: int) -> None:
        self.endpoint = endpoint
        self.via = via
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listener = listener
        self._dial = dial
        self._count = count
        self._joined: list[Connection] = []  # every stream that ever joined, the first one in front
        self._streams: list[Connection] = []  # the joined streams that are not lost
        self._joining: set[asyncio.Task[None]] = set()
        self._lost: list[Call] = []
        self._open = 0  # streams that are not closed yet
        self._retired = False
        self._reported = False
        self._broken = False  # a stream has broken and ends the others

    async def open(self) -> None:
        """Dial the first stream, and begin to dial the others. Raises MetadError."""
        self._add(await self._dial(self))
        for _ in range(self._count - 1):
            task = asyncio.get_running_loop().create_task(self._join(), name="metad-client stream")
            self._joining.add(task)
            task.add_done_callback(self._joining.discard)

    async def _join(self) -> None:
        try:
            stream = await self._dial(self)
        except MetadError:
            return  # the other streams are enough
        theirs, ours = stream.welcome, self.welcome
        if self._retired or (theirs.node_id, theirs.cluster_id) != (ours.node_id, ours.cluster_id):
            stream.close()
            return
        self._add(stream)
        self._listener.ready(self)

    def _add(self, stream: Connection) -> None:
        self._joined.append(stream)
        self._streams.append(stream)
        self._open += 1
        stream.closed.add_done_callback(self._closed)

    # --- a node's connection: NodeConnection ---

    @property
    def welcome(self) -> Welcome:
        return self._joined[0].welcome

    @property
    def frame_bytes_max(self) -> int:
        return self._joined[0].frame_bytes_max

    @property
    def was_useful(self) -> bool:
        return self._joined[0].was_useful

    def calls(self) -> list[Call]:
        return sorted((call for stream in self._streams for call in stream.calls()), key=lambda call: call.sent)

    def path_lately(self, *, glance: bool = False) -> PathSample | None:
        """A sample of the path that all streams share."""
        return self._joined[0].path_lately(glance=glance)

    def can_send(self, payload_bytes: int, *, ahead: bool = False) -> bool:
        return not self._retired and any(stream.can_send(payload_bytes, ahead=ahead) for stream in self._streams)

    def send(self, call: Call, payload: bytes) -> None:
        size = len(payload)
        ahead = call.method.code in AHEAD
        fitting = [stream for stream in self._streams if stream.can_send(size, ahead=ahead)] or self._streams
        min(fitting, key=_load).send(call, payload)

    def leave(self) -> None:
        self._retire(None)

    def close(self) -> None:
        self._retire(None)
        for stream in list(self._streams):
            stream.close()

    def abort(self) -> None:
        for stream in list(self._streams):
            stream.abort()

    # --- the listener of its streams: ConnectionListener ---

    def answered(self, call: Call, payload: bytes) -> None:
        self._listener.answered(call, payload)

    def failed(self, connection: NodeConnection, call: Call, error: MetadError) -> None:
        self._listener.failed(self, call, error)

    def heard(self, connection: NodeConnection) -> None:
        self._listener.heard(self)

    def ready(self, connection: NodeConnection) -> None:
        """There may be room on a stream."""
        if self._streams:
            self._listener.ready(self)

    def retired(self, connection: NodeConnection, error: MetadError | None) -> None:
        """A stream takes no new requests. A stream that is still being dialled has not joined: it has no effect."""
        if connection in self._streams:
            self._broken = self._broken or (error is not None and not self._retired)
            self._retire(error)

    def lost(self, connection: NodeConnection, calls: list[Call], error: MetadError) -> None:
        """A stream has ended. The calls in flight on all streams are reported once, when none is left."""
        if connection not in self._streams:
            return
        self._streams = [stream for stream in self._streams if stream is not connection]
        self._lost += calls
        if self._broken:
            for stream in self._streams:
                stream.abort()
        if not self._streams and not self._reported:
            self._reported = True
            self._listener.lost(self, self._lost, error)

    def _retire(self, error: MetadError | None) -> None:
        if self._retired:
            return
        self._retired = True
        for task in self._joining:
            task.cancel()
        self._listener.retired(self, error)
        for stream in list(self._streams):
            stream.leave()

    def _closed(self, _: asyncio.Future[None]) -> None:
        self._open -= 1
        if not self._open and not self.closed.done():
            self.closed.set_result(None)


def _load(stream: Connection) -> tuple[int, int]:
    return stream.load


HEAD_START_S = 1.0
"""Head start of the preferred transport: three round trips of a path around the world."""


class Dialer:
    """Opens connections for one listener."""

    def __init__(self, transports: TransportChoice, listener: ConnectionListener, options: Options) -> None:
        self._transports = transports
        self._listener = listener
        self._options = options
        self._credentials = credentials_of(options)
        self._welcomes: dict[Endpoint, Welcome] = {}  # of QUIC connections, for the next one's 0-RTT data

    async def dial(self, endpoint: Endpoint) -> NodeConnection:
        """Connect and shake hands within the handshake timeout. Raises ConnectionLostError if nothing answers,
        HandshakeError or UnauthenticatedError if the peer refuses us."""
        first, *others = self._transports.plan(endpoint)
        if not others:
            return await self.dial_by(endpoint, first)
        return await self._race(endpoint, first, others[0])

    async def _race(self, endpoint: Endpoint, first: str, second: str) -> NodeConnection:
        attempts = {asyncio.create_task(self.dial_by(endpoint, first)): first}
        errors: list[MetadError] = []
        try:
            await asyncio.wait(attempts, timeout=HEAD_START_S)
            while attempts or second:
                for done in [task for task in attempts if task.done()]:
                    name = attempts.pop(done)
                    try:
                        connection = done.result()
                    except UnauthenticatedError:
                        raise  # the other transport would use the same certificate or token
                    except MetadError as error:
                        self._transports.failed(endpoint, name)
                        errors.append(error)
                        continue
                    if name != first:
                        self._transports.failed(endpoint, first)
                    return connection
                if second:
                    attempts[asyncio.create_task(self.dial_by(endpoint, second))] = second
                    second = ""
                if attempts:
                    await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in attempts:
                task.add_done_callback(_hang_up)
                task.cancel()
        raise errors[0]

    async def dial_by(self, endpoint: Endpoint, name: str) -> NodeConnection:
        """Connect by one transport. A QUIC connection has several streams, and only the first is waited for."""
        if name != "quic":
            return await self._stream(endpoint, name, self._listener)
        connection = MultiStreamConnection(
            name_of(endpoint),
            name,
            self._listener,
            lambda listener: self._stream(endpoint, name, listener),
            self._options.quic_streams,
        )
        await connection.open()
        return connection

    async def _stream(self, endpoint: Endpoint, name: str, listener: ConnectionListener) -> Connection:
        transport, place = self._transports.by_name[name], self._transports.place(endpoint, name)
        endpoint_name = name_of(endpoint)
        connection = Connection(
            endpoint_name,
            listener,
            via=name,
            assumed=self._welcomes.pop(endpoint, None) if name == "quic" else None,
            ping_interval_s=self._options.ping_interval_s,
            credentials=self._credentials(),
            client_name=self._options.client_name,
        )
        timeout_s = self._options.handshake_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await transport.dial(*place, lambda: connection, timeout_s)
                if connection.early:
                    # However the handshake ends, calls see the same as when a connection is lost.
                    connection.welcomed.add_done_callback(lambda _: self._remember(endpoint, connection))
                    return connection
                await connection.welcomed
        except BaseException as error:
            connection.abort()  # nobody else knows it, so nobody would wait for a polite end
            if isinstance(error, ConnectionLostError):
                if name == "tcp" and connection.bytes_received == 0 and connection.bytes_sent:
                    hint = "hung up before it greeted; a server with certificates is reached by metads:// or metadq://"
                    raise ConnectionLostError(f"{endpoint_name} {hint}") from error
            elif isinstance(error, (MetadError, OSError)):
                told = typed(error, endpoint_name, timeout_s)
                if told is not error:
                    raise told from error
            raise
        self._remember(endpoint, connection)
        return connection

    def _remember(self, endpoint: Endpoint, connection: Connection) -> None:
        welcomed, welcome = connection.welcomed, connection.session.welcome
        if connection.via != "quic" or welcome is None or welcomed.cancelled() or welcomed.exception() is not None:
            return
        self._welcomes[endpoint] = welcome


def typed(error: OSError | MetadError, name: str, timeout_s: float) -> MetadError:
    """metad's error for the end of a dial."""
    kind = error_of_dial(error)
    if kind is ConnectionLostError and isinstance(error, OSError):
        return kind(explain(error, name, timeout_s))
    if kind is not None:
        what = "does not speak metad's protocol: " if isinstance(error, MetadError) else ""
        return kind(f"{name}{' ' if what else ': '}{what}{error}")
    assert isinstance(error, MetadError)
    if stays(error) and not error.message.startswith(name):
        return type(error)(f"{name} refuses this client: {error}")
    return error


def _hang_up(task: asyncio.Task[NodeConnection]) -> None:
    """Close the connection of a lost race: it may have come up just then."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def explain(error: OSError, name: str, timeout_s: float) -> str:
    """Why an endpoint could not be reached, in one line."""
    # asyncio joins the errors of several addresses of one host into a text.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return f"connection refused by {name}"
    if isinstance(error, TimeoutError):
        return f"no answer from {name} within {timeout_s:.3g} s"
    if isinstance(error, socket.gaierror):
        return f"cannot resolve {name}: {error.strerror}"
    return f"cannot reach {name}: {error.strerror or error}"
