"""The session of both ends, as transcripts.

``>>`` is what a peer sends, ``<<`` what the session under test answers or reports. The peer is played by hand
with raw frames, so that it can do what our own other end never would; the last part lets both ends talk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metad_wire import messages as m
from metad_wire.connection.frame import (
    FRAME_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    HEADER_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    encode_frame,
)
from metad_wire.connection.peer import PEER_MAGIC, PeerHello
from metad_wire.connection.session import (
    AHEAD_BYTES,
    SHRINKING_MAX,
    TRANSITIONS,
    ClientSession,
    Role,
    ServerSession,
    Session,
    State,
    decode_error,
)
from metad_wire.errors import (
    CreditError,
    DrainingError,
    ErrorBody,
    FrameError,
    FrameTooLargeError,
    HandshakeError,
    InternalError,
    MetadError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
    UnexpectedFrameError,
)
from metad_wire.methods import BROKER_HEARTBEAT, KV_GET, WATCH_OPEN, encode
from metad_wire.watch import WatchCredit

WINDOW = 1000
WELCOME = m.Welcome(1, 0, "node-1", "cluster-a", WINDOW, FRAME_BYTES_MAX, 60_000)
HELLO = m.Hello(m.MAGIC, 1, 1)


def frame(type_: FrameType, body: Any = None, request_id: int = 0, method: int = 0) -> bytes:
    payload = body if isinstance(body, bytes) else b"" if body is None else encode(body)
    return encode_frame(type_, payload, request_id, method)


def request(request_id: int, payload_bytes: int = 0) -> bytes:
    return frame(FrameType.REQUEST, bytes(payload_bytes), request_id, KV_GET.code)


class Transcript:
    """Plays the peer of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __rshift__(self, data: bytes) -> list[str]:
        """The peer sends; the events that come out, as TYPE or TYPE#id."""
        self.session.receive_data(data)
        return [self._label(event) for event in self._events()]

    def fails(self, data: bytes, error: type[MetadError], match: str | None = None) -> None:
        """The peer sends; the session raises, closes, tells the peer why, and raises the same again."""
        self.sent()
        self.session.receive_data(data)
        with pytest.raises(error, match=match) as caught:
            list(self._events())
        assert type(caught.value) is error
        assert self.session.state is State.CLOSED
        assert self.sent() == [f"ERROR {error.code}"]
        self.session.receive_data(request(99) + frame(FrameType.PING))
        with pytest.raises(error) as again:
            self.session.next_event()
        assert again.value is caught.value
        assert self.sent() == []

    def sent(self) -> list[str]:
        """What the session has sent since the last call."""
        decoder = FrameDecoder()
        decoder.feed(self.session.data_to_send())
        out = []
        while (got := decoder.next()) is not None:
            if got.type in (FrameType.PING, FrameType.PONG) and got.payload:
                out.append(f"{FrameType(got.type).name} {msgspec.msgpack.decode(got.payload)[0]:#x}")
            elif got.type in (FrameType.CREDIT, FrameType.GOAWAY):
                out.append(f"{FrameType(got.type).name} {msgspec.msgpack.decode(got.payload)[0]}")
            elif got.type == FrameType.ERROR:
                out.append(f"{self._label(got)} {decode_error(got.payload).code}")
            else:
                out.append(self._label(got))
        assert decoder.buffered_bytes == 0
        return out

    def _events(self) -> Iterator[Frame]:
        while (event := self.session.next_event()) is not None:
            yield event

    @staticmethod
    def _label(event: Frame) -> str:
        return FrameType(event.type).name + (f"#{event.request_id}" if event.request_id else "")


def server(state: State = State.OPEN) -> tuple[ServerSession, Transcript]:
    """A server session in this state, nothing of it unread."""
    session = ServerSession()
    peer = Transcript(session)
    if state is not State.OPENING:
        assert peer >> frame(FrameType.HELLO, HELLO) == ["HELLO"]
        session.welcome(WELCOME)
        assert peer.sent() == ["WELCOME"]
    if state is State.DRAINING:
        session.goaway()
        assert peer.sent() == ["GOAWAY 0"]
    if state is State.CLOSED:
        session.close()
    assert session.state is state
    return session, peer


