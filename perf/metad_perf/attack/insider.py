"""A malicious connection that was admitted: sends one request at a time, or as many as it can. Blocking; runs in the
attacker's process, over TLS and over QUIC."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

from metad_wire import messages as m
from metad_wire.connection.frame import Frame, FrameType, encode_frame
from metad_wire.connection.session import decode_error
from metad_wire.errors import MetadError, NotLeaderError
from metad_wire.methods import METHODS, Method
from metad_wire.transport.credentials import TlsFiles

from .peer import HELLO, WAIT_S, QuicPeer, Target, TlsPeer, payload_of, request

Body = TypeVar("Body", bound=m.Message)
Reply = TypeVar("Reply", bound=m.Message)

_CHUNK_BYTES = 256 * 1024  # passed to the connection at a time
_READS = 64  # in one turn: a client that gets answers without end must also send
_TURN_S = 0.05
_QUEUED_BYTES = 512 * 1024  # of a flood, waiting to be sent
_WINDOW_BYTES = 24 * 1024 * 1024  # unanswered requests of a flood: within the 32 MiB that the node grants
_LAST_ANSWERS_S = 20.0  # after a flood, for what is on its way


class GoneError(Exception):
    """The server closed the connection, or did not answer in time."""


class Insider:
    """One welcomed connection. Raises OSError or GoneError if it is not welcomed."""

    def __init__(self, target: Target, *, node: int = 0, files: TlsFiles | None = None, hello: bytes = HELLO) -> None:
        self.node = node
        files = target.good if files is None else files
        self._link: _TlsLink | _QuicLink = (
            _QuicLink(target, files, node) if target.transport == "quic" else _TlsLink(target, files, node)
        )
        self.heard = self._link.heard
        self.heard.answered = self._answered
        self.heard.secret = target.secret.encode()
        self._number = 0
        self._methods: dict[int, int] = {}
        self._kept: dict[int, Any] = {}
        self._flying: dict[int, int] = {}  # request -> bytes, of a flood
        self._flying_bytes = 0
        self._link.queue(hello)
        until_s = time.monotonic() + WAIT_S
        while not self.heard.welcomes:
            self._wait(until_s)

    def __enter__(self) -> Insider:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._link.close()

    @property
    def ended(self) -> bool:
        """Whether the server has closed the connection."""
        return self._link.ended

    def say(self, data: bytes) -> None:
        """Send raw bytes."""
        self._link.queue(data)
        self._link.turn(0.0)

    def stop_reading(self) -> None:
        """Read as little as possible from now on."""
        self._link.stop_reading()

    def ask(
        self,
        method: Method[Body, Reply],
        body: Body,
        *,
        identity: m.Identity | None = None,
        deadline_ms: int = 0,
        wait_s: float = WAIT_S,
    ) -> Reply:
        """Send a request and return its reply. Raises MetadError for an error reply, and GoneError if none comes."""
        return self.ask_encoded(method, payload_of(method, body, deadline_ms, identity), wait_s=wait_s)

    def ask_encoded(self, method: Method[Any, Reply], payload: bytes, *, wait_s: float = WAIT_S) -> Reply:
        """Send a request with any payload; otherwise like :meth:`ask`."""
        number = self.post(method, payload)
        until_s = time.monotonic() + wait_s
        while number not in self._kept:
            self._wait(until_s)
        answer = self._kept.pop(number)
        if isinstance(answer, MetadError):
            raise answer
        return answer  # type: ignore[no-any-return]

    def post(self, method: Method[Any, Any], payload: bytes) -> int:
        """Send a request without waiting; returns its number."""
        self._number += 1
        self._methods[self._number] = method.code
        self._link.queue(request(self._number, method.code, payload))
        self._link.turn(0.0)
        return self._number

    def flood(
        self, frame: Callable[[int], bytes], until_s: float, *, in_flight: int = 1_000, at_least: int = 1
    ) -> None:
        """Keep as many requests unanswered as the window and ``in_flight`` allow, until ``until_s`` and until
        ``at_least`` were sent, and take the answers. ``frame`` makes the request of a number. Raises GoneError if
        answers stay out."""
        while (time.monotonic() < until_s or self._number < at_least) and not self._link.ended:
            while (
                len(self._flying) < in_flight
                and self._link.queued_bytes < _QUEUED_BYTES
                and (not self._flying or self._flying_bytes < _WINDOW_BYTES)
            ):
                self._number += 1
                data = frame(self._number)
                self._flying[self._number] = len(data)
                self._flying_bytes += len(data)
                self._link.queue(data)
            self._link.turn(_TURN_S)
        until_s = time.monotonic() + _LAST_ANSWERS_S
        while self._flying and not self._link.ended:
            self._wait(until_s)

    @property
    def sent(self) -> int:
        """The number of requests so far."""
        return self._number

    def _wait(self, until_s: float) -> None:
        if self._link.ended:
            raise GoneError("the server hung up")
        if time.monotonic() > until_s:
            raise GoneError("no answer in time")
        self._link.turn(_TURN_S)

    def _answered(self, frame: Frame) -> None:
        if frame.request_id in self._flying:
            self._flying_bytes -= self._flying.pop(frame.request_id)
            return
        if (code := self._methods.pop(frame.request_id, None)) is None:
            return
        if frame.type == FrameType.ERROR:
            self._kept[frame.request_id] = decode_error(frame.payload)
        else:
            self._kept[frame.request_id] = METHODS[code].decode_reply(frame.payload)


class _TlsLink:
    def __init__(self, target: Target, files: TlsFiles, node: int) -> None:
        self._peer = TlsPeer(target, files, node=node)
        self._peer.socket.setblocking(False)
        self.heard = self._peer.heard
        self.ended = False
        self._queue = bytearray()
        self._reads = True

    @property
    def queued_bytes(self) -> int:
        return len(self._queue)

    def queue(self, data: bytes) -> None:
        self._queue += data

    def stop_reading(self) -> None:
        self._reads = False
        self._peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def turn(self, wait_s: float) -> None:
        """Send and receive what is possible, after waiting at most ``wait_s`` for it."""
        if self.ended:
            return
        peer = self._peer.socket
        if wait_s and not peer.pending():
            select.select([peer] if self._reads else [], [peer] if self._queue else [], [], wait_s)
        try:
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                while self._queue:
                    # One piece at a time: an unfinished write must be repeated with the same bytes.
                    count = peer.send(memoryview(self._queue)[:_CHUNK_BYTES].tobytes())
                    del self._queue[:count]
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                for _ in range(_READS if self._reads else 0):
                    data = peer.recv(_CHUNK_BYTES)
                    if not data:
                        self.ended = True
                        return
                    self.heard.take(data)
        except OSError:
            self.ended = True

    def close(self) -> None:
        self._peer.socket.close()


class _QuicLink:
    def __init__(self, target: Target, files: TlsFiles, node: int) -> None:
        self._peer = QuicPeer(target, files, node=node)
        self.heard = self._peer.heard
        self._queued = False
        if not self._peer.connect():
            self._peer.socket.close()
            raise GoneError("no QUIC connection")

    @property
    def ended(self) -> bool:
        return self._peer.ended or self._peer.reset

    @property
    def queued_bytes(self) -> int:
        stream: Any = self._peer.connection._streams.get(0)
        return 0 if stream is None else len(stream.sender._buffer)

    def queue(self, data: bytes) -> None:
        self._peer.connection.send_stream_data(0, data)

    def stop_reading(self) -> None:
        self._peer.connection.stingy = True

    def turn(self, wait_s: float) -> None:
        frames = self.heard.frames
        self._peer.until(lambda: self.heard.frames > frames, wait_s)

    def close(self) -> None:
        self._peer.__exit__()


def leader_of(target: Target, method: Method[Body, Any], body: Body, *, wait_s: float = WAIT_S) -> Insider:
    """A connection to the node that answers this request; tries one node after the other. Raises GoneError."""
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        for node in range(len(target.addresses)):
            insider = None
            try:
                insider = Insider(target, node=node)
                insider.ask(method, body)
            except NotLeaderError:
                pass
            except (MetadError, OSError, GoneError):
                time.sleep(_TURN_S)
            else:
                return insider
            if insider is not None:
                insider.close()
    raise GoneError("no node leads")


def cancel(number: int) -> bytes:
    """The frame that cancels a request."""
    return encode_frame(FrameType.CANCEL, b"", number)
