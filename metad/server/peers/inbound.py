"""A connection that another node has dialled: it greets, then its payloads and requests are taken in."""

from __future__ import annotations

from functools import partial
from typing import Final

from metad_wire.connection import peer as p
from metad_wire.connection.frame import Frame, FrameType, encode_frame
from metad_wire.connection.peer import Channel, PeerWelcome
from metad_wire.errors import HandshakeError, MetadError, OverloadedError, SlowReaderError, UnexpectedFrameError
from metad_wire.transport import Stream

from ...node.lives import Life
from .peer_connection import Home, PeerConnection

GREETING_MAX: Final = 64
"""Connections that have not said yet whose they are. Honest peers take milliseconds."""
PER_NODE_MAX: Final = 8
"""Of one node: two that it sends on, two that it has given up and we do not know of yet, one to join by."""
_LOOKS: Final = 3


class Inbound(PeerConnection):
    """A connection that another node dialled."""

    def __init__(self, home: Home, guests: dict[Inbound, None]) -> None:
        """``guests`` are those that are up, the oldest first, this one among them while it is."""
        super().__init__(home)
        self._guests = guests
        self.node_id = ""
        self.cluster_id = ""
        self._claimed = ""  # the name that it gave itself
        self._welcomed = False
        self._timer = self._loop.call_later(home.config.limits.handshake_timeout_ms / 1000, self._late)
        self._heard_before_s = 0.0
        self._silent_looks = 0

    def peer_name(self) -> str:
        if self.node_id or self._claimed:
            return self.node_id or self._claimed
        address = self.stream.get_extra_info("peername") if self.stream is not None else None
        # Without the port, which is another one each time: the log counts the refusals of one peer.
        return str(address[0]) if isinstance(address, tuple) else str(address)

    def connection_made(self, stream: Stream) -> None:
        super().connection_made(stream)
        self._guests[self] = None
        self._make_room("", GREETING_MAX)
        try:
            self.home.access.admit_node(stream)
        except MetadError as error:
            self.refuse(error)

    def _make_room(self, node_id: str, most: int) -> None:
        """Of those of one node, or of those that have not said yet whose they are, the longest silent goes."""
        like_this = [guest for guest in self._guests if guest.node_id == node_id and not guest.refused]
        if len(like_this) > most:
            silent = min(like_this, key=lambda guest: guest.heard_s)
            silent.refuse(OverloadedError("too many connections; this one was silent the longest"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.stream = None
        self._timer.cancel()
        self._guests.pop(self, None)

    def _late(self) -> None:
        if not self.node_id:
            self.refuse(HandshakeError("no handshake in time"))

    def _look(self) -> None:
        """A peer pings three times in each of its election timeouts: one that says nothing is gone, and its connection
        half open. Looks are counted and not seconds: one that is late itself proves nothing."""
        silent = self.heard_s == self._heard_before_s
        self._silent_looks = self._silent_looks + 1 if silent else 0
        self._heard_before_s = self.heard_s
        if self._silent_looks == _LOOKS:
            self.refuse(SlowReaderError("nothing was heard for a long time"))
        else:
            self._look_later()

    def _look_later(self) -> None:
        config = self.home.config
        patience_s = max(config.limits.idle_timeout_ms, 2 * config.raft.election_timeout_ms) / 1000
        self._timer = self._loop.call_later(patience_s / _LOOKS, self._look)

    def handle(self, frame: Frame) -> None:
        node = self.home.node
        if not self.node_id:
            self._greet(frame)
        elif not self._welcomed:
            raise UnexpectedFrameError("a frame before the WELCOME")
        elif frame.type == FrameType.PEER:
            if not self.home.is_one_of_us(self.cluster_id, self.node_id):
                return  # Raft lives with losses, and its membership is being decided
            if frame.method == Channel.RAFT:
                node.peer_received(self.node_id, frame.payload)
            elif frame.method == Channel.SNAPSHOT:
                node.snapshot_received(self.node_id, frame.payload)
        elif frame.type == FrameType.PING:
            self.send(encode_frame(FrameType.PONG))
        elif frame.type == FrameType.REQUEST:
            node.requests.submit_peer(frame.method, frame.payload, partial(self._answer, frame.request_id))

    def _greet(self, frame: Frame) -> None:
        if frame.type != FrameType.HELLO:
            raise HandshakeError("the first frame is no HELLO")
        if p.decode_greeting(frame.payload).magic != p.PEER_MAGIC:  # a client's HELLO is no PeerHello
            raise HandshakeError("this is the port for nodes; clients use another: listen of the node")
        hello = p.decode_hello(frame.payload)
        identity = self.home.node.identity
        version = p.agreed_version(hello.version, hello.newest)
        if version is None:
            raise HandshakeError(
                f"no version between nodes in common: here {p.PEER_VERSION_OLDEST} to {p.PEER_VERSION}, there "
                f"{hello.version} to {max(hello.version, hello.newest)}"
            )
        assert self.stream is not None
        self.home.access.check_node(self.stream, hello.node_id)
        life = Life(hello.store_id, hello.life, hello.incarnation)
        self._claimed = hello.node_id
        self.check(hello.cluster_id, hello.node_id, life)
        self.life = life
        if hello.target not in ("", identity.node_id):
            raise HandshakeError(f"this is {identity.node_id!r}, not {hello.target!r}")
        self.node_id, self.cluster_id = hello.node_id, hello.cluster_id
        self._make_room(hello.node_id, PER_NODE_MAX)
        self._timer.cancel()
        self._look_later()
        self.decoder.frame_bytes_max = p.PEER_FRAME_BYTES_MAX
        self.home.remember(hello.node_id, life, partial(self._welcome, version))

    def _welcome(self, version: int) -> None:
        identity = self.home.node.identity
        welcome = PeerWelcome(
            version,
            identity.cluster_id,
            identity.node_id,
            identity.store_id,
            identity.life,
            identity.incarnation,
        )
        self._welcomed = True
        self.home.met()
        self.send(encode_frame(FrameType.WELCOME, p.encode(welcome)))

    def _answer(self, request_id: int, result: bytes | MetadError) -> None:
        if isinstance(result, MetadError):
            self.send(encode_frame(FrameType.ERROR, p.encode(result.body()), request_id))
        else:
            self.send(encode_frame(FrameType.RESPONSE, result, request_id))