def client(state: State = State.OPEN) -> tuple[ClientSession, Transcript]:
    """A client session in this state, nothing of it unread."""
    session = ClientSession(b"token", "test")
    peer = Transcript(session)
    assert peer.sent() == ["HELLO"]
    if state is not State.OPENING:
        assert peer >> frame(FrameType.WELCOME, WELCOME) == ["WELCOME"]
    if state is State.DRAINING:
        assert peer >> frame(FrameType.GOAWAY, m.Goaway()) == ["GOAWAY"]
    if state is State.CLOSED:
        session.close()
    assert session.state is state
    return session, peer


ENDS: dict[Role, Callable[[State], tuple[Session, Transcript]]] = {Role.SERVER: server, Role.CLIENT: client}

# --- the table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "state", "type_"),
    [
        pytest.param(role, state, type_, id=f"{role.value}-{state.value}-{type_.name}")
        for (role, state), allowed in TRANSITIONS.items()
        for type_ in FrameType
        if type_ not in allowed
    ],
)
def test_what_the_table_does_not_list_is_refused(role: Role, state: State, type_: FrameType) -> None:
    _, peer = ENDS[role](state)
    peer.fails(
        frame(type_, b"", request_id=1), UnexpectedFrameError, f"{type_.name} is not allowed while {state.value}"
    )


def test_the_table_has_a_row_for_every_role_and_state_but_closed() -> None:
    assert set(TRANSITIONS) == {(role, state) for role in Role for state in State if state is not State.CLOSED}


VALID: dict[FrameType, bytes] = {
    FrameType.HELLO: frame(FrameType.HELLO, HELLO),
    FrameType.WELCOME: frame(FrameType.WELCOME, WELCOME),
    FrameType.REQUEST: request(1),
    FrameType.RESPONSE: frame(FrameType.RESPONSE, b"", 1),
    FrameType.ERROR: frame(FrameType.ERROR, NotFoundError().body(), 1),
    FrameType.EVENT: frame(FrameType.EVENT, b"", 1),
    FrameType.CANCEL: frame(FrameType.CANCEL, b"", 1),
    FrameType.CREDIT: frame(FrameType.CREDIT, m.Credit(1)),
    FrameType.PING: frame(FrameType.PING, m.Ping(1)),
    FrameType.PONG: frame(FrameType.PONG, m.Ping(1)),
    FrameType.GOAWAY: frame(FrameType.GOAWAY, m.Goaway()),
}


@pytest.mark.parametrize(
    ("role", "state", "type_", "next_state"),
    [
        pytest.param(role, state, type_, next_state, id=f"{role.value}-{state.value}-{FrameType(type_).name}")
        for (role, state), allowed in TRANSITIONS.items()
        for type_, next_state in allowed.items()
        if (role, state, type_) != (Role.CLIENT, State.OPENING, FrameType.ERROR)  # below, with request id 0
    ],
)
def test_what_the_table_lists_leads_where_it_says(
    role: Role, state: State, type_: FrameType, next_state: State
) -> None:
    session, peer = ENDS[role](state if (role, state) != (Role.CLIENT, State.DRAINING) else State.OPEN)
    if isinstance(session, ClientSession) and state is not State.OPENING:
        session.request(KV_GET.code, b"")
    if role is Role.CLIENT and state is State.DRAINING:
        assert peer >> VALID[FrameType.GOAWAY] == ["GOAWAY"]
    peer >> VALID[type_]
    assert session.state is next_state


def test_a_closed_session_takes_and_says_nothing() -> None:
    for end in ENDS.values():
        session, peer = end(State.CLOSED)
        assert peer >> frame(FrameType.PING, m.Ping(1)) + b"garbage" * 100 == []
        assert peer.sent() == []
        assert session.decoder.buffered_bytes == 0
        session.fail_connection(OverloadedError())
        assert peer.sent() == []
        assert session.next_event() is None


# --- the handshake ---------------------------------------------------------------------------------------


def test_handshake_of_a_server() -> None:
    session = ServerSession()
    peer = Transcript(session)
    assert peer >> frame(FrameType.HELLO, m.Hello("metad", 1, 3, 0xFF, b"token", "broker-7")) == ["HELLO"]
    assert session.state is State.OPENING
    assert peer.sent() == []
    assert session.hello is not None
    assert session.hello.credentials == b"token"
    assert (session.version, session.features) == (1, 0b1111)
    session.welcome(WELCOME)
    assert peer.sent() == ["WELCOME"]
    assert session.state is State.OPEN
    assert peer >> request(1) == ["REQUEST#1"]


