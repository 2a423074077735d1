"""The protocol as a value: one object per end of a connection, no I/O and no clock.

Feed received chunks with :meth:`Session.receive_data` and call :meth:`Session.next_event` until it returns None; write
what :meth:`Session.data_to_send` returns. The session handles frames that need no decision (ping, credit) itself; it
returns all others as events. The table :data:`TRANSITIONS` says which frame is allowed in which state, and the state
after it.

An error of the peer raises a connection error (code below 100) and closes the session; :meth:`Session.data_to_send`
then returns the ERROR frame that tells the peer why.

Flow control: the server grants a window of request bytes that may be unanswered. A request takes its frame's length
from the window and its answer (RESPONSE or ERROR) gives it back, so in the steady state no credit frame travels. A
CREDIT frame sets a new window. The server enforces a smaller window only once the peer has answered the ping behind it,
because until then the peer may not have seen it.

A watch is a request whose answer begins a stream: its credit is back with the answer, and events follow under its id.
They have a credit of their own, which the client grants stream by stream.

Memory: a session holds what its decoder holds, the ids of its streams (the driver bounds how many it begins), and the
lengths of the unanswered requests, which the window bounds. Its
output is at most as long as what it received plus what the driver asked it to send, so a driver that stops reading
while the peer does not read is bounded too.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

import msgspec

from .. import messages as m
from ..errors import (
    CreditError,
    DrainingError,
    ErrorBody,
    FrameError,
    HandshakeError,
    MetadError,
    UnexpectedFrameError,
    error_of,
)
from ..method import MALFORMED, encode
from ..watch import WatchCredit
from .frame import (
    FRAME_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    Frame,
    FrameDecoder,
    FrameType,
)
from .peer import PEER_MAGIC

_RESPONSE = int(FrameType.RESPONSE)
_ERROR = int(FrameType.ERROR)
_REQUEST = int(FrameType.REQUEST)
_pack_header = HEADER.pack

SHRINKING_MAX = 8
"""Shrunk windows that wait for their pong: a peer that answers no ping cannot make the list grow."""
AHEAD_BYTES = 4 * 1024
"""Of its window, a client keeps so much free for requests that go ahead. A window below 16 times this has none to
spare."""
FEATURES = int(m.Feature.REQUIRES | m.Feature.MIN_REVISIONS | m.Feature.LIVES | m.Feature.REGISTERED)
"""The feature bits of this implementation: all that are defined."""


class Role(enum.Enum):
    """The end of the connection: client or server."""

    CLIENT = "client"
    SERVER = "server"


class State(enum.Enum):
    """The state of the connection."""

    OPENING = "opening"  # the handshake is not over
    OPEN = "open"
    DRAINING = "draining"  # goaway was sent or received: no new requests, answers still travel
    CLOSED = "closed"


_SERVER_OPEN = (FrameType.REQUEST, FrameType.CANCEL, FrameType.CREDIT, FrameType.PING, FrameType.PONG)
_CLIENT_OPEN = (
    FrameType.RESPONSE,
    FrameType.ERROR,
    FrameType.EVENT,
    FrameType.CREDIT,
    FrameType.PING,
    FrameType.PONG,
)

TRANSITIONS: dict[tuple[Role, State], dict[int, State]] = {
    # A server answers HELLO with WELCOME, and only that makes the connection open.
    (Role.SERVER, State.OPENING): {FrameType.HELLO: State.OPENING},
    (Role.SERVER, State.OPEN): dict.fromkeys(_SERVER_OPEN, State.OPEN),
    (Role.SERVER, State.DRAINING): dict.fromkeys(_SERVER_OPEN, State.DRAINING),
    (Role.CLIENT, State.OPENING): {FrameType.WELCOME: State.OPEN, FrameType.ERROR: State.CLOSED},
    (Role.CLIENT, State.OPEN): {
        **dict.fromkeys(_CLIENT_OPEN, State.OPEN),
        FrameType.GOAWAY: State.DRAINING,
    },
    (Role.CLIENT, State.DRAINING): dict.fromkeys((*_CLIENT_OPEN, FrameType.GOAWAY), State.DRAINING),
}
"""(role, state) -> received frame type -> next state. Any other frame raises :class:`UnexpectedFrameError`."""

_decoders: dict[type[m.Message], msgspec.msgpack.Decoder[Any]] = {}


def _decode(type_: type[m.Message], payload: bytes) -> Any:
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.msgpack.Decoder(type_)
    try:
        return decoder.decode(payload)
    except MALFORMED as error:
        raise FrameError(f"{type_.__name__}: {error}") from None


def _hello(payload: bytes) -> m.Hello:
    try:
        hello: m.Hello = _decode(m.Hello, payload)
    except FrameError:
        if payload.startswith(PEER_MAGIC.encode(), 2):  # after the headers of the array and of the text
            raise HandshakeError(
                "this is the port for clients; nodes use another: cluster.listen of the node, or its address in "
                "cluster.seeds"
            ) from None
        raise
    return hello


def decode_error(payload: bytes) -> MetadError:
    """The exception that an ERROR frame's payload stands for."""
    try:
        return error_of(msgspec.msgpack.decode(payload, type=ErrorBody))
    except MALFORMED as error:
        return FrameError(f"ErrorBody: {error}")


