"""What the dispatcher needs of a connection to a node, and what a connection tells in return."""

from __future__ import annotations

import asyncio
from typing import Protocol

from metad_wire.errors import MetadError
from metad_wire.messages import Welcome
from metad_wire.transport.credentials import PathSample

from .call import Call


class NodeConnection(Protocol):
    """A connection to one node that has greeted: one stream, or several."""

    endpoint: str
    """host:port."""
    via: str
    """The transport's name."""
    closed: asyncio.Future[None]
    """Ends once nothing is left of it."""

    @property
    def welcome(self) -> Welcome:
        """The node's greeting."""

    @property
    def frame_bytes_max(self) -> int:
        """The longest frame that the node takes."""

    @property
    def was_useful(self) -> bool:
        """It has said more than its greeting."""

    def calls(self) -> list[Call]:
        """Those in flight, the one that was sent first in front."""

    def path_lately(self) -> PathSample | None:
        """What the transport knows of the path, with the packets since the last call; None if that is nothing."""

    def can_send(self, payload_bytes: int) -> bool:
        """Whether a request of this size fits the window now."""

    def send(self, call: Call, payload: bytes) -> None:
        """Start an attempt. Raises FrameError if the payload is over the server's frame limit."""

    def leave(self) -> None:
        """Take no new requests, and hang up once those in flight are answered."""

    def close(self) -> None:
        """Send what is buffered and hang up. Calls in flight are reported lost."""

    def abort(self) -> None:
        """Hang up at once."""


class ConnectionListener(Protocol):
    """Is told what happens on a connection."""

    def answered(self, call: Call, payload: bytes) -> None:
        """The reply has come."""

    def failed(self, connection: NodeConnection, call: Call, error: MetadError) -> None:
        """The peer answered with an error."""

    def ready(self, connection: NodeConnection) -> None:
        """There may be room for more requests."""

    def retired(self, connection: NodeConnection, error: MetadError | None) -> None:
        """It takes no new requests: goaway or loss, with the error if there was one. Called once."""

    def lost(self, connection: NodeConnection, calls: list[Call], error: MetadError) -> None:
        """The connection has ended before these calls were answered."""