def test_handshake_of_a_client() -> None:
    session = ClientSession(b"token", "broker-7")
    peer = Transcript(session)
    assert not session.can_send(0)
    with pytest.raises(CreditError, match="opening"):
        session.request(KV_GET.code, b"")
    assert session.data_to_send() == frame(FrameType.HELLO, m.Hello("metad", 1, 1, 0b1111, b"token", "broker-7"))
    newer = msgspec.structs.replace(WELCOME, features=0b100010)
    assert peer >> frame(FrameType.WELCOME, newer) == ["WELCOME"]
    assert session.welcome == newer
    assert (session.version, session.features, session.window_bytes) == (1, 0b10, WINDOW)
    assert session.can_send(0)


@pytest.mark.parametrize("low_high", [(0, 0), (2, 2), (2, 9), (3, 1)])
def test_a_client_of_other_versions_is_refused(low_high: tuple[int, int]) -> None:
    _, peer = server(State.OPENING)
    peer.fails(frame(FrameType.HELLO, m.Hello(m.MAGIC, *low_high)), HandshakeError, "versions")


def test_a_client_of_another_protocol_is_refused() -> None:
    _, peer = server(State.OPENING)
    peer.fails(frame(FrameType.HELLO, m.Hello("kafka", 1, 1)), HandshakeError, "not a metad HELLO")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: metad\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20),  # a TLS ClientHello
        b"\x10\x20\x00\x04MQTT\x05\x02\x00\x3c" + bytes(20),
    ],
)
def test_a_client_that_is_none_of_ours_is_refused_by_its_first_bytes(data: bytes) -> None:
    session, peer = server(State.OPENING)
    session.receive_data(data)
    with pytest.raises(MetadError):
        session.next_event()
    assert peer.sent() in (["ERROR 1"], ["ERROR 2"])


def test_a_node_at_the_port_for_clients_is_told_so() -> None:
    _, peer = server(State.OPENING)
    hello = PeerHello(PEER_MAGIC, 2, "c", "n1", "store", "n2")
    peer.fails(frame(FrameType.HELLO, hello), HandshakeError, "this is the port for clients")


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\x93\xa1\xff\x01\x01", encode(HELLO) + b"x", b"\x93" * 10_000])
def test_a_malformed_hello_is_refused(payload: bytes) -> None:
    _, peer = server(State.OPENING)
    peer.fails(frame(FrameType.HELLO, payload), FrameError, "Hello")


def test_a_second_hello_before_the_welcome_is_refused() -> None:
    _, peer = server(State.OPENING)
    assert peer >> frame(FrameType.HELLO, HELLO) == ["HELLO"]
    peer.fails(frame(FrameType.HELLO, HELLO), UnexpectedFrameError, "second HELLO")


def test_a_request_behind_the_hello_waits_for_no_one() -> None:
    """The window is unknown until WELCOME, so a request before it is refused even behind a good HELLO."""
    session, _ = server(State.OPENING)
    session.receive_data(frame(FrameType.HELLO, HELLO) + request(1))
    assert session.next_event() is not None
    with pytest.raises(UnexpectedFrameError):
        session.next_event()


def test_before_the_handshake_a_stranger_makes_us_hold_little() -> None:
    _, peer = server(State.OPENING)
    peer.fails(frame(FrameType.HELLO, bytes(HANDSHAKE_BYTES_MAX)), FrameTooLargeError)


def test_wrong_credentials_close_the_connection() -> None:
    session, peer = server(State.OPENING)
    assert peer >> frame(FrameType.HELLO, HELLO) == ["HELLO"]
    session.fail_connection(UnauthenticatedError())
    assert peer.sent() == ["ERROR 6"]
    with pytest.raises(UnauthenticatedError):
        session.next_event()


def test_a_welcome_that_comes_too_late_does_not_revive_the_connection() -> None:
    """Credentials may be checked elsewhere; meanwhile the client has gone, or said something wrong."""
    session, peer = server(State.OPENING)
    assert peer >> frame(FrameType.HELLO, HELLO) == ["HELLO"]
    session.close()
    session.welcome(WELCOME)
    assert session.state is State.CLOSED
    assert peer.sent() == []


def test_a_welcome_out_of_turn_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        ServerSession().welcome(WELCOME)
    with pytest.raises(AssertionError):
        server()[0].welcome(WELCOME)
    for session in (ServerSession(), ClientSession()):
        with pytest.raises(AssertionError):
            session.ping(1)


