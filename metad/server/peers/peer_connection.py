"""What both ends of a connection between nodes have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from metad_wire.connection import peer as p
from metad_wire.connection.frame import HANDSHAKE_BYTES_MAX, Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.connection.peer import PeerHello, PeerWelcome
from metad_wire.errors import FrameError, HandshakeError, MetadError, NodeRefusedError
from metad_wire.method import MALFORMED
from metad_wire.transport import Stream

from ... import log_events
from ...config import Config
from ...logs import event
from ...node.lives import Life
from ...node.node import Node
from ...raft.replicas import PeerProtocolError
from ..access import Access
from ..network import Network

_UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024  # a peer that does not read for that long is cut off
_LINGER_S: Final = 2.0  # a few round trips of the longest path


class Home(Protocol):
    """The node's end of all of them."""

    config: Config
    node: Node
    network: Network
    access: Access

    def hello(self, target: str, *, bulk: bool) -> bytes:
        """The first frame of a connection dialled."""

    def check(self, cluster_id: str, node_id: str, life: Life) -> None:
        """Raise HandshakeError where this is no node to talk to."""

    def met(self) -> None:
        """A node has greeted this one and was let in."""

    def remember(self, node_id: str, life: Life, then: Callable[[], None]) -> None:
        """Call ``then`` once it is durably known that the node was here in this life."""

    def judge(self) -> None:
        """A connection could not be made. If every other node refuses this one, it must end."""

    def is_one_of_us(self, cluster_id: str, node_id: str) -> bool:
        """Whether a peer that greeted so may take part in Raft."""


class PeerConnection:
    """Frames in, frames out. :meth:`handle` is of whoever inherits."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.stream: Stream | None = None
        self.decoder = FrameDecoder(HANDSHAKE_BYTES_MAX)
        self.heard_s = 0.0
        self.life: Life | None = None
        """The other end's, once it has greeted and was not refused for it."""
        self._loop = asyncio.get_running_loop()
        self.refused = False
        """It was told why it is closed: what else it sends is not looked at."""
        self._unsent = 0
        self._paused = False

    def connection_made(self, stream: Stream) -> None:
        """It is up."""
        self.stream = stream
        self.heard_s = self._loop.time()
        self.refused = self._paused = False

    def silent_s(self) -> float:
        """For how long nothing was heard of the other end, while this node ran."""
        return min(self._loop.time() - self.heard_s, self.home.node.standstills.running_s())

    def data_received(self, data: bytes) -> None:
        """Hand out the frames in a chunk."""
        if self.refused:
            return
        self.heard_s = self._loop.time()
        self.decoder.feed(data)
        try:
            while not self.refused and self.stream is not None and (frame := self.decoder.next()) is not None:
                self.handle(frame)
        except (MetadError, PeerProtocolError, *MALFORMED) as error:
            self.refuse(error if isinstance(error, MetadError) else FrameError(str(error)))

    def handle(self, frame: Frame) -> None:
        """A frame has come. What it raises is said to the peer, and ends the connection."""
        raise NotImplementedError

    def check(self, cluster_id: str, node_id: str, life: Life, said: PeerHello | PeerWelcome) -> None:
        """Raise NodeRefusedError where the other end is no node to talk to."""
        try:
            self.home.check(cluster_id, node_id, life)
            self.home.node.lifecycle.check_software(said.features, f"{node_id} with metad {said.build or 'of before'}")
        except HandshakeError as error:
            raise NodeRefusedError(str(error)) from None

    def send(self, data: bytes) -> None:
        """Write a frame, if the connection is up."""
        if self.stream is None:
            return
        if self._paused:
            self._unsent += len(data)
            if self._unsent > _UNSENT_BYTES_MAX:
                event(log_events.PEER_DOES_NOT_READ, peer=self.peer_name())
                self.stream.abort()
                return
        self.stream.write(data)

    def refuse(self, error: MetadError) -> None:
        """Say why, and close."""
        event(log_events.PEER_REFUSED, peer=self.peer_name(), error=error.name, detail=str(error))
        self.refused = True
        if self.stream is not None:
            self.stream.write(encode_frame(FrameType.ERROR, p.encode(error.body())))
        self.close()

    def peer_name(self) -> str:
        """Who is at the other end, for the log."""
        raise NotImplementedError

    def close(self) -> None:
        """Send what is buffered, and hang up."""
        if self.stream is not None:
            self.stream.close()
            self._loop.call_later(_LINGER_S, self.stream.abort)  # for a peer that does not read its last words

    def eof_received(self) -> bool | None:
        """The peer sends no more: so do we."""
        return None

    def pause_writing(self) -> None:
        """The peer does not read."""
        self._paused, self._unsent = True, 0

    def resume_writing(self) -> None:
        """It reads again."""
        self._paused, self._unsent = False, 0
