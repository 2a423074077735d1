"""Several streams to one node as one connection: a lost packet delays only the requests on its own stream.

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
from collections.abc import Awaitable, Callable

from metad_wire.messages import Welcome
from metad_wire.methods import AHEAD
from metad_wire.transport.credentials import PathSample

from ..dispatch.calls.call import Call
from ..dispatch.node_connection import ConnectionListener, NodeConnection
from ..errors import MetadError
from .connection import Connection

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

    def path_lately(self) -> PathSample | None:
        """A sample of the path that all streams share."""
        return self._joined[0].path_lately()

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