@pytest.mark.parametrize(
    ("welcome", "error"),
    [
        (msgspec.structs.replace(WELCOME, version=2), HandshakeError),
        (msgspec.structs.replace(WELCOME, frame_bytes_max=HANDSHAKE_BYTES_MAX - 1), HandshakeError),
        (b"\x91\x01", FrameError),
    ],
)
def test_a_client_refuses_a_welcome_it_cannot_keep(welcome: Any, error: type[MetadError]) -> None:
    _, peer = client(State.OPENING)
    peer.fails(frame(FrameType.WELCOME, welcome), error)


def test_a_client_holds_the_server_to_its_own_frame_limit() -> None:
    session, peer = client(State.OPENING)
    peer >> frame(FrameType.WELCOME, msgspec.structs.replace(WELCOME, frame_bytes_max=2**32 - 1))
    assert session.decoder.frame_bytes_max == FRAME_BYTES_MAX


@pytest.mark.parametrize("end", [client, server], ids=["client", "server"])
@pytest.mark.parametrize("state", [State.OPENING, State.OPEN, State.DRAINING])
def test_an_error_without_a_request_closes_and_is_not_answered(end: Any, state: State) -> None:
    session, peer = end(state)
    session.receive_data(frame(FrameType.ERROR, UnauthenticatedError("go away").body()) + frame(FrameType.PING))
    for _ in range(2):
        with pytest.raises(UnauthenticatedError, match="go away"):
            session.next_event()
    assert session.state is State.CLOSED
    assert peer.sent() == []


def test_an_error_with_a_request_during_the_handshake_is_refused_for_good() -> None:
    """Guards a hole: this error was raised once and forgotten, so the next call said all was well."""
    _, peer = client(State.OPENING)
    peer.fails(frame(FrameType.ERROR, NotFoundError().body(), request_id=1), UnexpectedFrameError)


# --- requests --------------------------------------------------------------------------------------------


def test_a_server_answers_in_any_order() -> None:
    session, peer = server()
    assert peer >> request(5) + request(2) + request(9) == ["REQUEST#5", "REQUEST#2", "REQUEST#9"]
    assert session.unanswered_bytes == 3 * HEADER_BYTES
    session.respond(2, b"two")
    session.fail(9, OverloadedError(retry_after_ms=10))
    session.respond(5, b"")
    assert peer.sent() == ["RESPONSE#2", "ERROR#9 104", "RESPONSE#5"]
    assert session.unanswered_bytes == 0
    assert not session.unanswered
    assert session.state is State.OPEN


def test_an_answer_frees_its_request_id() -> None:
    session, peer = server()
    for _ in range(3):
        assert peer >> request(1) == ["REQUEST#1"]
        session.respond(1, b"")


def test_answering_twice_is_our_own_bug() -> None:
    session, peer = server()
    peer >> request(1)
    session.respond(1, b"")
    for answer in (lambda: session.respond(1, b""), lambda: session.fail(1, InternalError())):
        with pytest.raises(KeyError):
            answer()


def test_a_duplicate_request_id_is_refused() -> None:
    _, peer = server()
    assert peer >> request(1) == ["REQUEST#1"]
    peer.fails(request(1), UnexpectedFrameError, "request id 1")


def test_request_id_zero_is_refused() -> None:
    """Guards the meaning of ERROR with id 0: an item's failure would have closed the connection."""
    _, peer = server()
    peer.fails(request(0), UnexpectedFrameError, "request id 0")


@pytest.mark.parametrize("type_", [FrameType.RESPONSE, FrameType.ERROR])
def test_an_answer_to_no_request_is_refused(type_: FrameType) -> None:
    session, peer = client()
    assert session.request(KV_GET.code, b"") == 1
    answer = frame(type_, NotFoundError().body() if type_ is FrameType.ERROR else b"", request_id=1)
    assert peer >> answer == [f"{type_.name}#1"]
    peer.fails(answer, UnexpectedFrameError, "not in flight")


def test_a_response_without_a_request_id_is_refused() -> None:
    _, peer = client()
    peer.fails(frame(FrameType.RESPONSE), UnexpectedFrameError, "request 0")


