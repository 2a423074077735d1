"""An attacker's own connections: TLS by the ssl module, QUIC by unmodified aioquic, metad's frames built by hand.
Blocking; deliberately not bound by our own limits. Runs in the attacker's process."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.tls import SessionTicket

from metad_wire import messages as m
from metad_wire import methods
from metad_wire.cluster import GroupId
from metad_wire.connection.frame import Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.methods import Body, Method, encode
from metad_wire.routing import KINDS
from metad_wire.transport.credentials import TlsFiles

WAIT_S = 5.0  # for an answer, and for the server to close the connection
_RECEIVE_BYTES = 256 * 1024
_FAR = 1 << 60  # larger than any limit that a server grants

HELLO = encode_frame(FrameType.HELLO, encode(m.Hello(m.MAGIC, m.PROTOCOL_VERSION, m.PROTOCOL_VERSION)))
LARGE_KEYS = 4  # in the namespace ``large``, a MiB each: together the most that one reply holds
LARGE_BYTES = 1024 * 1024 - 200
CROWD = 20_000  # sessions of the tenant ``crowd``, for listings to search
CROWD_BROKER = "b" * 256  # their owner, with the longest name allowed


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The attacked nodes and the attacker's certificates: of the fleet, and of every wrong kind by name."""

    addresses: Sequence[tuple[str, int]]
    """The addresses of every node, over the transport under attack."""
    transport: str
    good: TlsFiles
    other: TlsFiles
    """Of somebody else, who must be served."""
    broker: TlsFiles | None = None
    """Of the broker ``owned``, on the sites where there is one."""
    none: TlsFiles
    wrong: dict[str, TlsFiles] = {}
    secret: str = ""
    """Stands in every record of the honest tenant, on the sites where there is one. For the judge: no attack uses
    it."""
    token: str = ""
    """The attacker's own, where tokens are known."""
    public_key: bytes = b""
    """Of whoever signs JWTs, as everybody may have it: PEM."""

    @property
    def address(self) -> tuple[str, int]:
        """The address of the first node."""
        return self.addresses[0]


class Outcome(msgspec.Struct, frozen=True):
    """The result of an attack. ``problem`` says why it counts as not refused. ``denied`` and ``leaked``, of attacks on
    another tenant: requests that were refused or showed nothing, and those that showed or did what they must not."""

    tried: int
    problem: str = ""
    denied: int = 0
    leaked: int = 0


def group_of(method: Method[Any, Any]) -> str:
    """The group that a request of this method names: sites have one of each kind."""
    return GroupId(KINDS[method.code], 0).name if method.code in KINDS else ""


def payload_of(
    method: Method[Body, Any],
    body: Body,
    deadline_ms: int = 0,
    identity: m.Identity | None = None,
    *,
    group: str = "",
) -> bytes:
    """The payload of a request, to this group if it is said which."""
    return method.encode_request(body, deadline_ms, identity, group or group_of(method))


GET_LARGE = payload_of(methods.KV_GET, methods.KV_GET.body([m.KvKey("large", "k0")]))


def put(namespace: str, key: str, value: bytes) -> bytes:
    """The payload of a put."""
    return payload_of(methods.KV_PUT, m.KvPut([m.KvPutItem(namespace, key, value)]))


def request(number: int, method: int, payload: bytes) -> bytes:
    """The frame of a request."""
    return encode_frame(FrameType.REQUEST, payload, number, method)


class Heard:
    """Counts what a server has sent on one stream. ``answered`` is called with every answer to a request."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self.answered: Callable[[Frame], None] | None = None
        self.secret = b""
        self.leaks = 0
        """Frames in which the secret stood."""
        self.frames = 0
        self.welcomes = 0
        self.responses = 0
        self.errors = 0

    def take(self, data: bytes) -> None:
        """Take bytes of the stream."""
        decoder = self._decoder
        decoder.feed(data)
        while (frame := decoder.next()) is not None:
            self.frames += 1
            self.leaks += bool(self.secret) and self.secret in frame.payload
            self.welcomes += frame.type == FrameType.WELCOME
            self.responses += frame.type == FrameType.RESPONSE
            self.errors += frame.type == FrameType.ERROR
            if self.answered is not None and frame.type in (FrameType.RESPONSE, FrameType.ERROR):
                self.answered(frame)


class TlsPeer:
    """A TCP connection with TLS 1.3. Raises OSError if the handshake fails on our side."""

    def __init__(self, target: Target, files: TlsFiles, *, node: int = 0) -> None:
        self.heard = Heard()
        raw = socket.create_connection(target.addresses[node], WAIT_S)
        try:
            self.socket = tls_context(files).wrap_socket(raw)
        except BaseException:
            raw.close()
            raise
        self.socket.settimeout(WAIT_S)

    def __enter__(self) -> TlsPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Send bytes; False once the server reads no more."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def read(self) -> bool:
        """Process what has arrived, or arrives in time; False at the end, or if nothing arrives."""
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
        except OSError:
            return False
        self.heard.take(data)
        return bool(data)

    def read_to_end(self, bytes_max: int) -> bool:
        """Read until the server closes the connection; False if it does not in time, or sends more than this."""
        read = 0
        while read <= bytes_max:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                return False
            except OSError:
                return True
            if not data:
                return True
            read += len(data)
        return False


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """A client's context, which checks nothing but the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(files.ca)
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    return context


