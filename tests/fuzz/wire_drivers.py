"""Drivers that take the frame decoder and the session through whatever an input says, and check them.

An input is a program: its first bytes choose the end of the connection and how the stream is cut, the rest are
the peer's bytes and our own driver's steps. A target returns normally unless a promise is broken; a broken
promise is an AssertionError or whatever escaped. The coverage-guided fuzzer and the seeded smoke test run the
same targets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec
from golden_rows import FRAMES, MESSAGES, rows

from metad_wire import messages as m
from metad_wire.connection.frame import HANDSHAKE_BYTES_MAX, HEADER_BYTES, Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.connection.session import SHRINKING_MAX, ClientSession, ServerSession, Session, State, decode_error
from metad_wire.errors import CreditError, FrameError, MetadError, OverloadedError, UnknownMethodError
from metad_wire.methods import METHODS, encode

CHUNK_SIZES = (1, 2, 7, 15, 16, 17, 64, 1 << 20)
FRAME_LIMITS = (HEADER_BYTES, 17, 64, 1024)
METHOD_CODES = sorted(METHODS)
WINDOW = 512
# The text of an error names the place of the fault, which types of bounded depth bound.
ERROR_BYTES_MAX = 1024


class Input:
    """Reads a program; zeros behind its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_over(self) -> bool:
        return self._position >= len(self._data)

    def byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1] if self._position <= len(self._data) else 0

    def take(self, count: int) -> bytes:
        self._position += count
        return self._data[self._position - count : self._position]

    def rest(self) -> bytes:
        return self.take(len(self._data))


def cut(data: bytes, chunk_bytes: int) -> Iterator[bytes]:
    """The stream in chunks of this size."""
    for start in range(0, len(data), chunk_bytes):
        yield data[start : start + chunk_bytes]


# --- the frame decoder -----------------------------------------------------------------------------------


def decode_all(data: bytes, chunk_bytes: int, limit: int, feeds: int = 1) -> tuple[list[Frame], str, int]:
    """(frames, error or "", bytes left over) of a stream cut like this and drained after so many feeds."""
    decoder = FrameDecoder(limit)
    frames: list[Frame] = []
    fed = 0
    for index, chunk in enumerate(cut(data, chunk_bytes), 1):
        decoder.feed(chunk)
        fed += len(chunk)
        assert decoder.buffered_bytes < limit + feeds * chunk_bytes, "holds more than a frame and what was fed"
        if index % feeds and fed < len(data):
            continue
        try:
            while (frame := decoder.next()) is not None:
                assert len(frame.payload) == frame.length - HEADER_BYTES <= limit - HEADER_BYTES
                frames.append(frame)
        except MetadError as error:
            assert decoder.buffered_bytes == 0, "holds bytes of a broken stream"
            return frames, str(error), 0
        assert decoder.buffered_bytes < limit, "a whole frame was not returned"
        assert sum(frame.length for frame in frames) + decoder.buffered_bytes == fed, "bytes were lost or made up"
    return frames, "", decoder.buffered_bytes


def run_frame(data: bytes) -> None:
    """The stream gives the same frames, the same error and the same rest however it is cut."""
    program = Input(data)
    limit = FRAME_LIMITS[program.byte() % len(FRAME_LIMITS)]
    chunk_bytes = CHUNK_SIZES[program.byte() % len(CHUNK_SIZES)]
    feeds = 1 + program.byte() % 4
    stream = program.rest()
    frames, error, left = decode_all(stream, chunk_bytes, limit, feeds)
    assert (frames, error, left) == decode_all(stream, max(1, len(stream)), limit)
    again = b"".join(encode_frame(frame.type, frame.payload, frame.request_id, frame.method) for frame in frames)
    assert [frame._replace(flags=0) for frame in frames] == decode_all(again, max(1, len(again)), limit)[0]


# --- the session -----------------------------------------------------------------------------------------