def test_a_cancel_is_an_event_whether_or_not_there_is_something_to_cancel() -> None:
    """What would be swallowed, a peer could send without end."""
    session, peer = server()
    peer >> request(1)
    assert peer >> frame(FrameType.CANCEL, request_id=1) == ["CANCEL#1"]
    session.respond(1, b"")
    assert peer >> frame(FrameType.CANCEL, request_id=1) == ["CANCEL#1"]
    assert peer >> frame(FrameType.CANCEL, request_id=77) == ["CANCEL#77"]


def test_a_cancelled_request_is_still_answered_and_counted() -> None:
    session, peer = client()
    request_id = session.request(KV_GET.code, b"body")
    session.cancel(request_id)
    session.cancel(12345)
    assert peer.sent() == ["REQUEST#1", "CANCEL#1"]
    assert session.unanswered_bytes == HEADER_BYTES + 4
    assert peer >> frame(FrameType.RESPONSE, b"", 1) == ["RESPONSE#1"]
    session.cancel(request_id)
    assert peer.sent() == []
    assert session.unanswered_bytes == 0


def test_a_request_over_the_frame_limit_is_refused_before_it_is_sent() -> None:
    session, peer = client(State.OPENING)
    peer >> frame(FrameType.WELCOME, msgspec.structs.replace(WELCOME, frame_bytes_max=20_000, window_bytes=10**6))
    with pytest.raises(FrameError, match="20001 bytes"):
        session.request(KV_GET.code, bytes(20_001 - HEADER_BYTES))
    assert peer.sent() == []
    assert session.request(KV_GET.code, bytes(20_000 - HEADER_BYTES)) == 1


def test_a_frame_over_the_limit_closes_the_connection() -> None:
    session, peer = server(State.OPENING)
    peer >> frame(FrameType.HELLO, HELLO)
    session.welcome(msgspec.structs.replace(WELCOME, frame_bytes_max=20_000))
    peer.fails(request(1, 20_000), FrameTooLargeError)


def test_answers_from_behind_a_closed_session_are_dropped() -> None:
    """Guards the promise that nothing follows the ERROR frame, and memory: the driver may be gone by then."""
    session, peer = server()
    peer >> request(1) + request(2)
    session.respond(1, b"in time")
    session.fail_connection(OverloadedError())
    session.respond(2, b"too late")
    session.ping(1)
    session.set_window(5)
    session.goaway()
    assert peer.sent() == ["RESPONSE#1", "ERROR 104"]
    assert session.data_to_send() == b""
    assert session.state is State.CLOSED


# --- flow control ----------------------------------------------------------------------------------------


def test_more_than_the_window_is_refused() -> None:
    session, peer = server()
    assert peer >> request(1, 500 - HEADER_BYTES) + request(2, 500 - HEADER_BYTES) == ["REQUEST#1", "REQUEST#2"]
    assert session.unanswered_bytes == WINDOW
    peer.fails(request(3), CreditError, "1016 request bytes unanswered, the window is 1000")


def test_an_answer_gives_its_credit_back() -> None:
    session, peer = server()
    peer >> request(1, 900) + request(2)
    session.respond(1, b"")
    assert peer >> request(3, 900) == ["REQUEST#3"]


def test_a_frame_alone_may_be_larger_than_the_window() -> None:
    _, peer = server()
    assert peer >> request(1, 5 * WINDOW) == ["REQUEST#1"]
    peer.fails(request(2), CreditError)


def test_a_client_keeps_to_the_window() -> None:
    session, peer = client()
    assert session.can_send(5 * WINDOW)
    session.request(KV_GET.code, bytes(WINDOW - 2 * HEADER_BYTES))
    assert session.can_send(0)
    assert not session.can_send(1)
    with pytest.raises(CreditError, match="window 1000"):
        session.request(KV_GET.code, b"x")
    session.request(KV_GET.code, b"")
    assert not session.can_send(0)
    assert peer >> frame(FrameType.CREDIT, m.Credit(WINDOW + HEADER_BYTES + 1)) == ["CREDIT"]
    assert session.can_send(1)
    assert not session.can_send(2)
    assert peer >> frame(FrameType.RESPONSE, b"", 1) == ["RESPONSE#1"]
    assert session.can_send(2)


@pytest.mark.parametrize("payload", [b"", b"\x91\xff", b"\x91\xa1x", b"\x91\xcf" + b"\xff" * 8])
def test_a_malformed_credit_is_refused(payload: bytes) -> None:
    _, peer = client()
    peer.fails(frame(FrameType.CREDIT, payload), FrameError, "Credit")


