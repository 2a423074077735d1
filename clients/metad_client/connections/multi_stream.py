"""Several streams to one node as one connection: a lost packet holds up only the requests on its own stream.

For transports whose dials share a path but no order, as QUIC's do. The first stream is the connection as it comes up;
more join while it is in use. Each has a protocol session of its own, and a request goes to the stream with the fewest
unanswered bytes. All lead to one process over one path, so if one breaks all are given up, and if the server asks one
to leave all do, each once its requests are answered.

The dispatcher sees one :class:`~metad_client.dispatch.node_connection.NodeConnection`; the streams see a
:class:`~metad_client.dispatch.node_connection.ConnectionListener`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from metad_wire.session import ClientSession
from metad_wire.transport.credentials import PathSample

from ..dispatch.call import Call
from ..dispatch.node_connection import ConnectionListener, NodeConnection
from ..dispatch.node_queue import NodeQueue
from ..errors import MetadError
from .connection import Connection


class MultiStreamConnection:
    """See the module. It is the listener of the connections that are to be its members."""

    def __init__(self, listener: ConnectionListener) -> None:
        self._listener = listener
        self._members: list[Connection] = []
        self._joining: set[asyncio.Task[None]] = set()
        self._lost: list[Call] = []
        self._open = 0  # members whose streams have not gone yet
        self._retired = False
        self._reported = False
        self._broken = False  # one has, and takes the others with it
        self.lane: NodeQueue | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, first: Connection, more: Callable[[], Awaitable[Connection]], count: int) -> None:
        """With a connection that has greeted; ``more`` makes others, which join as they come up."""
        self._first = first
        self._add(first)
        for _ in range(count - 1):
            task = asyncio.get_running_loop().create_task(self._join(more), name="metad-client stream")
            self._joining.add(task)
            task.add_done_callback(self._joining.discard)

    async def _join(self, more: Callable[[], Awaitable[Connection]]) -> None:
        try:
            member = await more()
        except MetadError:
            return  # those that are there will do
        theirs, ours = member.session.welcome, self.session.welcome
        assert theirs is not None
        assert ours is not None
        if self._retired or (theirs.node_id, theirs.cluster_id) != (ours.node_id, ours.cluster_id):
            member.close()
            return
        self._add(member)
        self._listener.ready(self)

    def _add(self, member: Connection) -> None:
        self._members.append(member)
        self._open += 1
        member.closed.add_done_callback(self._closed)

    # --- a connection, to the dispatcher ---

    @property
    def endpoint(self) -> str:
        """host:port."""
        return self._first.endpoint

    @property
    def via(self) -> str:
        """The transport's name."""
        return self._first.via

    @property
    def session(self) -> ClientSession:
        """The first stream's: what was agreed is the same on all."""
        return self._first.session

    @property
    def calls(self) -> Calls:
        """Those in flight, on all streams."""
        return Calls(self._members)

    @property
    def was_useful(self) -> bool:
        """It has said more than its greeting."""
        return self._first.was_useful

    def path_lately(self) -> PathSample | None:
        """Of the path that all share."""
        return self._first.path_lately()

    def can_send(self, payload_bytes: int) -> bool:
        """Whether a request of this size fits a window now."""
        return not self._retired and any(member.can_send(payload_bytes) for member in self._members)

    def send(self, call: Call, payload: bytes) -> None:
        """Start an attempt. Raises FrameError where the payload is over the server's frame limit."""
        size = len(payload)
        fitting = [member for member in self._members if member.can_send(size)] or self._members
        min(fitting, key=_unanswered_bytes).send(call, payload)

    def cancel(self, call: Call) -> None:
        """The answer is no longer wanted; tells the peer."""
        if call.carrier is not None:
            call.carrier.cancel(call)

    def leave(self) -> None:
        """Take no new requests, and hang up once those in flight are answered."""
        self._retire(None)

    def close(self) -> None:
        """Send what is buffered and hang up. Calls in flight are reported lost."""
        self._retire(None)
        for member in list(self._members):
            member.close()

    def abort(self) -> None:
        """Hang up at once."""
        for member in list(self._members):
            member.abort()

    # --- the listener of its members: ConnectionListener ---

    def answered(self, call: Call, payload: bytes) -> None:
        """See :class:`ConnectionListener`."""
        self._listener.answered(call, payload)

    def failed(self, connection: NodeConnection, call: Call, error: MetadError) -> None:
        """See :class:`ConnectionListener`."""
        self._listener.failed(self, call, error)

    def ready(self, connection: NodeConnection) -> None:
        """See :class:`ConnectionListener`."""
        if self._members:
            self._listener.ready(self)

    def retired(self, connection: NodeConnection, error: MetadError | None) -> None:
        """See :class:`ConnectionListener`. A member that is still being dialled is nobody's yet."""
        if connection in self._members:
            self._broken = self._broken or (error is not None and not self._retired)
            self._retire(error)

    def lost(self, connection: NodeConnection, calls: list[Call], error: MetadError) -> None:
        """See :class:`ConnectionListener`. What was in flight on any is reported once, when none is left."""
        if connection not in self._members:
            return
        self._members = [member for member in self._members if member is not connection]
        self._lost += calls
        if self._broken:
            for member in self._members:
                member.abort()
        if not self._members and not self._reported:
            self._reported = True
            self._listener.lost(self, self._lost, error)

    def _retire(self, error: MetadError | None) -> None:
        if self._retired:
            return
        self._retired = True
        for task in self._joining:
            task.cancel()
        self._listener.retired(self, error)
        for member in list(self._members):
            member.leave()

    def _closed(self, _: asyncio.Future[None]) -> None:
        self._open -= 1
        if not self._open and not self.closed.done():
            self.closed.set_result(None)


class Calls:
    """The calls of several connections, to look at."""

    def __init__(self, members: Iterable[Connection]) -> None:
        self._members = members

    def __len__(self) -> int:
        return sum(len(member.calls) for member in self._members)

    def values(self) -> Iterable[Call]:
        """The one that was sent first in front."""
        return sorted((call for member in self._members for call in member.calls.values()), key=lambda call: call.sent)


def _unanswered_bytes(member: Connection) -> int:
    return member.session.unanswered_bytes