class SessionDriver:
    """One end of a connection, driven through a program; the peer is the program."""

    def __init__(self, program: Input) -> None:
        control = program.byte()
        self.program = program
        self.session: ServerSession | ClientSession = ServerSession() if control & 1 else ClientSession()
        self.chunk_bytes = CHUNK_SIZES[program.byte() % len(CHUNK_SIZES)]
        self.received = self.sent = self.own = 0  # bytes: from the peer, to the peer, of what the driver asked for
        self.window_max = WINDOW
        self.error: MetadError | None = None
        self._out = FrameDecoder()
        if not control & 2:
            self.shake_hands()
        if control & 4:
            self.drain()

    def shake_hands(self) -> None:
        """Get past the handshake, where most of the states are."""
        if isinstance(self.session, ServerSession):
            self.feed(encode_frame(FrameType.HELLO, encode(m.Hello(m.MAGIC, 1, 1))))
        else:
            self.feed(encode_frame(FrameType.WELCOME, encode(welcome())))
        assert self.session.state is State.OPEN

    def run(self) -> None:
        while not self.program.is_over:
            self.step()
            self.check()

    def step(self) -> None:
        program, session = self.program, self.session
        operation = program.byte() % 12
        if operation <= 2:
            self.feed(program.take(program.byte()))
        elif operation <= 6:
            type_, request_id = program.byte() % 14, program.byte() % 8
            method = METHOD_CODES[program.byte() % len(METHOD_CODES)]
            self.feed(encode_frame(type_, program.take(program.byte()), request_id, method))
        elif session.state is State.OPENING:
            return  # a driver that knows its place does nothing else before the handshake is over
        elif operation == 7:
            self.answer_or_ask(program.byte(), program.byte())
        elif operation == 8:
            self.fail_or_cancel(program.byte())
        elif operation == 9:
            window = program.byte() * 8
            if isinstance(session, ServerSession):
                self.own += 64
                self.window_max = max(self.window_max, window)
                session.set_window(window)
        elif operation == 10:
            self.own += 64
            session.ping(program.byte())
        elif program.byte() == 0xFF:
            session.close()
        else:
            self.drain()

    def feed(self, data: bytes) -> None:
        """The peer sends."""
        for chunk in cut(data, self.chunk_bytes):
            self.received += len(chunk)
            self.session.receive_data(chunk)
            limit = self.session.decoder.frame_bytes_max
            assert self.session.decoder.buffered_bytes < limit + len(chunk), "holds more than a frame and a chunk"
            try:
                while (frame := self.session.next_event()) is not None:
                    self.take(frame)
            except MetadError as error:
                self.failed(error)

    def failed(self, error: MetadError) -> None:
        assert self.session.state is State.CLOSED, "a protocol error left the connection open"
        assert self.error is None or self.error is error, "the reason of the end has changed"
        self.error = error

    def take(self, frame: Frame) -> None:
        """What a driver does with an event."""
        session = self.session
        if isinstance(session, ServerSession):
            if frame.type == FrameType.HELLO:
                session.welcome(welcome())
                self.own += 256
            elif frame.type == FrameType.REQUEST:
                method = METHODS.get(frame.method)
                try:
                    if method is None:
                        raise UnknownMethodError
                    method.decode_what_fits(frame.payload)
                except MetadError as error:
                    self.own += ERROR_BYTES_MAX
                    session.fail(frame.request_id, error)
            return
        if frame.type == FrameType.RESPONSE:
            with contextlib.suppress(MetadError):
                METHODS[METHOD_CODES[frame.request_id % len(METHOD_CODES)]].decode_reply(frame.payload)
        elif frame.type == FrameType.ERROR:
            assert isinstance(decode_error(frame.payload), MetadError)

    def answer_or_ask(self, which: int, size: int) -> None:
        session = self.session
        self.own += HEADER_BYTES + size
        if isinstance(session, ClientSession):
            fits = session.can_send(size)
            try:
                session.request(METHOD_CODES[which % len(METHOD_CODES)], bytes(size))
            except (CreditError, FrameError):
                assert not fits, "can_send promised too much"
            else:
                assert fits, "can_send promised too little"
        elif session.unanswered:
            session.respond(sorted(session.unanswered)[which % len(session.unanswered)], bytes(size))

    def fail_or_cancel(self, which: int) -> None:
        session = self.session
        self.own += ERROR_BYTES_MAX
        if isinstance(session, ClientSession):
            session.cancel(which % 8)
        elif session.unanswered:
            session.fail(sorted(session.unanswered)[which % len(session.unanswered)], OverloadedError())

    def drain(self) -> None:
        if isinstance(self.session, ServerSession):
            self.own += 64
            self.session.goaway()
        else:
            self.feed(encode_frame(FrameType.GOAWAY, encode(m.Goaway())))

    def check(self) -> None:
        """What holds after every step."""
        session = self.session
        data = session.data_to_send()
        self.sent += len(data)
        self._out.feed(data)
        while (frame := self._out.next()) is not None:
            if frame.type == FrameType.ERROR:
                assert frame.length <= ERROR_BYTES_MAX, "an error that tells a novel"
                assert frame.request_id or self._out.buffered_bytes == 0, "something follows the last word"
        assert self._out.buffered_bytes == 0, "half a frame was sent"
        assert self.sent <= self.received + self.own + ERROR_BYTES_MAX, "the peer can make us send more than it sends"
        assert session.unanswered_bytes == sum(session.unanswered.values())
        if isinstance(session, ServerSession):
            if len(session.unanswered) > 1:
                assert session.unanswered_bytes <= self.window_max + session.decoder.frame_bytes_max
            assert len(session._shrinking) <= SHRINKING_MAX
            windows = [window for _, window in session._shrinking]
            assert windows == sorted(set(windows), reverse=True)