class Unpaid(QuicConnection):
    """aioquic's connection; with ``stingy`` it acknowledges but grants no credit."""

    stingy = False

    def _write_connection_limits(self, builder: Any, space: Any) -> None:
        if not self.stingy:
            super()._write_connection_limits(builder, space)

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        if not self.stingy:
            super()._write_stream_limits(builder, space, stream)


class QuicPeer:
    """A QUIC connection on a socket of its own; ``source`` is its address."""

    def __init__(
        self, target: Target, files: TlsFiles, *, ticket: SessionTicket | None = None, source: str = "", node: int = 0
    ) -> None:
        configuration = QuicConfiguration(
            alpn_protocols=["metad/1"], is_client=True, verify_mode=ssl.CERT_NONE, session_ticket=ticket
        )
        if files.certificate:
            configuration.load_cert_chain(files.certificate, files.key)
        self.heard = Heard()
        self.tickets: list[SessionTicket] = []
        self.sent: list[bytes] = []
        self.sent_bytes = self.received_bytes = 0
        self.connected = self.ended = self.reset = False
        self.end_code = 0
        self.connection = Unpaid(configuration=configuration, session_ticket_handler=self.tickets.append)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((source, 0))
        self._address = target.addresses[node]
        self.connection.connect(self._address, time.monotonic())

    def __enter__(self) -> QuicPeer:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
            self.flush()
        self.socket.close()

    def flush(self) -> None:
        """Send the waiting datagrams."""
        for datagram, _ in self.connection.datagrams_to_send(time.monotonic()):
            self.sent.append(datagram)
            self.sent_bytes += len(datagram)
            with contextlib.suppress(OSError):
                self.socket.sendto(datagram, self._address)

    def until(self, condition: Any, timeout_s: float = WAIT_S) -> bool:
        """Run until the condition holds; False if it does not in time."""
        until = time.monotonic() + timeout_s
        while True:
            self.flush()
            if condition():
                return True
            now = time.monotonic()
            if now >= until or self.ended:
                return bool(condition())
            # The attack changed aioquic's bookkeeping, which may not match what arrives.
            with contextlib.suppress(OSError, AssertionError):
                self._turn(until, now)
            self._events()

    def _turn(self, until: float, now: float) -> None:
        timer = self.connection.get_timer()
        wait_s = until - now if timer is None else max(0.0, min(timer, until) - now)
        if select.select([self.socket], [], [], wait_s)[0]:
            data = self.socket.recv(65_536)
            self.received_bytes += len(data)
            self.connection.receive_datagram(data, self._address, time.monotonic())
        now = time.monotonic()
        if timer is not None and now >= timer:
            self.connection.handle_timer(now)

    def connect(self) -> bool:
        """Whether the handshake succeeds on our side."""
        return self.until(lambda: self.connected) and not self.ended

    def open(self, data: bytes) -> int:
        """Open a stream that begins with ``data``."""
        stream_id = self.connection.get_next_available_stream_id()
        self.connection.send_stream_data(stream_id, data)
        return stream_id

    def lift_limits(self) -> None:
        """Ignore all limits of the server from now on."""
        connection: Any = self.connection
        connection._remote_max_data = connection._remote_max_streams_bidi = _FAR
        connection._remote_max_stream_data_bidi_remote = _FAR

    def jump(self, stream_id: int, offset: int) -> None:
        """Continue a stream at another offset."""
        stream: Any = self.connection._get_or_create_stream_for_send(stream_id)
        stream.max_stream_data_remote = _FAR
        sender = stream.sender
        sender._buffer.clear()
        sender._buffer_start = sender._buffer_stop = sender.highest_offset = offset

    def _events(self) -> None:
        while (event := self.connection.next_event()) is not None:
            if isinstance(event, events.HandshakeCompleted):
                self.connected = True
            elif isinstance(event, events.ConnectionTerminated):
                self.ended, self.end_code = True, event.error_code
            elif isinstance(event, events.StreamReset | events.StopSendingReceived):
                self.reset = True
            elif isinstance(event, events.StreamDataReceived):
                self.heard.take(event.data)
