"""One connection: connects a stream of bytes with the calls in flight on it.

It drives one :class:`metad_wire.connection.session.ClientSession`. Frames written in one turn of the event loop leave
in one write at its end. It knows nothing of retries, deadlines or other connections, and reports events to its
:class:`~metad_client.dispatch.node_connection.ConnectionListener`.
"""

from __future__ import annotations

import asyncio

from metad_wire.connection.frame import FrameType
from metad_wire.connection.session import ClientSession, State, decode_error
from metad_wire.errors import ConnectionLostError, DrainingError, MetadError, UnauthenticatedError
from metad_wire.messages import Welcome
from metad_wire.transport import Stream
from metad_wire.transport.credentials import PEERCERT, PathSample, principal_of
from metad_wire.transport.path import path_of

from ..causes import error_of_dial
from ..dispatch.calls.call import Call, Events
from ..dispatch.node_connection import ConnectionListener

_RESPONSE = int(FrameType.RESPONSE)
_ERROR = int(FrameType.ERROR)
_WELCOME = int(FrameType.WELCOME)
_GOAWAY = int(FrameType.GOAWAY)
_EVENT = int(FrameType.EVENT)


class _EventStream:
    """One watch on a connection."""

    __slots__ = ("_connection", "_request_id")

    def __init__(self, connection: Connection, request_id: int) -> None:
        self._connection = connection
        self._request_id = request_id

    def grant(self, count: int) -> None:
        self._connection.grant(self._request_id, count)

    def end(self, *, ended: bool = False) -> None:
        self._connection.end_stream(self._request_id, ended=ended)


