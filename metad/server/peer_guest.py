"""A connection that another node has dialled: it greets, then its payloads and requests are taken in."""

from __future__ import annotations

from functools import partial

from metad_wire import peer as p
from metad_wire.errors import HandshakeError, MetadError
from metad_wire.frame import Frame, FrameType, encode_frame
from metad_wire.peer import Channel, PeerWelcome
from metad_wire.transport import Stream

from .peer_wire import Home, Wire


class Guest(Wire):
    """A connection that another node dialled."""

    def __init__(self, home: Home, guests: set[Guest]) -> None:
        """``guests`` are those that are up, this one among them while it is."""
        super().__init__(home)
        self._guests = guests
        self.node_id = ""
        self._timeout = self._loop.call_later(home.config.limits.handshake_timeout_ms / 1000, self._late)

    def peer_name(self) -> str:
        return self.node_id or str(self.stream and self.stream.get_extra_info("peername"))

    def connection_made(self, stream: Stream) -> None:
        super().connection_made(stream)
        self._guests.add(self)
        try:
            self.home.access.admit_node(stream)
        except MetadError as error:
            self.refuse(error)
            self.stream = None  # whatever it has sent already is not looked at

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None
        self._timeout.cancel()
        self._guests.discard(self)

    def _late(self) -> None:
        if not self.node_id:
            self.refuse(HandshakeError("no handshake in time"))

    def handle(self, frame: Frame) -> None:
        node = self.home.node
        if not self.node_id:
            self._welcome(frame)
        elif frame.type == FrameType.PEER:
            if frame.method == Channel.RAFT:
                node.peer_received(self.node_id, frame.payload)
            elif frame.method == Channel.SNAPSHOT:
                node.snapshot_received(self.node_id, frame.payload)
        elif frame.type == FrameType.PING:
            self._write(encode_frame(FrameType.PONG))
        elif frame.type == FrameType.REQUEST:
            node.requests.submit_peer(frame.method, frame.payload, partial(self._answer, frame.request_id))

    def _welcome(self, frame: Frame) -> None:
        if frame.type != FrameType.HELLO:
            raise HandshakeError("the first frame is no HELLO")
        hello = p.decode_hello(frame.payload)
        identity = self.home.node.identity
        if hello.magic != p.PEER_MAGIC or hello.version != p.PEER_VERSION:
            raise HandshakeError("this is the peer listener of a metad node; clients have another")
        assert self.stream is not None
        self.home.access.check_node(self.stream, hello.node_id)
        self.home.check(hello.cluster_id, hello.node_id, hello.store_id)
        if hello.target not in ("", identity.node_id):
            raise HandshakeError(f"this is {identity.node_id!r}, not {hello.target!r}")
        self.node_id = hello.node_id
        self.decoder.frame_bytes_max = p.PEER_FRAME_BYTES_MAX
        welcome = PeerWelcome(p.PEER_VERSION, identity.cluster_id, identity.node_id, identity.store_id)
        self._write(encode_frame(FrameType.WELCOME, p.encode(welcome)))

    def _answer(self, request_id: int, result: bytes | MetadError) -> None:
        if isinstance(result, MetadError):
            self._write(encode_frame(FrameType.ERROR, p.encode(result.body()), request_id))
        else:
            self._write(encode_frame(FrameType.RESPONSE, result, request_id))

    def _write(self, data: bytes) -> None:
        if self.stream is not None:
            self.stream.write(data)