class Session:
    """The common part of both ends. ``unanswered_bytes`` counts request frames in flight, ``window_bytes`` bounds
    them."""

    role: Role

    def __init__(self) -> None:
        self.state = State.OPENING
        self.decoder = FrameDecoder(HANDSHAKE_BYTES_MAX)
        self.unanswered: dict[int, int] = {}  # request id -> frame length
        self.unanswered_bytes = 0
        self.streams: set[int] = set()
        """Ids of the watches that have begun and not ended."""
        self.window_bytes = 0
        self.version = 0
        self.features = 0
        self._out: list[bytes] | deque[bytes] = []
        self._last_words = b""  # bytes not sent yet when the session closed
        self._allowed = TRANSITIONS[self.role, self.state]
        self._error: MetadError | None = None

    def receive_data(self, chunk: bytes) -> None:
        """Take bytes from the peer. Ignored once the session is closed."""
        if self.state is not State.CLOSED:
            self.decoder.feed(chunk)

    def data_to_send(self) -> bytes:
        """Bytes for the peer since the last call, empty if none."""
        out = self._out
        if not out:
            data, self._last_words = self._last_words, b""
            return data
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def next_event(self) -> Frame | None:
        """The next frame the driver must act on; None when more bytes are needed or the session was closed without
        an error. Raises the error that closed it, now and at every later call."""
        while self.state is not State.CLOSED:
            try:
                frame = self.decoder.next()
                if frame is None:
                    return None
                state = self._allowed.get(frame.type)
                if frame.type == _ERROR and not frame.request_id:  # closed without an answer, whatever was allowed
                    self._error = decode_error(frame.payload)
                    self._enter(State.CLOSED)
                    raise self._error
                if state is None:
                    raise UnexpectedFrameError(
                        f"{FrameType(frame.type).name} is not allowed while {self.state.value} ({self.role.value})"
                    )
                is_event = self._received(frame)
                if state is not self.state:
                    self._enter(state)
                if is_event:
                    return frame
            except MetadError as error:
                self.fail_connection(error)
                raise
        if self._error is not None:
            raise self._error.with_traceback(None)  # without this, each raise would lengthen the traceback of the last
        return None

    def ping(self, token: int) -> None:
        """Ask the peer for a PONG with the same token (below 2**63: the session itself uses the upper half). Allowed
        only after the handshake."""
        assert self.state is not State.OPENING, "the peer takes no PING before the handshake is over"
        self._send(FrameType.PING, encode(m.Ping(token)))

    def fail_connection(self, error: MetadError) -> None:
        """Tell the peer the error and close; nothing is sent after it. The ERROR frame carries request id 0."""
        if self.state is State.CLOSED:
            return
        self._send(FrameType.ERROR, encode(error.body()))
        self._error = error
        self._enter(State.CLOSED)

    def close(self) -> None:
        """Close: no more events, unanswered requests stay unanswered, and whatever is sent from now on is dropped."""
        self._enter(State.CLOSED)

    def _received(self, frame: Frame) -> bool:
        """Handle a frame that is allowed; True makes it an event."""
        raise NotImplementedError

    def _control(self, frame: Frame) -> bool:
        if frame.type == FrameType.PING:
            self._send(FrameType.PONG, frame.payload if len(frame.payload) <= 16 else b"")
            return False
        return True

    def _enter(self, state: State) -> None:
        if self.state is State.CLOSED:
            return
        self.state = state
        self._allowed = TRANSITIONS.get((self.role, state), {})
        if state is State.CLOSED:
            # The driver may still answer requests after the session has closed. An output of length 0 drops the answers
            # without a test of the state at each.
            self._last_words = b"".join(self._out)
            self._out = deque(maxlen=0)

    def _send(self, kind: FrameType, payload: bytes, request_id: int = 0, method: int = 0) -> None:
        self._out.append(_pack_header(LENGTH_MIN + len(payload), kind, 0, method, request_id))
        self._out.append(payload)

    def _answered(self, request_id: int) -> None:
        self.unanswered_bytes -= self.unanswered.pop(request_id)