def pong(token: int) -> bytes:
    return frame(FrameType.PONG, m.Ping(token))


BARRIER = 1 << 63


def test_some_of_a_large_window_is_kept_free_for_what_goes_ahead() -> None:
    window = 16 * AHEAD_BYTES
    session, peer = client()
    assert peer >> frame(FrameType.CREDIT, m.Credit(window)) == ["CREDIT"]
    session.request(KV_GET.code, bytes(window - AHEAD_BYTES - 2 * HEADER_BYTES - 1))
    assert session.can_send(1)
    assert not session.can_send(2)
    assert session.can_send(AHEAD_BYTES + 1, ahead=True)
    assert not session.can_send(AHEAD_BYTES + 2, ahead=True)
    session.request(BROKER_HEARTBEAT.code, bytes(AHEAD_BYTES + 1))
    assert session.unanswered_bytes == window


def test_a_larger_window_holds_at_once() -> None:
    session, peer = server()
    session.set_window(2 * WINDOW)
    assert peer.sent() == ["CREDIT 2000"]
    assert peer >> request(1, WINDOW) + request(2, 900) == ["REQUEST#1", "REQUEST#2"]


def test_a_smaller_window_holds_from_the_pong_behind_it() -> None:
    session, peer = server()
    session.set_window(100)
    assert peer.sent() == ["CREDIT 100", f"PING {BARRIER + 1:#x}"]
    # The peer has not seen it yet: what it sent meanwhile is fine.
    assert peer >> request(1, 400) + request(2, 400) == ["REQUEST#1", "REQUEST#2"]
    assert session.window_bytes == WINDOW
    assert peer >> pong(BARRIER + 1) == ["PONG"]
    assert session.window_bytes == 100
    peer.fails(request(3), CreditError, "the window is 100")


def test_the_drivers_own_ping_is_no_barrier() -> None:
    session, peer = server()
    session.set_window(100)
    session.ping(BARRIER - 1)
    assert peer >> pong(BARRIER - 1) == ["PONG"]
    assert session.window_bytes == WINDOW


def test_a_larger_window_forgets_a_smaller_one_that_is_under_way() -> None:
    session, peer = server()
    session.set_window(100)
    session.set_window(2 * WINDOW)
    assert peer >> pong(BARRIER + 1) == ["PONG"]
    assert session.window_bytes == 2 * WINDOW


def test_a_window_grown_while_it_shrinks_is_granted_in_full() -> None:
    """Guards well-behaved peers: after CREDIT 50 and CREDIT 700, the pong of the first used to leave 50, and
    the client that had already seen 700 was cut off for using it."""
    session, peer = server()
    session.set_window(50)
    session.set_window(700)
    assert peer.sent() == ["CREDIT 50", f"PING {BARRIER + 1:#x}", "CREDIT 700"]
    assert session.window_bytes == WINDOW
    assert peer >> pong(BARRIER + 1) == ["PONG"]
    assert session.window_bytes == 700


def test_windows_that_shrink_step_by_step_hold_step_by_step() -> None:
    session, peer = server()
    for window in (800, 600, 400):
        session.set_window(window)
    held = []
    for step in (1, 2, 3):
        peer >> pong(BARRIER + step)
        held.append(session.window_bytes)
    assert held == [800, 600, 400]


def test_a_peer_that_answers_no_ping_makes_nothing_grow() -> None:
    session, peer = server()
    for window in range(900, 100, -1):
        session.set_window(window)
    assert len(session._shrinking) <= SHRINKING_MAX
    peer.sent()
    assert peer >> pong(session._barrier) == ["PONG"]
    assert session.window_bytes == 101


@pytest.mark.parametrize("payload", [b"", b"\x90", b"\x91\xff", b"\x91\xa1x"])
def test_a_malformed_pong_is_refused_where_it_is_read(payload: bytes) -> None:
    session, peer = server()
    assert peer >> frame(FrameType.PONG, payload) == ["PONG"]
    session.set_window(1)
    peer.fails(frame(FrameType.PONG, payload), FrameError, "Ping")


