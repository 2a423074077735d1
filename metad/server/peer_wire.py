"""What both ends of a connection between nodes have in common."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from metad_wire import peer as p
from metad_wire.errors import FrameError, MetadError
from metad_wire.frame import HANDSHAKE_BYTES_MAX, Frame, FrameDecoder, FrameType, encode_frame
from metad_wire.methods import MALFORMED
from metad_wire.transport import Stream

from ..config import Config
from ..logs import event
from ..raft.replicas import PeerProtocolError
from .access import Access
from .network import Network
from .node import Node


class Home(Protocol):
    """The node's end of all of them."""

    config: Config
    node: Node
    network: Network
    access: Access

    def hello(self, target: str, *, bulk: bool) -> bytes:
        """The first frame of a connection dialled."""

    def check(self, cluster_id: str, node_id: str, store_id: str) -> None:
        """Raise HandshakeError where this is no node to talk to."""


class Wire:
    """Frames in, frames out. :meth:`handle` is of whoever inherits."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.stream: Stream | None = None
        self.decoder = FrameDecoder(HANDSHAKE_BYTES_MAX)
        self.heard_s = 0.0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, stream: Stream) -> None:
        """It is up."""
        self.stream = stream
        self.heard_s = self._loop.time()

    def data_received(self, data: bytes) -> None:
        """Hand out the frames in a chunk."""
        self.heard_s = self._loop.time()
        self.decoder.feed(data)
        try:
            while self.stream is not None and (frame := self.decoder.next()) is not None:
                self.handle(frame)
        except (MetadError, PeerProtocolError, *MALFORMED) as error:
            self.refuse(error if isinstance(error, MetadError) else FrameError(str(error)))

    def handle(self, frame: Frame) -> None:
        """A frame has come. What it raises is said to the peer, and ends the connection."""
        raise NotImplementedError

    def refuse(self, error: MetadError) -> None:
        """Say why, and close."""
        event("peer connection refused", logging.WARNING, peer=self.peer_name(), error=error.name, detail=str(error))
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

    def eof_received(self) -> bool | None:
        """The peer sends no more: so do we."""
        return None

    def pause_writing(self) -> None:
        """The peer does not read."""

    def resume_writing(self) -> None:
        """It reads again."""