class ServerSession(Session):
    """The server's end. Events: HELLO (answer with :meth:`welcome` or :meth:`fail_connection`), REQUEST (answer exactly
    once with :meth:`respond`, :meth:`begin_stream` or :meth:`fail`), CANCEL (even after the answer), CREDIT of a
    stream, PING (already answered), PONG."""

    role = Role.SERVER

    def __init__(self) -> None:
        super().__init__()
        self.decoder.hands_over = True
        self.hello: m.Hello | None = None
        self._shrinking: deque[tuple[int, int]] = deque()  # (ping token, window to enforce after its pong)
        self._barrier = 1 << 63

    def welcome(self, welcome: m.Welcome) -> None:
        """Finish the handshake. Version and features are those already negotiated from the client's HELLO. Dropped if
        the connection was closed while its credentials were checked."""
        if self.state is State.CLOSED:
            return
        assert self.hello is not None, "welcome() answers the HELLO event"
        assert self.state is State.OPENING, "welcome() answers it once"
        self.window_bytes = welcome.window_bytes
        self.decoder.frame_bytes_max = welcome.frame_bytes_max
        self._send(FrameType.WELCOME, encode(welcome))
        self._enter(State.OPEN)

    def respond(self, request_id: int, payload: bytes) -> None:
        """Answer a request."""
        self.unanswered_bytes -= self.unanswered.pop(request_id)
        out = self._out
        out.append(_pack_header(LENGTH_MIN + len(payload), _RESPONSE, 0, 0, request_id))
        out.append(payload)

    def fail(self, request_id: int, error: MetadError) -> None:
        """Answer a request with an error; the connection goes on."""
        self._answered(request_id)
        self._send(FrameType.ERROR, encode(error.body()), request_id)

    def begin_stream(self, request_id: int, payload: bytes) -> None:
        """Answer a request, and send events under its id from now on."""
        self.respond(request_id, payload)
        if self.state is not State.CLOSED:
            self.streams.add(request_id)

    def event(self, request_id: int, payload: bytes, *, last: bool = False) -> None:
        """Send an event of a stream. Nothing follows the last one."""
        assert request_id in self.streams, "begin_stream() comes before its events"
        self._send(FrameType.EVENT, payload, request_id)
        if last:
            self.streams.discard(request_id)

    def set_window(self, window_bytes: int) -> None:
        """Grant another window of unanswered request bytes. The server enforces the largest window that the peer may
        still believe in: a larger one at once, a smaller one from the pong of the ping behind it."""
        assert self.state is not State.OPENING, "welcome() sets the first window"
        self._send(FrameType.CREDIT, encode(m.Credit(window_bytes)))
        shrinking = self._shrinking  # always from larger windows to smaller ones
        seen: int | None = None
        while shrinking and shrinking[-1][1] <= window_bytes:
            # its pong still shows that the peer has forgotten all windows larger than this one
            seen = shrinking.pop()[0]
        if window_bytes >= self.window_bytes:
            self.window_bytes = window_bytes
        elif seen is not None:
            shrinking.append((seen, window_bytes))
        else:
            if len(shrinking) == SHRINKING_MAX:
                shrinking.pop()  # the new barrier covers this one too, only later
            self._barrier += 1
            shrinking.append((self._barrier, window_bytes))
            self._send(FrameType.PING, encode(m.Ping(self._barrier)))

    def goaway(self, code: int = 0, reason: str = "") -> None:
        """Announce that no further request will be taken: answer later ones with a DrainingError. A connection whose
        handshake is not over is closed with that error instead."""
        if self.state is State.OPENING:
            self.fail_connection(DrainingError(reason))
            return
        self._send(FrameType.GOAWAY, encode(m.Goaway(code, reason)))
        self._enter(State.DRAINING)

    def _received(self, frame: Frame) -> bool:
        if frame.type == _REQUEST:
            request_id, length = frame.request_id, frame.length
            if request_id in self.unanswered or not request_id or request_id in self.streams:
                raise UnexpectedFrameError(f"request id {request_id} is 0 or already in flight")
            # A frame that is alone in its window may be larger than it: a window shrunk below one frame must not
            # deadlock.
            if self.unanswered and self.unanswered_bytes + length > self.window_bytes:
                raise CreditError(
                    f"{self.unanswered_bytes + length} request bytes unanswered, the window is {self.window_bytes}"
                )
            self.unanswered[request_id] = length
            self.unanswered_bytes += length
            return True
        if frame.type == FrameType.CANCEL:
            self.streams.discard(frame.request_id)
            return True  # also for a request that is already answered: see below
        if frame.type == FrameType.CREDIT:
            return frame.request_id in self.streams  # or the stream has ended meanwhile
        if frame.type == FrameType.HELLO:
            self._negotiate(_hello(frame.payload))
            return True
        if frame.type == FrameType.PONG and self._shrinking:
            token = _decode(m.Ping, frame.payload).token
            while self._shrinking and self._shrinking[0][0] <= token:
                self.window_bytes = self._shrinking.popleft()[1]
        self._control(frame)
        return True  # a PING is already answered, but the driver counts the frames that it takes in one go

    def _negotiate(self, hello: m.Hello) -> None:
        if self.hello is not None:
            raise UnexpectedFrameError("a second HELLO")
        if hello.magic != m.MAGIC:
            raise HandshakeError("the first frame is not a metad HELLO")
        if not hello.version_min <= m.PROTOCOL_VERSION <= hello.version_max:
            raise HandshakeError(
                f"client speaks versions {hello.version_min} to {hello.version_max}, this server {m.PROTOCOL_VERSION}"
            )
        self.hello = hello
        self.version = m.PROTOCOL_VERSION
        self.features = hello.features & FEATURES