# --- ping, goaway, events --------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "events"), [(server, ["PING", "PING"]), (client, [])])
def test_a_ping_is_echoed_inside(end: Callable[[], tuple[Session, Transcript]], events: list[str]) -> None:
    session, peer = end()
    assert peer >> frame(FrameType.PING, m.Ping(0x1234)) + frame(FrameType.PING, m.Ping(5)) == events
    assert peer.sent() == ["PONG 0x1234", "PONG 0x5"]
    session.ping(0x77)
    assert peer.sent() == ["PING 0x77"]
    assert peer >> pong(0x77) == ["PONG"]


@pytest.mark.parametrize("payload_bytes", [0, 16, 17, 10_000])
def test_an_echo_is_never_longer_than_16_bytes(payload_bytes: int) -> None:
    session, peer = server()
    peer >> frame(FrameType.PING, b"\x01" * payload_bytes)
    expected = payload_bytes if payload_bytes <= 16 else 0
    assert len(session.data_to_send()) == HEADER_BYTES + expected


def test_a_draining_server_answers_what_comes_and_what_is_there() -> None:
    session, peer = server()
    peer >> request(1)
    session.goaway(DrainingError.code, "restart")
    assert peer.sent() == ["GOAWAY 105"]
    assert peer >> request(2) == ["REQUEST#2"]  # it was on its way: the driver refuses it
    session.fail(2, DrainingError())
    session.respond(1, b"")
    session.goaway()
    assert peer.sent() == ["ERROR#2 105", "RESPONSE#1", "GOAWAY 0"]
    assert session.state is State.DRAINING


def test_a_draining_client_sends_nothing_new() -> None:
    session, peer = client()
    session.request(KV_GET.code, b"")
    assert peer >> frame(FrameType.GOAWAY, m.Goaway(105, "restart")) == ["GOAWAY"]
    assert session.goaway == m.Goaway(105, "restart")
    assert not session.can_send(0)
    with pytest.raises(CreditError, match="draining"):
        session.request(KV_GET.code, b"")
    session.cancel(1)
    assert peer >> frame(FrameType.RESPONSE, b"", 1) == ["RESPONSE#1"]
    assert not session.unanswered


def test_goaway_before_the_handshake_does_not_open_the_door() -> None:
    """Guards authentication: a draining server took requests from a connection that had not said HELLO."""
    session, peer = server(State.OPENING)
    session.goaway(reason="restart")
    assert peer.sent() == ["ERROR 105"]
    assert session.state is State.CLOSED
    session.receive_data(request(1))
    with pytest.raises(DrainingError, match="restart"):
        session.next_event()


def test_a_malformed_goaway_is_refused() -> None:
    _, peer = client()
    peer.fails(frame(FrameType.GOAWAY, b"\x91\xa1x"), FrameError, "Goaway")


# --- watches ---------------------------------------------------------------------------------------------


def test_events_of_a_stream_reach_the_driver_until_it_ends() -> None:
    session, peer = client()
    number = session.request(WATCH_OPEN.code, b"")
    event = frame(FrameType.EVENT, b"\x90", request_id=number)
    assert peer >> event == []  # before the answer there is no stream
    assert peer >> frame(FrameType.RESPONSE, b"\x90", request_id=number) == [f"RESPONSE#{number}"]
    assert session.unanswered_bytes == 0
    session.stream_begun(number)
    assert peer >> event + event == [f"EVENT#{number}"] * 2
    session.stream_ended(number)
    assert peer >> event == []


def test_events_on_their_way_are_dropped_after_a_cancel() -> None:
    session, peer = client()
    number = session.request(WATCH_OPEN.code, b"")
    assert peer >> frame(FrameType.RESPONSE, b"\x90", request_id=number) == [f"RESPONSE#{number}"]
    session.stream_begun(number)
    session.grant(number, 500)
    session.cancel(number)
    session.grant(number, 500)
    session.cancel(number)
    assert peer.sent() == [f"REQUEST#{number}", "CREDIT 500", f"CANCEL#{number}"]
    assert peer >> frame(FrameType.EVENT, b"\x90", request_id=number) == []


def test_a_stream_gives_the_credit_of_its_request_back_and_keeps_its_id() -> None:
    session, peer = server()
    assert peer >> request(7, WINDOW - HEADER_BYTES) == ["REQUEST#7"]
    session.begin_stream(7, b"\x90")
    assert session.unanswered_bytes == 0
    assert peer >> request(8, WINDOW - HEADER_BYTES) == ["REQUEST#8"]
    session.event(7, b"\x90")
    assert peer.sent() == ["RESPONSE#7", "EVENT#7"]
    assert peer >> frame(FrameType.CREDIT, WatchCredit(9), request_id=7) == ["CREDIT#7"]
    assert peer >> frame(FrameType.CREDIT, WatchCredit(9), request_id=9) == []  # it may have ended meanwhile
    session.respond(8, b"")
    peer.fails(request(7), UnexpectedFrameError, "already in flight")