def welcome() -> m.Welcome:
    return m.Welcome(1, 0, "node-1", "cluster-a", WINDOW, HANDSHAKE_BYTES_MAX, 60_000)


def run_session(data: bytes) -> None:
    """No program makes the session break a promise."""
    driver = SessionDriver(Input(data))
    driver.check()
    driver.run()
    closed: Session = driver.session
    closed.close()
    driver.check()
    closed.receive_data(b"x" * 100)
    assert closed.decoder.buffered_bytes < closed.decoder.frame_bytes_max + (1 << 20)


TARGETS: dict[str, Callable[[bytes], None]] = {"frame": run_frame, "session": run_session}


# --- where a search may begin ----------------------------------------------------------------------------


def seeds(target: str) -> Iterator[bytes]:
    """Inputs made of the golden bytes, for either target."""
    frames = [bytes.fromhex(row.hex) for row in rows(FRAMES)]
    bodies = {row.name: bytes.fromhex(row.hex) for row in rows(MESSAGES)}
    if target == "frame":
        for chunk in range(len(CHUNK_SIZES)):
            yield bytes([3, chunk, chunk]) + b"".join(frames)
        for frame in frames:
            yield bytes([2, 3, 0]) + frame
        return
    for control in range(8):
        for frame in frames:
            yield bytes([control, 7, 0, len(frame)]) + frame
    for index, code in enumerate(METHOD_CODES):
        method = METHODS[code]
        body = bodies.get(method.body.__name__, b"\x91\x90")  # of a plain table: no items
        payload = b"\x93\x00\xc0" + body
        request = bytes([3, FrameType.REQUEST, index % 7 + 1, index, len(payload)]) + payload
        yield bytes([1, 7]) + request + bytes([7, 0, 20])
        yield bytes([1, 4]) + request + bytes([9, 10]) + request + bytes([8, 0])
        reply = msgspec.msgpack.encode([[], [], [], [], []])
        yield bytes([0, 7, 7, index, 30]) + bytes([3, FrameType.RESPONSE, 1, 0, len(reply)]) + reply
    pong = encode(m.Ping((1 << 63) + 1))
    yield bytes([1, 7, 9, 10, 9, 5, 3, FrameType.PONG, 0, 0, len(pong)]) + pong
    credit = encode(m.Credit(40))
    yield bytes([0, 7, 3, FrameType.CREDIT, 0, 0, len(credit)]) + credit + bytes([7, 0, 100, 7, 0, 100, 8, 1])
