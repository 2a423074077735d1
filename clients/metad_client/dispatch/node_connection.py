"""What the dispatcher needs of a connection to a node, and what the connection tells in return."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from metad_wire.errors import MetadError
from metad_wire.session import ClientSession
from metad_wire.transport.credentials import PathSample

from .call import Call

if TYPE_CHECKING:
    from .node_queue import NodeQueue


class InFlight(Protocol):
    """The calls in flight on a connection: how many, and which, the oldest first."""

    def __len__(self) -> int: ...

    def values(self) -> Iterable[Call]:
        """The calls."""


class NodeConnection(Protocol):
    """The way to one node, to whom it belongs: a :class:`Connection`, or a bundle of them."""

    lane: NodeQueue | None

    @property
    def endpoint(self) -> str:
        """host:port."""

    @property
    def via(self) -> str:
        """The transport's name."""

    @property
    def session(self) -> ClientSession:
        """What was agreed with the server."""

    @property
    def calls(self) -> InFlight:
        """Those in flight."""

    @property
    def closed(self) -> asyncio.Future[None]:
        """Ends once nothing is left of it."""

    @property
    def was_useful(self) -> bool:
        """It has said more than its greeting."""

    def path_lately(self) -> PathSample | None:
        """What the transport knows of the path, with the packets since the last call."""

    def can_send(self, payload_bytes: int) -> bool:
        """Whether a request of this size fits the window now."""

    def send(self, call: Call, payload: bytes) -> None:
        """Start an attempt. Raises FrameError where the payload is over the server's frame limit."""

    def cancel(self, call: Call) -> None:
        """The answer is no longer wanted; tells the peer."""

    def leave(self) -> None:
        """Take no new requests, and hang up once those in flight are answered."""

    def close(self) -> None:
        """Send what is buffered and hang up. Calls in flight are reported lost."""

    def abort(self) -> None:
        """Hang up at once."""


class ConnectionListener(Protocol):
    """Who is told what happens on a connection."""

    def answered(self, call: Call, payload: bytes) -> None:
        """The reply has come."""

    def failed(self, connection: NodeConnection, call: Call, error: MetadError) -> None:
        """The peer answered with an error."""

    def ready(self, connection: NodeConnection) -> None:
        """There may be room for more requests."""

    def retired(self, connection: NodeConnection, error: MetadError | None) -> None:
        """It takes no new requests: goaway or loss, with the error where there was one. Called once."""

    def lost(self, connection: NodeConnection, calls: list[Call], error: MetadError) -> None:
        """The connection has ended before these calls were answered."""