class Connection:
    """A connection from dialling to its end. ``welcomed`` ends with the handshake, ``closed`` with the stream."""

    def __init__(
        self,
        endpoint: str,
        listener: ConnectionListener,
        *,
        via: str = "tcp",
        assumed: Welcome | None = None,
        ping_interval_s: float,
        credentials: bytes = b"",
        client_name: str = "",
    ) -> None:
        loop = asyncio.get_running_loop()
        self.endpoint = endpoint
        self.via = via  # the transport's name
        self.early = False  # requests go out before the handshake is over
        self._assumed = assumed
        self.session = ClientSession(credentials, client_name)
        self._calls: dict[int, Call] = {}  # in flight, by request id
        self._streams: dict[int, Events] = {}  # of watches, by request id
        self.welcomed: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.was_useful = False  # the peer has sent more than its greeting
        self.bytes_sent = 0
        self.bytes_received = 0
        self._loop = loop
        self._listener = listener
        self._ping_interval_s = ping_interval_s
        self._stream: Stream | None = None
        self._lost = False
        self._paused = False
        self._leaving = False
        self._retired = False
        self._flush_scheduled = False
        self._keepalive: asyncio.TimerHandle | None = None
        self._tick_sent = self._tick_received = 0  # byte counts at the last keepalive tick
        self._pings = 0
        self._unanswered_pings = 0
        self._path_sent = self._path_lost = 0  # packets, when the path was last measured

    @property
    def welcome(self) -> Welcome:
        """The node's greeting, once ``welcomed`` has ended."""
        assert self.session.welcome is not None, "asked before the node has greeted"
        return self.session.welcome

    @property
    def frame_bytes_max(self) -> int:
        return self.session.decoder.frame_bytes_max

    @property
    def load(self) -> tuple[int, int]:
        """Bytes of unanswered requests, and watches."""
        return self.session.unanswered_bytes, len(self._streams)

    def calls(self) -> list[Call]:
        return list(self._calls.values())

    def path_lately(self, *, glance: bool = False) -> PathSample | None:
        sample = path_of(self._stream) if self._stream is not None else None
        if sample is None or glance:
            return sample
        sent, lost = sample.sent - self._path_sent, sample.lost - self._path_lost
        self._path_sent, self._path_lost = sample.sent, sample.lost
        return PathSample(rtt_s=sample.rtt_s, sent=max(sent, 0), lost=max(lost, 0))

    # --- towards the peer ---

    def can_send(self, payload_bytes: int, *, ahead: bool = False) -> bool:
        return (ahead or not self._paused) and self.session.can_send(payload_bytes, ahead=ahead)

    def send(self, call: Call, payload: bytes) -> None:
        request_id = self.session.request(call.method.code, payload)
        self._calls[request_id] = call
        call.carried(self, request_id)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def grant(self, request_id: int, count: int) -> None:
        """Let the server send so many bytes of a watch's events more."""
        self.session.grant(request_id, count)
        self._flush_soon()

    def end_stream(self, request_id: int, *, ended: bool) -> None:
        """Take no more events of a watch. ``ended``: the server sends none."""
        if self._streams.pop(request_id, None) is None:
            return
        if ended:
            self.session.stream_ended(request_id)
        else:
            self.session.cancel(request_id)
            self._flush_soon()

    def cancel(self, call: Call) -> None:
        if self._calls.pop(call.request_id, None) is not None:
            self.session.cancel(call.request_id)
            self._flush_soon()
            self._close_if_done()

    def leave(self) -> None:
        self._leaving = True
        self._retire(None)
        self._close_if_done()

    def close(self) -> None:
        self._end(ConnectionLostError(f"the connection to {self.endpoint} was closed"))

    def abort(self) -> None:
        self.close()
        if self._stream is not None:
            self._stream.abort()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        data = self.session.data_to_send()
        if data and self._stream is not None:
            self.bytes_sent += len(data)
            self._stream.write(data)

    # --- from the peer: StreamHandler ---

    def connection_made(self, stream: Stream) -> None:
        self._stream = stream
        if self._assumed is not None and stream.get_extra_info("early"):
            self.early = True
            self.session.assume(self._assumed)
        if self._lost:
            stream.abort()
        else:
            self._flush()

    def data_received(self, data: bytes) -> None:
        if self._lost:
            return
        self.bytes_received += len(data)
        self.was_useful = self.welcomed.done()
        session, calls, listener = self.session, self._calls, self._listener
        next_event = session.next_event
        session.receive_data(data)
        try:
            while (frame := next_event()) is not None:
                kind = frame.type
                if kind == _RESPONSE:
                    call = calls.pop(frame.request_id, None)
                    if call is None:  # the caller gave it up; the session has taken the credit back
                        listener.heard(self)
                    else:
                        if call.events is not None:
                            self._begin(call, call.events)
                        listener.answered(call, frame.payload)
                elif kind == _EVENT:
                    events = self._streams.get(frame.request_id)
                    if events is not None:
                        events.received(frame.payload)
                elif kind == _ERROR:
                    call = calls.pop(frame.request_id, None)
                    if call is None:
                        listener.heard(self)
                    else:
                        listener.failed(self, call, decode_error(frame.payload))
                elif kind == _WELCOME:
                    self._opened()
                elif kind == _GOAWAY:
                    self._retire(None)
        except MetadError as error:
            self._end(error)
            return
        if not self._flush_scheduled:
            self._flush()  # pongs
        listener.ready(self)
        self._close_if_done()

    def eof_received(self) -> bool | None:
        """The peer has closed its side, so this side closes too."""
        return None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._listener.ready(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream = None  # it takes no more bytes
        if exc is not None and error_of_dial(exc) is UnauthenticatedError:
            # In TLS 1.3 a client learns it after its own handshake.
            self._end(UnauthenticatedError(f"{self.endpoint}: {exc}"))
        else:
            why = f": {exc}" if exc is not None else ""
            self._end(ConnectionLostError(f"the connection to {self.endpoint} ended{why}"))
        if not self.closed.done():
            self.closed.set_result(None)

    # --- states ---

    def _opened(self) -> None:
        self.early = False
        welcome = self.welcome
        holder = principal_of(self._stream.get_extra_info(PEERCERT)) if self._stream is not None else None
        if holder is not None and not holder.may_be(welcome.node_id):
            said = f"{self.endpoint} says it is {welcome.node_id!r}"
            raise UnauthenticatedError(f"{said}, and its certificate is that of {holder}")
        if welcome.idle_ms > 0:
            self._ping_interval_s = min(self._ping_interval_s, welcome.idle_ms / 3000)
        self._tick_sent, self._tick_received = self.bytes_sent, self.bytes_received
        self._keepalive = self._loop.call_later(self._ping_interval_s, self._tick)
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def _tick(self) -> None:
        """Ping a quiet peer; give up one that leaves two pings unanswered."""
        sent, received = self.bytes_sent, self.bytes_received
        if received != self._tick_received:
            self._unanswered_pings = 0
        elif self._unanswered_pings == 2:
            silence_s = 2 * self._ping_interval_s
            self._end(ConnectionLostError(f"no sign of life from {self.endpoint} for {silence_s:.3g} s"))
            if self._stream is not None:
                self._stream.abort()
            return
        if sent == self._tick_sent or received == self._tick_received:
            self._pings += 1
            self._unanswered_pings += 1
            self.session.ping(self._pings)
            self._flush()
        self._tick_sent, self._tick_received = self.bytes_sent, received
        self._keepalive = self._loop.call_later(self._ping_interval_s, self._tick)

    def _begin(self, call: Call, events: Events) -> None:
        """The answer to this call begins a stream."""
        self.session.stream_begun(call.request_id)
        self._streams[call.request_id] = events
        call.began(_EventStream(self, call.request_id))

    def _retire(self, error: MetadError | None) -> None:
        if not self._retired:
            self._retired = True
            self._listener.retired(self, error)
            # Watches go on elsewhere from where they are: this connection waits for its answers only.
            self._lose_streams(error or DrainingError(f"the connection to {self.endpoint} ends"))

    def _lose_streams(self, error: MetadError) -> None:
        streams, self._streams = self._streams, {}
        for request_id, events in streams.items():
            self.session.cancel(request_id)
            self._flush_soon()
            events.lost(error)

    def _close_if_done(self) -> None:
        """After a goaway, the last answer ends the connection."""
        if (self._leaving or self.session.state is State.DRAINING) and not self._calls:
            self.close()

    def _end(self, error: MetadError) -> None:
        if self._lost:
            return
        self._lost = True
        if self._keepalive is not None:
            self._keepalive.cancel()
            self._keepalive = None
        self._flush()  # the ERROR frame that tells the peer why
        self._retire(error)
        self._lose_streams(error)
        self.session.close()
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()  # the dialer may have given up already: then nobody else reads it
        if self._stream is not None:
            self._stream.close()
        calls = self.calls()
        self._calls.clear()
        self._listener.lost(self, calls, error)