class ClientSession(Session):
    """The client's end. Events: WELCOME, RESPONSE and ERROR of a request, EVENT of a stream, GOAWAY, CREDIT, PONG. An
    ERROR with request id 0 ends the connection and is raised."""

    role = Role.CLIENT

    def __init__(self, credentials: bytes = b"", client_name: str = "") -> None:
        super().__init__()
        self.welcome: m.Welcome | None = None
        self.goaway: m.Goaway | None = None
        self._assumed = False
        self._next_id = 1
        hello = m.Hello(m.MAGIC, m.PROTOCOL_VERSION, m.PROTOCOL_VERSION, FEATURES, credentials, client_name)
        self._send(FrameType.HELLO, encode(hello))

    def assume(self, welcome: m.Welcome) -> None:
        """Assume the WELCOME of an earlier connection to the same node and send requests right behind the HELLO, so
        that they can go in 0-RTT data."""
        assert self.state is State.OPENING, "assumed before it is known"
        self._assumed = True
        self.welcome, self.window_bytes = welcome, welcome.window_bytes

    def can_send(self, payload_bytes: int, *, ahead: bool = False) -> bool:
        """Whether a request with a payload of this size fits the window now. ``ahead``: it goes ahead of others, and
        fits what is kept free for such."""
        window = self.window_bytes
        if not ahead and window >= 16 * AHEAD_BYTES:
            window -= AHEAD_BYTES
        return (self.state is State.OPEN or (self._assumed and self.state is State.OPENING)) and (
            not self.unanswered or self.unanswered_bytes + HEADER_BYTES + payload_bytes <= window
        )

    def request(self, method: int, payload: bytes) -> int:
        """Send a request; returns its id. Raises :class:`CreditError` if it does not fit the window at all and
        :class:`FrameError` if the payload is over the server's frame limit."""
        length = HEADER_BYTES + len(payload)
        if not self.can_send(len(payload), ahead=True):
            raise CreditError(f"cannot send {length} bytes now: {self.state.value}, window {self.window_bytes}")
        limit = self.decoder.frame_bytes_max
        if self._assumed and self.welcome is not None:
            limit = min(self.welcome.frame_bytes_max, FRAME_BYTES_MAX)
        if length > limit:
            raise FrameError(f"a request of {length} bytes is over the limit {limit}")
        request_id = self._next_id
        self._next_id = request_id + 1
        self.unanswered[request_id] = length
        self.unanswered_bytes += length
        self._send(FrameType.REQUEST, payload, request_id, method)
        return request_id

    def cancel(self, request_id: int) -> None:
        """Tell the server that the answer is not wanted, or no event any more. An answer still comes, and still gives
        the credit back; events still on their way do not."""
        if request_id in self.unanswered or request_id in self.streams:
            self.streams.discard(request_id)
            self._send(FrameType.CANCEL, b"", request_id)

    def grant(self, request_id: int, count: int) -> None:
        """Let the server send so many bytes of events more. Dropped if the stream has ended."""
        if request_id in self.streams:
            self._send(FrameType.CREDIT, encode(WatchCredit(count)), request_id)

    def stream_begun(self, request_id: int) -> None:
        """The RESPONSE to this request has begun a stream. Call it before the next event is taken: events of other ids
        are dropped."""
        self.streams.add(request_id)

    def stream_ended(self, request_id: int) -> None:
        """The stream has said that nothing follows."""
        self.streams.discard(request_id)

    def _received(self, frame: Frame) -> bool:
        kind = frame.type
        if kind in (_RESPONSE, _ERROR):
            if frame.request_id not in self.unanswered:
                raise UnexpectedFrameError(f"an answer to request {frame.request_id}, which is not in flight")
            self._answered(frame.request_id)
            return True
        if kind == FrameType.WELCOME:
            welcome: m.Welcome = _decode(m.Welcome, frame.payload)
            if welcome.version != m.PROTOCOL_VERSION or welcome.frame_bytes_max < HANDSHAKE_BYTES_MAX:
                raise HandshakeError(f"server chose version {welcome.version}, frames of {welcome.frame_bytes_max}")
            if self._assumed and self.welcome is not None and self.welcome.node_id != welcome.node_id:
                raise HandshakeError(f"{welcome.node_id} has answered, not {self.welcome.node_id}")
            self._assumed = False
            self.welcome = welcome
            self.version, self.features = welcome.version, welcome.features & FEATURES
            self.window_bytes = welcome.window_bytes
            self.decoder.frame_bytes_max = min(welcome.frame_bytes_max, FRAME_BYTES_MAX)
        elif kind == FrameType.GOAWAY:
            self.goaway = _decode(m.Goaway, frame.payload)
        elif kind == FrameType.EVENT:
            return frame.request_id in self.streams  # or the client has cancelled it
        elif kind == FrameType.CREDIT:
            self.window_bytes = _decode(m.Credit, frame.payload).window_bytes
        return self._control(frame)