@pytest.mark.parametrize("ends", ["cancel", "last"])
def test_the_id_of_a_stream_is_free_once_it_has_ended(ends: str) -> None:
    session, peer = server()
    assert peer >> request(7) == ["REQUEST#7"]
    session.begin_stream(7, b"\x90")
    if ends == "cancel":
        assert peer >> frame(FrameType.CANCEL, b"", request_id=7) == ["CANCEL#7"]
    else:
        session.event(7, b"\x90", last=True)
    assert not session.streams
    assert peer >> request(7) == ["REQUEST#7"]


def test_a_stream_that_begins_once_the_session_has_closed_is_dropped() -> None:
    session, peer = server()
    assert peer >> request(7) == ["REQUEST#7"]
    session.close()
    session.begin_stream(7, b"\x90")
    assert not session.streams
    assert peer.sent() == []


# --- both ends -------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_both_ends_understand_each_other_whatever_the_chunks_and_the_order(seed: int) -> None:
    """A random walk of both drivers over a wire that cuts anywhere: no step may be a protocol error."""
    rng = random.Random(seed)
    near, far = ClientSession(), ServerSession()
    wires = {Role.CLIENT: bytearray(), Role.SERVER: bytearray()}  # by sender
    answered: set[int] = set()
    asked: set[int] = set()

    def move(source: Session, target: Session) -> None:
        wire = wires[source.role]
        wire += source.data_to_send()
        count = rng.choice((1, 15, 40, len(wire)))
        chunk = bytes(wire[:count])
        del wire[:count]
        target.receive_data(chunk)
        while (event := target.next_event()) is not None:
            if event.type == FrameType.HELLO:
                far.welcome(WELCOME)
            elif event.type in (FrameType.RESPONSE, FrameType.ERROR):
                answered.add(event.request_id)

    def answer(count: int) -> None:
        for request_id in rng.sample(sorted(far.unanswered), min(count, len(far.unanswered))):
            if rng.random() < 0.8:
                far.respond(request_id, bytes(rng.randrange(50)))
            else:
                far.fail(request_id, OverloadedError())

    for _ in range(300):
        step = rng.randrange(8)
        if step <= 1:
            move(near, far)
        elif step <= 3:
            move(far, near)
        elif step == 4 and near.can_send(size := rng.choice((0, 10, 100, 700, 3000))):
            asked.add(near.request(KV_GET.code, bytes(size)))
        elif step == 5:
            answer(3)
        elif step == 6 and near.unanswered:
            near.cancel(rng.choice(sorted(near.unanswered)))
        elif step == 7 and far.state is State.OPEN:
            far.set_window(rng.choice((0, 50, 200, 700, WINDOW, 3000)))
    if far.state is State.OPEN and rng.random() < 0.5:
        far.goaway()
    while any(wires.values()) or near.unanswered or far.unanswered or near._out or far._out:
        move(near, far)
        move(far, near)
        answer(1)
    assert answered == asked
    assert near.unanswered_bytes == far.unanswered_bytes == 0
    if far.state is State.OPEN:
        assert near.window_bytes == far.window_bytes


@given(
    data=st.binary(max_size=300), cut=st.integers(0, 300), state=st.sampled_from(list(State)), is_server=st.booleans()
)
@settings(max_examples=100)
def test_garbage_closes_with_a_metad_error_or_waits(data: bytes, cut: int, state: State, is_server: bool) -> None:
    session, _ = (server if is_server else client)(state)
    for chunk in (data[:cut], data[cut:]):
        session.receive_data(chunk)
        try:
            while session.next_event() is not None:
                pass
        except MetadError:
            assert session.state is State.CLOSED
            assert session.decoder.buffered_bytes == 0


def test_error_body_without_its_optional_fields_is_understood() -> None:
    session, _ = client()
    session.receive_data(frame(FrameType.ERROR, b"\x91\x68"))
    with pytest.raises(OverloadedError) as caught:
        session.next_event()
    assert caught.value.body() == ErrorBody(104, caught.value.message)
