"""The interfaces between the dispatcher and a connection to a node."""

from __future__ import annotations

import asyncio
from typing import Protocol

from metad_wire.errors import MetadError
from metad_wire.messages import Welcome
from metad_wire.transport.credentials import PathSample

from .calls.call import Call


class NodeConnection(Protocol):
    """A connection to one node that has greeted: one stream, or several."""

    endpoint: str
    """host:port."""
    via: str
    """Name of the transport."""
    closed: asyncio.Future[None]
    """Ends once the connection has gone completely."""

    @property
    def welcome(self) -> Welcome:
        """The node's greeting."""

    @property
    def frame_bytes_max(self) -> int:
        """The longest frame that the node accepts."""

    @property
    def was_useful(self) -> bool:
        """Whether the node has sent more than its greeting."""

    def calls(self) -> list[Call]:
        """The calls in flight, the one that was sent first in front."""

    def path_lately(self, *, glance: bool = False) -> PathSample | None:
        """The transport's measurement of the path, with the packets since the last call; None if there is none. A
        ``glance`` is no such call: it is at the round trip only."""

    def can_send(self, payload_bytes: int, *, ahead: bool = False) -> bool:
        """Whether a request of this size fits the window now. ``ahead``: it waits for nothing else that is sent."""

    def send(self, call: Call, payload: bytes) -> None:
        """Start an attempt. Raises FrameError if the payload is over the server's frame limit."""

    def leave(self) -> None:
        """Accept no new requests, and close once those in flight are answered."""

    def close(self) -> None:
        """Send buffered bytes and close. Calls in flight are reported lost."""

    def abort(self) -> None:
        """Close at once."""


class ConnectionListener(Protocol):
    """Receives the events of a connection."""

    def answered(self, call: Call, payload: bytes) -> None:
        """The reply has arrived."""

    def failed(self, connection: NodeConnection, call: Call, error: MetadError) -> None:
        """The peer answered with an error."""

    def heard(self, connection: NodeConnection) -> None:
        """The peer has answered a call that its caller gave up."""

    def ready(self, connection: NodeConnection) -> None:
        """There may be room for more requests."""

    def retired(self, connection: NodeConnection, error: MetadError | None) -> None:
        """The connection takes no new requests: goaway or loss, with the error if there was one. Called once."""

    def lost(self, connection: NodeConnection, calls: list[Call], error: MetadError) -> None:
        """The connection has ended before these calls were answered."""
